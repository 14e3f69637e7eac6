"""Where ranks stand in data, tensor and context parallelism, as the planner takes and keeps it."""

from __future__ import annotations

import pytest
from tests.planner.one_rank import acknowledge, newer_plan, register_rank, store_measurements
from tests.planner.samples import (
    CountingPlanner,
    Services,
    job_spec,
    profile,
    rank_record,
    step_record,
)
from tests.planner.use_cases import put_profile, register_job

from flyball_server.jobs.errors import InvalidFieldError
from flyball_server.jobs.measurements.measurements import list_steps
from flyball_server.jobs.records import MAX_RANKS

FIELDS = ("dp_rank", "tp_rank", "cp_rank")


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", [-1, MAX_RANKS])
def test_a_place_out_of_bounds_names_its_field(field: str, value: int) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        rank_record(0).evolve(**{field: value})
    assert caught.value.field == field


@pytest.mark.parametrize("field", FIELDS)
def test_a_place_that_the_jobs_ranks_cannot_have_is_refused(field: str) -> None:
    services = Services(CountingPlanner())
    # Two stages of 4 ranks in all: one stage may have up to 3.
    register_job(services.jobs, "job", job_spec(num_ranks=4))
    register_rank(services.jobs, rank_record(1).evolve(**{field: 2}))
    with pytest.raises(InvalidFieldError, match=f"{field}: must be 0 to 2, not 3"):
        register_rank(services.jobs, rank_record(1).evolve(**{field: 3}))


def test_energies_of_all_ranks_of_a_stage_are_summed_and_the_slowest_counts() -> None:
    services = Services(CountingPlanner())
    register_job(services.jobs, "job", job_spec(num_ranks=4))
    for rank in range(4):
        place = rank_record(rank, stage=rank // 2, dp_rank=rank % 2, host=f"node-{rank // 2}")
        register_rank(services.jobs, place)
        measured = step_record(0, rank, time_s=1.0 + 0.25 * rank, energy_j=100.0 * 2**rank)
        store_measurements(services.jobs, "job", rank, [measured])
    (step,) = list_steps(services.jobs, "job", limit=1)
    assert (step.num_ranks, step.time_s, step.energy_j) == (4, 1.75, 1500.0)


def test_a_plan_waits_for_all_ranks_of_a_stage_and_is_the_same_for_them() -> None:
    services = Services(CountingPlanner())
    register_job(services.jobs, "job", job_spec(num_ranks=4))
    for rank in range(4):
        register_rank(services.jobs, rank_record(rank, stage=rank // 2, dp_rank=rank % 2))
    put_profile(services.jobs, "job", profile())
    plans = [newer_plan(services.jobs, "job", rank, after_version=0) for rank in range(4)]
    assert [plan.stage for plan in plans if plan is not None] == [0, 0, 1, 1]
    assert len({plan.version for plan in plans if plan is not None}) == 1
    named = [
        acknowledge(services.jobs, "job", rank, version=1, current_step=5).first_step
        for rank in range(4)
    ]
    assert named[:3] == [None, None, None]
    assert named[3] is not None
