"""Steps of a job, made of what its ranks measured."""

from __future__ import annotations

import pytest
from tests.planner.one_rank import register_rank, store_measurements
from tests.planner.samples import CountingPlanner, Services, job_spec, rank_record, step_record
from tests.planner.use_cases import register_job

from flyball_server.jobs.job_state import JobState
from flyball_server.jobs.measurements.measurements import (
    FEWEST_KEPT_STEPS,
    KEPT_DETAILS,
    KEPT_DETAILS_OF_PROFILING,
    KEPT_INSTRUCTIONS,
    list_steps,
)
from flyball_server.jobs.records import StepDetail
from flyball_wire.messages import JobStep


@pytest.fixture
def services() -> Services:
    made = Services(CountingPlanner())
    register_job(made.jobs, "job", job_spec())
    for rank in (0, 1):
        register_rank(made.jobs, rank_record(rank))
    return made


def test_a_step_has_the_longest_time_and_the_sum_of_energies(services: Services) -> None:
    fast = step_record(4, 0, time_s=0.5, energy_j=10.0, plan_version=1, num_unplanned=1)
    slow = step_record(
        4, 1, time_s=0.75, energy_j=20.5, plan_version=1, num_overruns=2, num_clock_misses=3
    )
    store_measurements(services.jobs, "job", 0, [fast])
    store_measurements(services.jobs, "job", 1, [slow])
    assert list_steps(services.jobs, "job", limit=10) == (
        JobStep(
            step=4,
            num_ranks=2,
            plan_versions=(1,),
            time_s=0.75,
            energy_j=30.5,
            num_unplanned=1,
            num_overruns=2,
            num_clock_misses=3,
            num_power_capped=0,
            num_thermally_capped=0,
        ),
    )


def test_a_mixed_step_shows_its_versions_default_clocks_first(services: Services) -> None:
    store_measurements(services.jobs, "job", 0, [step_record(0, 0, plan_version=2)])
    store_measurements(services.jobs, "job", 1, [step_record(0, 1, plan_version=None)])
    assert list_steps(services.jobs, "job", limit=1)[0].plan_versions == (None, 2)


def test_the_energy_is_unknown_where_one_rank_could_not_read_it(services: Services) -> None:
    store_measurements(services.jobs, "job", 0, [step_record(0, 0)])
    store_measurements(services.jobs, "job", 1, [step_record(0, 1, energy_j=None)])
    assert list_steps(services.jobs, "job", limit=1)[0].energy_j is None


def post_instructions(services: Services, rank: int, steps: range, num_instructions: int) -> None:
    forward = ("forward", None, 0, 0.0, 0.1, 0.2, 0.3)
    details = [
        StepDetail(job_id="job", rank=rank, step=step, instructions=(forward,) * num_instructions)
        for step in steps
    ]
    store_measurements(
        services.jobs, "job", rank, [step_record(step, rank) for step in steps], details
    )


def kept_steps(services: Services, rank: int) -> list[int]:
    with services.jobs.store.reading() as reader:
        return [each.step for each in reader.list_step_details("job", 0) if each.rank == rank]


def test_a_first_post_drops_no_step_of_another_rank(services: Services) -> None:
    for begin in (0, 100):
        for rank in (0, 1):
            post_instructions(services, rank, range(begin, begin + 100), 4)
    assert kept_steps(services, 0) == kept_steps(services, 1) == list(range(200))


def test_of_steps_with_many_instructions_only_the_newest_are_kept(services: Services) -> None:
    num_instructions = KEPT_INSTRUCTIONS // FEWEST_KEPT_STEPS
    for rank in (0, 1):
        post_instructions(services, rank, range(50), num_instructions)
    newest = list(range(50 - FEWEST_KEPT_STEPS, 50))
    assert kept_steps(services, 0) == kept_steps(services, 1) == newest


@pytest.mark.parametrize(
    ("state", "num_kept"),
    [(JobState.PLANNED, KEPT_DETAILS), (JobState.PROFILING, KEPT_DETAILS_OF_PROFILING)],
)
def test_the_newest_steps_are_kept(services: Services, state: JobState, num_kept: int) -> None:
    with services.jobs.store.writing("job") as writer:
        job = writer.find_job("job")
        assert job is not None
        writer.save_job(job.evolve(state=state))
    details = [
        StepDetail(job_id="job", rank=0, step=step, by_clock=(("forward", 0, 1410, 1, 0.1, 0.0),))
        for step in range(num_kept + 9)
    ]
    store_measurements(services.jobs, "job", 0, [], details)
    assert kept_steps(services, 0) == list(range(9, num_kept + 9))
