# SPDX-License-Identifier: Apache-2.0
"""SlurmHook: the only module that talks to the cluster, on the SSH provider's hook.

Every verb is one remote command: a constant script from ``cluster/`` with quoted constants, on standard input.
Nothing is parsed from text outside its markers, and no remote command runs longer than about a minute.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import paramiko
from airflow.providers.common.compat.sdk import AirflowException, Connection
from airflow.providers.ssh.hooks.ssh import SSHHook

from airflow_slurm_images.core import catalog, job_script, observation, remote, run_state
from airflow_slurm_images.core.catalog import AliasVersion, Catalog
from airflow_slurm_images.core.errors import ClusterUnavailableError, InvalidRequestError
from airflow_slurm_images.core.fields import ALIAS
from airflow_slurm_images.core.housekeeping import PruneReport, PruneRules
from airflow_slurm_images.core.observation import Observation, Watch
from airflow_slurm_images.core.plan import LifecyclePlan
from airflow_slurm_images.core.profile import ClusterProfile
from airflow_slurm_images.core.remote import RemoteResult
from airflow_slurm_images.core.run_state import RunState
from airflow_slurm_images.core.slurm import SQUEUE_FORMAT, QueueAnswer
from airflow_slurm_images.core.submission import Publication, SubmitAnswer
from airflow_slurm_images.hooks import connection_report, ssh_exchange
from airflow_slurm_images.hooks.connection_form import CONNECTION_TYPE, DEFAULT_CONN_ID, HOOK_NAME

CONNECT_TIMEOUT = 30
COMMAND_TIMEOUT = 100.0
PRUNE_SECONDS = 45
"""Budget of one prune command; what is left is done by the next one."""
PRUNE_ROUNDS = 20
KILL_SECONDS = 3
"""For connecting when a task is killed: Airflow ends the process about five seconds after on_kill began."""
KILL_TIMEOUT = 4.0
"""For the one command of a kill."""


class SlurmHook(SSHHook):
    """Run our verbs on a Slurm cluster's login node.

    :param slurm_conn_id: connection of type ``slurm_ssh`` (a plain ``ssh`` connection works too); its extra
        holds the SSH provider's options and the cluster profile side by side.
    :param profile: profile fields that override those of the connection.
    :param connection: the resolved connection, for callers that must not look it up here (triggers).
    :param connect_attempts: how often to try to connect, where trying again can help.
    :param ssh_options: any further argument of the SSH provider's ``SSHHook``.

    All of Airflow that a hook needs it asks for while it is made; a verb never calls the SDK, so it may run in a thread
    or a signal handler. A profile that is not valid is told when it is used; an extra that is no JSON at once, by
    InvalidRequestError, and so are a key, host or number that SSH cannot use, by ClusterAccessError.
    """

    conn_name_attr = "slurm_conn_id"
    default_conn_name = DEFAULT_CONN_ID
    conn_type = CONNECTION_TYPE
    hook_name = HOOK_NAME

    def __init__(
        self,
        slurm_conn_id: str = DEFAULT_CONN_ID,
        profile: Mapping[str, Any] | None = None,
        *,
        connection: Connection | None = None,
        connect_attempts: int = 4,
        **ssh_options: Any,
    ) -> None:
        self.slurm_conn_id = slurm_conn_id
        self._connection = connection
        self._connect_attempts = connect_attempts
        extra = _extra(self.connection)
        try:
            super().__init__(ssh_conn_id=slurm_conn_id, **{"conn_retry_attempts": 1, **ssh_options})
        except (AirflowException, paramiko.SSHException, ValueError) as err:  # a field that it cannot read
            raise ssh_exchange.unusable_connection(slurm_conn_id, err) from err
        if not {*extra, *ssh_options} & {"no_host_key_check", "ignore_hostkey_verification"}:
            self.no_host_key_check = False  # before its release 7.0 the SSH provider trusts whoever answers
        self.conn_timeout = self.conn_timeout or CONNECT_TIMEOUT
        self.auth_timeout = self.auth_timeout or CONNECT_TIMEOUT
        try:
            self._profile: ClusterProfile | InvalidRequestError = ClusterProfile.from_author(extra, profile)
        except InvalidRequestError as err:
            self._profile = err

    def get_connection(self, conn_id: str) -> Connection:  # type: ignore[override]
        """Return the connection given at construction, else look it up once."""
        if self._connection is None:
            self._connection = super().get_connection(conn_id)
        return self._connection

    @property
    def connection(self) -> Connection:
        """The resolved connection, for a further hook that must not look it up."""
        return self.get_connection(self.slurm_conn_id)

    @property
    def profile(self) -> ClusterProfile:
        """Profile of the connection with the overrides; raises InvalidRequestError."""
        if isinstance(self._profile, InvalidRequestError):
            raise self._profile
        return self._profile

    @property
    def where(self) -> str:
        """Login node for messages."""
        return f"{self.username}@{self.remote_host}:{self.port}"

    def run(
        self,
        verb: str,
        variables: Mapping[str, str] | None = None,
        payload: bytes = b"",
        *,
        cluster: str | None = None,
        timeout: float = COMMAND_TIMEOUT,
    ) -> RemoteResult:
        """Run one verb of :data:`remote.SCRIPTS` and return its fields.

        Raises ClusterUnavailableError (unreachable, slow, truncated, failed) or what the script refused.
        """
        mark = f"asi-{secrets.token_hex(16)}"
        profile = self.profile
        constants = {
            "ASI_WORKSPACE": profile.workspace_root,
            "ASI_SLURM_BIN": profile.slurm_bin or "",
            "ASI_SLURM_CONF": profile.slurm_conf or "",
            "ASI_CLUSTER": cluster or profile.cluster or "",
            "ASI_GROUP": profile.group or "",
            **(variables or {}),
        }
        stdin = remote.compose(verb, mark, constants, payload)
        client = ssh_exchange.connect(self.get_conn, self.where, self._connect_attempts)
        try:
            result = remote.parse(ssh_exchange.exchange(client, remote.COMMAND, stdin, timeout, self.where), mark)
        except ClusterUnavailableError:
            self.close()  # a path that went silent counts as open until TCP gives up, a quarter of an hour later
            raise
        result.raise_refusal()
        if result.status != 0:
            # An answer that is whole but empty must not pass for "done".
            raise ClusterUnavailableError(
                f"The command '{verb}' failed on the login node {self.where} with status {result.status}",
                remedy="Look at its file systems, limits and tools (bash, coreutils, awk); the task may be retried.",
            )
        return result

    def prepare(self, run_key: str, source_digest: str = "", name: str = "", *, begins: bool = False) -> RunState:
        """Check and make the workspace; tell what there is of the run ``run_key`` and of images of that source.

        With a source the alias ``name`` is looked at too, as it may mean one of them already. Where a try ``begins``,
        attempts of earlier ones that were staged and not submitted are given up.
        """
        variables = {
            "ASI_RUN_KEY": run_key,
            "ASI_SOURCE_DIGEST": source_digest,
            "ASI_NAME": name,
            "ASI_BEGINS": "1" if begins else "0",
            "ASI_SQUEUE_FORMAT": SQUEUE_FORMAT,
        }
        return run_state.read(self.run("prepare", variables))

    def stage(self, plan: LifecyclePlan, credentials: bytes | None = None) -> str:
        """Make the attempt directory, bring the files over and compare them there; returns ``staged.sha256``'s hash.

        Older attempts of the run are fenced: a job of theirs that turns up late does nothing.
        """
        files = job_script.staged_files(plan, credentials)
        staged = job_script.sha256(files["staged.sha256"])
        self.run(
            "stage",
            {
                "ASI_RUN_DIRECTORY": plan.attempt_directory.rpartition("/")[0],
                "ASI_ATTEMPT": plan.attempt,
                "ASI_GENERATION": str(plan.generation),
                "ASI_STAGED_SHA256": staged,
            },
            job_script.archive(files),
        )
        return staged

    def submit(self, plan: LifecyclePlan, staged_sha256: str) -> SubmitAnswer:
        """Run ``sbatch`` on the staged script; the answer is judged by the caller."""
        variables = {"ASI_ATTEMPT_DIRECTORY": plan.attempt_directory, "ASI_STAGED_SHA256": staged_sha256}
        return SubmitAnswer.read(self.run("submit", variables))

    def adopt(self, attempt_directory: str, generation: int, job_id: int) -> None:
        """Mark an attempt as belonging to this generation of tries too."""
        self.run(
            "adopt",
            {
                "ASI_ATTEMPT_DIRECTORY": attempt_directory,
                "ASI_GENERATION": str(generation),
                "ASI_JOB_ID": str(job_id),
            },
        )

    def observe(self, watches: Sequence[Watch], cluster: str | None = None) -> list[Observation]:
        """One look at all of ``watches`` (one cluster), in one remote command."""
        result = self.run("observe", observation.variables(watches), observation.payload(watches), cluster=cluster)
        return observation.read(result, watches)

    def collect(self, attempt_directory: str, *, ended: bool = False) -> RemoteResult:
        """Records, facts and log ends of one attempt; of one known to have ended the staged login is removed."""
        variables = {"ASI_ATTEMPT_DIRECTORY": attempt_directory, "ASI_ENDED": "1" if ended else "0"}
        return self.run("collect", variables)

    def cancel(
        self,
        job_id: int | None,
        job_name: str,
        cluster: str | None = None,
        timeout: float = 30,
        *,
        attempt: str = "*",
        generation: int | None = None,
    ) -> QueueAnswer:
        """``scancel`` one job, only under our name; without an id all of that name. Returns the queue afterwards.

        ``attempt`` (``*``: all of the run) is marked first, so that no later try adopts the dying job. With
        ``generation`` nothing happens to a job that a later generation of tries has adopted meanwhile.
        """
        variables = {
            "ASI_JOB_ID": str(job_id or ""),
            "ASI_JOB_NAME": job_name,
            "ASI_ATTEMPT": attempt,
            "ASI_GENERATION": "" if generation is None else str(generation),
            "ASI_SQUEUE_FORMAT": SQUEUE_FORMAT,
        }
        return observation.queue_answer(self.run("cancel", variables, cluster=cluster, timeout=timeout))

    def publish(self, workspace: str, name: str, record: bytes, variables: Mapping[str, str]) -> Publication:
        """Move the alias ``name`` to the file of ``record``; one call, one commit point."""
        result = self.run("publish", {"ASI_ROOT": workspace, "ASI_NAME": name, **variables}, record)
        return Publication.read(result)

    # --- the catalog

    def list_images(self) -> tuple[AliasVersion, ...]:
        """What every alias of the workspace means now, with its record; sorted by name."""
        return self._catalog("", history=False).versions

    def get_image(self, name: str) -> AliasVersion:
        """What the alias ``name`` means now; raises InvalidRequestError when there is no such alias."""
        found = self._catalog(name, history=False).current(name)
        if found is None:
            raise InvalidRequestError(
                f"There is no alias {name!r} in {self.profile.workspace_root}",
                remedy="Look at SlurmHook.list_images(), or import the image first.",
            )
        return found

    def image_history(self, name: str) -> tuple[AliasVersion, ...]:
        """What the alias ``name`` means and meant, newest first: when, which file, which run."""
        return self._catalog(name, history=True).versions

    def _catalog(self, name: str, *, history: bool) -> Catalog:
        if name and not ALIAS.fullmatch(name):
            raise InvalidRequestError(
                f"{name!r} is not an alias", remedy="Letters, digits, '.', '_', '-', at most 128."
            )
        return catalog.read(self.run("catalog", {"ASI_NAME": name, "ASI_HISTORY": "1" if history else "0"}))

    def prune(self, rules: PruneRules, *, dry_run: bool = False) -> PruneReport:
        """Remove what ``rules`` allow; comes again while one short command could not do it all."""
        reports = []
        for _ in range(PRUNE_ROUNDS):
            result = self.run("prune", rules.variables(dry_run=dry_run, budget_seconds=PRUNE_SECONDS))
            reports.append(PruneReport.read(result, dry_run=dry_run))
            if reports[-1].complete or dry_run:
                break
        return PruneReport.merge(reports)

    def test_connection(self) -> tuple[bool, str]:
        """Login, workspace, Slurm, partition and Enroot, each with its remedy when it fails."""
        try:
            return connection_report.report(self)
        except (ClusterUnavailableError, InvalidRequestError) as err:
            return False, str(err)

    def close(self) -> None:
        """Close the connection; the next verb opens a new one."""
        client: paramiko.SSHClient | None = self.client
        self.client = None
        if client is not None:
            client.close()


def _extra(connection: Connection) -> dict[str, Any]:
    """The connection's extra; raises InvalidRequestError.

    Not by ``extra_dejson``: it tells the supervisor what to mask, which breaks Airflow 3.1's triggerer when a thread
    does it, and takes bad JSON for none. The base class masked it all when it was made.
    """
    try:
        extra = json.loads(connection.extra or "{}")
    except ValueError as err:
        raise InvalidRequestError(
            f"The extra of connection {connection.conn_id!r} is not valid JSON: {err}",
            remedy="Correct the extra in Airflow's connection; it is one JSON object.",
        ) from err
    if not isinstance(extra, dict):
        raise InvalidRequestError(
            f"The extra of connection {connection.conn_id!r} is not a JSON object",
            remedy='Write it as {"workspace_root": "/shared/dir"}.',
        )
    return extra
