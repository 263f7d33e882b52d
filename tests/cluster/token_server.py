# SPDX-License-Identifier: Apache-2.0
"""A token service as the distribution project specifies it: signed tokens that a real registry accepts.

Everyone may pull `public/...`; an account may pull everything.
"""

from __future__ import annotations

import base64
import json
import time
import uuid
from pathlib import Path
from typing import Any

import jwt

from . import certificates
from .http_servers import RecordingServer, Reply, Request

SERVICE = "registry.tests"
ISSUER = "tokens.tests"


class TokenServer(RecordingServer):
    def __init__(self, login: str, password: str) -> None:
        super().__init__()
        self._keys = certificates.authority(ISSUER)
        self._basic = "Basic " + base64.b64encode(f"{login}:{password}".encode()).decode()
        self._login = login
        self.token_field = "token"
        """Services give the token under `token`, `access_token` or both."""
        self.lifetime = 300

    @property
    def realm(self) -> str:
        """On another host name than the registry, as most are: a login then needs a line of its own for it."""
        return f"http://localhost:{self.port}/token"

    def registry_settings(self, directory: Path) -> dict[str, Any]:
        """The `auth` section of a registry that trusts this service."""
        bundle, _ = self._keys.write(directory, "tokens")
        settings = {
            "realm": self.realm,
            "service": SERVICE,
            "issuer": ISSUER,
            "rootcertbundle": str(bundle),
        }
        return {"token": settings}

    def reply(self, request: Request) -> Reply:
        sent = request.authorization
        if sent is not None and sent != self._basic:
            errors = {"errors": [{"code": "UNAUTHORIZED", "message": "incorrect username or password"}]}
            return Reply(401, json.dumps(errors).encode())
        scopes = [value for name, value in request.query if name == "scope"]
        granted = [access for scope in scopes if (access := self._access(scope, known=sent is not None))]
        answer = {self.token_field: self._token(granted), "expires_in": self.lifetime}
        return Reply(200, json.dumps(answer).encode(), [("Content-Type", "application/json")])

    def _access(self, scope: str, known: bool) -> dict[str, Any] | None:
        kind, _, rest = scope.partition(":")
        name, _, actions = rest.rpartition(":")
        if not known and not name.startswith("public/"):
            return None
        return {"type": kind, "name": name, "actions": actions.split(",")}

    def _token(self, access: list[dict[str, Any]]) -> str:
        now = int(time.time())
        claims = {
            "iss": ISSUER,
            "sub": self._login,
            "aud": SERVICE,
            "iat": now,
            "nbf": now - 5,
            "exp": now + self.lifetime,
            "jti": uuid.uuid4().hex,
            "access": access,
        }
        chain = [base64.b64encode(self._keys.certificate_der).decode()]
        return jwt.encode(claims, self._keys.key, algorithm="ES256", headers={"x5c": chain})
