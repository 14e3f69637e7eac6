"""Steps of a job, made of what its ranks measured."""

from __future__ import annotations

import pytest
from tests.planner.samples import CountingPlanner, Services, job_spec, rank_record, step_record

from flyball_server.jobs.errors import UnknownJobError, UnknownRankError
from flyball_server.jobs.measurements import StepSummary, list_steps, store_measurements
from flyball_server.jobs.registration import register_job, register_rank


@pytest.fixture
def services() -> Services:
    made = Services(CountingPlanner())
    register_job(made.jobs, "job", job_spec())
    for rank in (0, 1):
        register_rank(made.jobs, rank_record(rank))
    return made


def test_a_step_takes_as_long_as_its_slowest_rank_and_the_energy_of_all(
    services: Services,
) -> None:
    fast = step_record(4, 0, time_s=0.5, energy_j=10.0, plan_version=1, num_unplanned=1)
    slow = step_record(
        4, 1, time_s=0.75, energy_j=20.5, plan_version=1, num_overruns=2, num_clock_misses=3
    )
    store_measurements(services.jobs, "job", 0, [fast])
    store_measurements(services.jobs, "job", 1, [slow])
    assert list_steps(services.jobs, "job", limit=10) == (
        StepSummary(
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


def test_the_newest_steps_are_listed_rising(services: Services) -> None:
    steps = [step_record(step, 0) for step in (3, 1, 2, 9)]
    assert store_measurements(services.jobs, "job", 0, steps) == 4
    assert [step.step for step in list_steps(services.jobs, "job", limit=3)] == [2, 3, 9]


def test_a_step_posted_again_replaces_even_within_one_batch(services: Services) -> None:
    batch = [step_record(1, 0), step_record(1, 0, time_s=3.0)]
    assert store_measurements(services.jobs, "job", 0, batch) == 1
    assert store_measurements(services.jobs, "job", 0, batch) == 1
    assert [step.time_s for step in list_steps(services.jobs, "job", limit=9)] == [3.0]


def test_an_empty_batch_stores_nothing(services: Services) -> None:
    assert store_measurements(services.jobs, "job", 0, []) == 0


def test_only_known_ranks_of_known_jobs_measure(services: Services) -> None:
    with pytest.raises(UnknownRankError):
        store_measurements(services.jobs, "job", 7, [])
    with pytest.raises(UnknownJobError):
        list_steps(services.jobs, "other", limit=1)
