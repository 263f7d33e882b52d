# SPDX-License-Identifier: Apache-2.0
"""Runs under the reference's own Python, as the cluster's user: prepare, submit, wait for a word, publish.

    reference_side.py REQUEST.json

Prints one JSON line when the job is submitted; after a line on standard input it publishes and prints another.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from data_designer.slurm.config.images import ImageBuildRequest
from data_designer.slurm.config.profiles import SlurmProfile, injected_profile
from data_designer.slurm.images.lifecycle import (
    prepare_image_lifecycle_job,
    publish_completed_image_lifecycle,
    submit_prepared_image_lifecycle,
)
from data_designer.slurm.launcher.client import SlurmCommandClient


def main() -> None:
    wanted = json.loads(Path(sys.argv[1]).read_text())
    profile = injected_profile(SlurmProfile.model_validate(wanted["profile"]))
    started = time.monotonic()
    prepared = prepare_image_lifecycle_job(
        ImageBuildRequest(name=wanted["name"], kind="client", source=wanted["source"]),
        profile,
        lifecycle_id=wanted["id"],
    )
    receipt = submit_prepared_image_lifecycle(prepared, SlurmCommandClient())
    _say(job_id=receipt.job_id, directory=prepared.plan.job_directory, seconds=time.monotonic() - started)
    sys.stdin.readline()
    started = time.monotonic()
    registered = publish_completed_image_lifecycle(prepared, replace=True)
    _say(path=registered.path, sha256=registered.sqsh_sha256, seconds=time.monotonic() - started)


def _say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


if __name__ == "__main__":
    main()
