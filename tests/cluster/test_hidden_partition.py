# SPDX-License-Identifier: Apache-2.0
"""A partition that a site hides: its jobs are in the queue all the same."""

from __future__ import annotations

from .box import Box
from .slurm_daemons import CLOSED_PARTITION
from .works import as_operator, import_task


def test_a_job_in_a_hidden_partition_is_found_adopted_and_cancelled(box_plain: Box) -> None:
    image = f"{box_plain.registry}/images/any@sha256:{'0' * 64}"  # a closed partition: nothing is pulled
    task = import_task(box_plain, image, "hidden", partition=CLOSED_PARTITION)
    as_operator(box_plain, "scontrol", "update", f"PartitionName={CLOSED_PARTITION}", "Hidden=YES")
    try:
        handle = task.begin()
        assert box_plain.as_user(["squeue", "--noheader", f"--name={handle.job_name}"]).stdout == ""
        queued = task.hook.prepare(handle.run_key).queue.rows
        assert [(row.job_id, row.state) for row in queued] == [(handle.job_id, "PENDING")]
        assert task.begin().job_id == handle.job_id
        task.lifecycle.cancel(handle)
        assert box_plain.active_jobs(handle.job_name) == []
        assert len(box_plain.squeue(handle.job_name)) == 1
    finally:
        as_operator(box_plain, "scontrol", "update", f"PartitionName={CLOSED_PARTITION}", "Hidden=NO")
