# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_slurm_images.core.states import (
    STATE_ADVICE,
    JobState,
    StateClass,
    classify,
    parse_state,
    pending_reason,
    reason_remedy,
    state_name,
)


@pytest.mark.parametrize("state", list(JobState))
def test_every_state_has_a_class(state: JobState) -> None:
    assert classify(state.value) is not StateClass.UNKNOWN
    assert parse_state(state.value) is state


@pytest.mark.parametrize(
    "state", [state for state in JobState if classify(state) in (StateClass.FAILED, StateClass.INTERRUPTED)]
)
def test_poll_6_every_state_that_can_end_a_job_has_advice(state: JobState) -> None:
    advice = STATE_ADVICE[state]
    assert advice.message
    assert advice.remedy


def test_poll_6_messages_of_the_terminal_states_are_distinct_and_name_the_parameter() -> None:
    ends = [
        "FAILED",
        "TIMEOUT",
        "OUT_OF_MEMORY",
        "NODE_FAIL",
        "BOOT_FAIL",
        "DEADLINE",
        "CANCELLED",
        "REVOKED",
        "PREEMPTED",
    ]
    assert len({STATE_ADVICE[JobState(end)].message for end in ends}) == len(ends)
    assert "`memory`" in STATE_ADVICE[JobState.OUT_OF_MEMORY].remedy
    assert "`time_limit`" in STATE_ADVICE[JobState.TIMEOUT].remedy
    assert "retry" in STATE_ADVICE[JobState.NODE_FAIL].remedy


@pytest.mark.parametrize(
    ("state", "retryable"),
    [
        ("OUT_OF_MEMORY", False),
        ("TIMEOUT", False),
        ("NODE_FAIL", True),
        ("PREEMPTED", True),
        ("BOOT_FAIL", True),
    ],
)
def test_what_a_retry_cannot_help_is_not_retried(state: str, retryable: bool) -> None:
    assert STATE_ADVICE[JobState(state)].retryable is retryable


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("CANCELLED by 1000", JobState.CANCELLED),
        ("CANCELLED+", JobState.CANCELLED),
        ("OUT_OF_ME+", JobState.OUT_OF_MEMORY),
        (" RUNNING ", JobState.RUNNING),
        ("completed", JobState.COMPLETED),
        ("COMPLE+", None),  # COMPLETED or COMPLETING
        ("COMPLETEDX", None),
        ("HIBERNATED", None),
        ("", None),
        ("?", None),
        ("4294967295", None),
    ],
)
def test_a_printed_state_is_normalised_and_never_guessed(text: str, state: JobState | None) -> None:
    assert parse_state(text) is state


@pytest.mark.parametrize("text", ["HIBERNATED", "", "?", "COMPLETED_LATER", "FAILEDISH"])
def test_poll_6_a_word_of_the_future_is_unknown(text: str) -> None:
    assert classify(text) is StateClass.UNKNOWN


@given(st.text(max_size=80))
def test_any_text_has_a_class_and_a_printable_name(text: str) -> None:
    assert classify(text) in StateClass
    assert state_name(text).isprintable()
    assert 0 < len(state_name(text)) <= 40


@pytest.mark.parametrize(
    "reason",
    [
        *("AssocMaxWallDurationPerJobLimit", "QOSMaxWallDurationPerJobLimit", "AssocMaxCpuPerJobLimit"),
        *("QOSMaxCpuPerJobLimit", "QOSMaxMemoryPerJob", "AssocMaxMemPerNode", "QOSMaxCpuPerNode"),
        *(
            "AssocMaxNodePerJobLimit",
            "QOSMaxNodePerJobLimit",
            "AssocMaxCpuMinutesPerJobLimit",
            "QOSMinCpuNotSatisfied",
        ),
        *(
            "QOSMinMemory",
            "QOSMinGRES",
            "MaxMemPerLimit",
            "PartitionTimeLimit",
            "InvalidAccount",
            "InvalidQOS",
        ),
        *("AccountNotAllowed", "QOSNotAllowed", "BadConstraints", "DependencyNeverSatisfied", "JobHeldAdmin"),
        *("JobHeldUser", "JobHoldMaxRequeue", "launch_failed_requeued_held", "launch failed requeued held"),
        *("job_requeued_in_held_state", "ReservationDeleted", "(JobHeldUser)", "QOSMaxEnergyMinutesPerJob"),
    ],
)
def test_sub_9_a_reason_that_no_waiting_changes_is_hopeless(reason: str) -> None:
    assert pending_reason(reason) == "hopeless"
    assert reason_remedy(reason)


@pytest.mark.parametrize(
    "reason",
    [
        *(
            "Priority",
            "Resources",
            "Dependency",
            "None",
            "BeginTime",
            "Licenses",
            "Prolog",
            "Cleaning",
            "Reservation",
        ),
        *("QOSMaxCpuPerUserLimit", "QOSMaxJobsPerUserLimit", "QOSMaxMemoryPerUser", "MaxCpuPerAccount"),
        *("QOSMaxSubmitJobPerUserLimit", "AssocMaxJobsLimit", "AssocGrpCpuLimit", "AssocGrpCPUMinutesLimit"),
        *("QOSGrpMemLimit", "ReqNodeNotAvail", "ReqNodeNotAvail, UnavailableNodes:n[1-3]", "PartitionDown"),
        *(
            "PartitionInactive",
            "PartitionNodeLimit",
            "PartitionConfig",
            "NodeDown",
            "Constraints",
            "AccountingPolicy",
        ),
        *(
            "ReqNodeNotAvail,_May_be_reserved_for_other_job",
            "FedJobLock",
            "QOSUsageThreshold",
            "",
            "SomethingNew",
        ),
        "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions",
    ],
)
def test_sub_9_a_reason_that_can_pass_or_is_unknown_is_waited_for(reason: str) -> None:
    assert pending_reason(reason) == "wait"


@pytest.mark.parametrize(
    ("reason", "parameter"),
    [
        ("AssocMaxWallDurationPerJobLimit", "`time_limit`"),
        ("PartitionTimeLimit", "`time_limit`"),
        ("QOSMaxMemoryPerJob", "`memory`"),
        ("QOSMaxCpuPerJobLimit", "`cpus_per_task`"),
        ("InvalidAccount", "`account`"),
        ("InvalidQOS", "`qos`"),
        ("BadConstraints", "`constraint`"),
        ("JobHeldAdmin", "scontrol release"),
    ],
)
def test_sub_9_the_remedy_names_the_parameter(reason: str, parameter: str) -> None:
    assert parameter in reason_remedy(reason)
