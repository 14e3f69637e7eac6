"""Records: valid when they exist, and changed only along the table of states."""

from __future__ import annotations

from itertools import product

import pytest
from tests.planner.samples import job_record, rank_record, step_record

from flyball_server.jobs.errors import IllegalMoveError, InvalidFieldError
from flyball_server.jobs.records import RankRecord
from flyball_server.jobs.step_records import StepDetail, StepRecord
from flyball_wire.messages import MAX_RANKS, MAX_STAGES, JobState

DETAIL = StepDetail(job_id="job", rank=0, step=1)


def test_a_job_name_that_would_not_survive_a_path_is_refused() -> None:
    for job_id in ("", "a" * 129, "a b", "a/b", "ä", "a\n", "a\0"):
        with pytest.raises(InvalidFieldError, match="job_id"):
            job_record(job_id)
    for job_id in ("a", "a" * 128, "Az09._-"):
        assert job_record(job_id).job_id == job_id


@pytest.mark.parametrize(
    ("record", "changes"),
    [
        (rank_record(), {"rank": -1}),
        (rank_record(), {"stage": MAX_STAGES}),
        (rank_record(), {"dp_rank": -1}),
        (rank_record(), {"tp_rank": MAX_RANKS}),
        (rank_record(), {"cp_rank": -1}),
        (rank_record(), {"host": "a\0b"}),
        (rank_record(), {"gpu_name": "x" * 257}),
        (rank_record(), {"acknowledged_version": 0}),
        (rank_record(), {"current_step": 2**53}),
        (step_record(), {"step": -1}),
        (step_record(), {"plan_version": 0}),
        (step_record(), {"time_s": -0.1}),
        (step_record(), {"time_s": float("inf")}),
        (step_record(), {"energy_j": float("nan")}),
        (step_record(), {"energy_j": 1e308}),
        (step_record(), {"sm_clock_mhz": -1.0}),
        (step_record(), {"sm_clock_mhz": 100_001.0}),
        (step_record(), {"num_unplanned": -1}),
        (step_record(), {"num_overruns": -1}),
        # What an instruction cannot have taken.
        (DETAIL, {"by_clock": (("forward", 0, 1410, 1, 1e10, 0.0),)}),
        (DETAIL, {"by_clock": (("forward", 0, 1410, 1, 0.1, 1e200),)}),
        (DETAIL, {"instructions": (("forward", 0, 0, 0.0, 1e10, 0.0, 0.0),)}),
    ],
)
def test_a_rank_or_a_step_out_of_bounds_names_its_field(
    record: RankRecord | StepRecord | StepDetail, changes: dict[str, object]
) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        record.evolve(**changes)
    [field] = changes
    assert caught.value.field == {"acknowledged_version": "version"}.get(field, field)


def test_a_job_moves_only_where_the_table_lets_it() -> None:
    refused = {
        # What is over comes back as anything; nothing ends that had expired.
        (JobState.ENDED, JobState.ENDED),
        (JobState.EXPIRED, JobState.EXPIRED),
        (JobState.EXPIRED, JobState.ENDED),
        (JobState.AWAITING_PROFILE, JobState.AWAITING_PROFILE),
        # Profiling begins where there is no profile.
        (JobState.PROFILING, JobState.PROFILING),
        (JobState.PLANNED, JobState.PROFILING),
        (JobState.PLANNING_FAILED, JobState.PROFILING),
    }
    for old, new in product(JobState, JobState):
        job = job_record(state=old, problem="old")
        if (old, new) in refused:
            with pytest.raises(IllegalMoveError, match=f"is {old} cannot become {new}"):
                job.moved(new)
        else:
            assert job.moved(new) == job.evolve(state=new, problem=None)
