"""Records: valid when they exist, and changed only along the table of states."""

from __future__ import annotations

from itertools import product

import pytest
from tests.planner.samples import job_record, job_spec, rank_record, step_record

from flyball_server.jobs.errors import IllegalMoveError, InvalidFieldError
from flyball_server.jobs.records import MAX_MICROBATCHES, MAX_RANKS, MAX_STAGES, StepDetail
from flyball_wire.messages import JobState

ONE = (("forward", 0), ("backward", 0))
MEMORY = {"activation_bytes": (1, 1), "free_memory_bytes": (0, 0)}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"num_stages": 0}, "num_stages"),
        ({"num_stages": MAX_STAGES + 1, "num_ranks": MAX_RANKS}, "num_stages"),
        ({"num_microbatches": 0}, "num_microbatches"),
        ({"num_microbatches": -(10**5000)}, "num_microbatches"),
        ({"num_microbatches": MAX_MICROBATCHES + 1}, "num_microbatches"),
        ({"num_ranks": 1}, "num_ranks"),
        ({"num_ranks": MAX_RANKS + 1}, "num_ranks"),
        ({"schedule": "x" * 257}, "schedule"),
        ({"target": "\ud800"}, "target"),
        ({"blocking_power_w": None}, "blocking_power_w"),
        ({"blocking_power_w": ()}, "blocking_power_w"),
        ({"blocking_power_w": (1.0, 2.0, 3.0)}, "blocking_power_w"),
        ({"blocking_power_w": (float("nan"),)}, "blocking_power_w"),
        ({"blocking_power_w": (float("inf"),)}, "blocking_power_w"),
        ({"blocking_power_w": (-1.0,)}, "blocking_power_w"),
        ({"activation_bytes": (1, 1)}, "free_memory_bytes"),
        ({"free_memory_bytes": (1, 1)}, "activation_bytes"),
        ({**MEMORY, "activation_bytes": (1, 1, 1)}, "activation_bytes"),
        ({**MEMORY, "activation_bytes": (0, 1)}, "activation_bytes"),
        ({**MEMORY, "free_memory_bytes": (0, -1)}, "free_memory_bytes"),
        ({**MEMORY, "free_memory_bytes": (0, 2**53)}, "free_memory_bytes"),
        ({"schedule": "explicit", "order": ()}, "order"),
        ({"schedule": "explicit", "order": (ONE,) * 3}, "order"),
        ({"virtual_stages": ((0,), (1,))}, "virtual_stages"),
    ],
)
def test_a_job_out_of_bounds_names_its_field(changes: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        job_record(registered=job_spec(**changes))
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")
    assert "\n" not in str(caught.value)


def test_the_bounds_themselves_are_allowed() -> None:
    job_spec(num_stages=1, num_ranks=1, num_microbatches=1, blocking_power_w=(0.0,))
    job_spec(num_stages=MAX_STAGES, num_ranks=MAX_RANKS, num_microbatches=MAX_MICROBATCHES)
    job_spec(blocking_power_w=(1.0, 2.0), **MEMORY)


@pytest.mark.parametrize("job_id", ["", "a" * 129, "a b", "a/b", "ä", "a\n", "a\0"])
def test_a_job_name_that_would_not_survive_a_path_is_refused(job_id: str) -> None:
    with pytest.raises(InvalidFieldError, match="job_id"):
        job_record(job_id)


@pytest.mark.parametrize("job_id", ["a", "a" * 128, "Az09._-"])
def test_a_plain_job_name_is_allowed(job_id: str) -> None:
    assert job_record(job_id).job_id == job_id


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"rank": -1}, "rank"),
        ({"stage": MAX_STAGES}, "stage"),
        ({"dp_rank": -1}, "dp_rank"),
        ({"tp_rank": MAX_RANKS}, "tp_rank"),
        ({"cp_rank": -1}, "cp_rank"),
        ({"host": "a\0b"}, "host"),
        ({"gpu_name": "x" * 257}, "gpu_name"),
        ({"acknowledged_version": 0}, "version"),
        ({"current_step": -1}, "current_step"),
        ({"current_step": 2**53}, "current_step"),
    ],
)
def test_a_rank_out_of_bounds_names_its_field(changes: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        rank_record(0).evolve(**changes)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"step": -1}, "step"),
        ({"plan_version": 0}, "plan_version"),
        ({"time_s": -0.1}, "time_s"),
        ({"time_s": float("inf")}, "time_s"),
        ({"energy_j": float("nan")}, "energy_j"),
        ({"time_s": 1e200}, "time_s"),
        ({"energy_j": 1e308}, "energy_j"),
        ({"num_unplanned": -1}, "num_unplanned"),
        ({"num_overruns": -1}, "num_overruns"),
    ],
)
def test_a_step_out_of_bounds_names_its_field(changes: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        step_record().evolve(**changes)
    assert caught.value.field == field


def test_a_job_moves_only_where_the_table_lets_it() -> None:
    refused = {
        # What is over comes back as anything; nothing ends that had expired.
        (JobState.ENDED, JobState.ENDED),
        (JobState.EXPIRED, JobState.EXPIRED),
        (JobState.EXPIRED, JobState.ENDED),
        (JobState.AWAITING_PROFILE, JobState.AWAITING_PROFILE),
        (JobState.PLANNED, JobState.AWAITING_PROFILE),
        # Profiling begins where there is no profile, and once.
        (JobState.PROFILING, JobState.AWAITING_PROFILE),
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


@pytest.mark.parametrize(
    "changes",
    [
        {"by_clock": (("forward", 0, 1410, 1, 1e10, 0.0),)},
        {"by_clock": (("forward", 0, 1410, 1, 0.1, 1e200),)},
        {"instructions": (("forward", 0, 0, 0.0, 1e10, 0.0, 0.0),)},
    ],
)
def test_what_an_instruction_cannot_have_taken_names_its_field(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidFieldError, match="must be at most") as caught:
        StepDetail(job_id="job", rank=0, step=1).evolve(**changes)
    assert caught.value.field == next(iter(changes))
