"""From which step a plan version holds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.planner.one_rank import acknowledge, get_first_step, newer_plan, register_rank
from tests.planner.samples import CountingPlanner, Services, job_spec, profile, rank_record
from tests.planner.use_cases import put_profile, register_job

from flyball_server.jobs.registry.inspection import get_job, list_plans
from flyball_server.jobs.step_records import StepDetail
from flyball_server.jobs.versions.plan_versions import margin_steps
from flyball_wire.measurements import MeasurementDetail
from flyball_wire.messages import PlanVersion

pytestmark = pytest.mark.slow


@pytest.fixture
def services() -> Services:
    """Two ranks and plan version 1, of 0.4 s an iteration: a margin of 2 + 3 steps."""
    return planned_services()


def planned_services(num_ranks: int = 2, num_registered: int | None = None) -> Services:
    made = Services(CountingPlanner(iteration_time_s=0.4))
    register_job(made.jobs, "job", job_spec(num_ranks=num_ranks))
    put_profile(made.jobs, "job", profile())
    for rank in range(num_ranks if num_registered is None else num_registered):
        register_rank(made.jobs, rank_record(rank, stage=rank % 2, dp_rank=rank // 2))
    made.woken.clear()
    return made


def first_step(services: Services, rank: int, version: int, current_step: int) -> int | None:
    return acknowledge(
        services.jobs, "job", rank, version=version, current_step=current_step
    ).first_step


def make_version(services: Services, version: int) -> None:
    newest = put_profile(services.jobs, "job", profile(forward_energy_j=30.0 + version))
    assert newest.newest_version == version
    services.woken.clear()


def test_the_last_acknowledgement_names_the_first_step() -> None:
    services = planned_services(num_ranks=3, num_registered=2)
    assert first_step(services, 0, 1, 6) is None
    assert first_step(services, 0, 1, 7) is None
    assert first_step(services, 1, 1, 5) is None
    assert get_first_step(services.jobs, "job", 1).first_step is None
    assert services.woken == []
    # All ranks of the job are awaited, not only those registered.
    register_rank(services.jobs, rank_record(2, stage=0, dp_rank=1))
    assert first_step(services, 2, 1, 5) == 7 + 5
    assert get_first_step(services.jobs, "job", 1) == PlanVersion(version=1, first_step=12)
    assert services.woken == ["job"]
    assert get_job(services.jobs, "job").active_version == 1


def test_an_older_acknowledgement_takes_nothing_back_nor_does_a_former_run_hold_back_a_version(
    services: Services,
) -> None:
    first_step(services, 0, 1, 100)
    assert first_step(services, 1, 1, 100) == 105
    make_version(services, 2)
    for rank in (0, 1):
        register_rank(services.jobs, rank_record(rank))
    first_step(services, 0, 2, 4)
    first_step(services, 0, 1, 2)
    assert get_job(services.jobs, "job").ranks[0].current_step == 4
    assert first_step(services, 1, 2, 0) == 9


def restart(services: Services, rank: int, current_step: int) -> None:
    """A rank as its session does it: registers, takes each newer plan, acknowledges it."""
    register_rank(services.jobs, rank_record(rank, stage=rank % 2, dp_rank=rank // 2))
    follow(services, rank, 0, current_step)


def follow(services: Services, rank: int, after_version: int, current_step: int) -> int:
    """Return what a session that has this version does next; the version that it has then."""
    while found := newer_plan(services.jobs, "job", rank, after_version=after_version):
        after_version = found.version
        first_step(services, rank, after_version, current_step)
    return after_version


@pytest.mark.parametrize("resumed_at", [0, 89_900, 90_000, 90_005, 200_000])
def test_a_run_that_starts_over_gets_a_new_version_unless_it_resumes_near_the_step(
    services: Services, resumed_at: int
) -> None:
    first_step(services, 0, 1, 90_000)
    assert first_step(services, 1, 1, 90_000) == 90_005
    for rank in (0, 1):
        restart(services, rank, resumed_at)
    old, *new = list_plans(services.jobs, "job")
    assert old.first_step == 90_005
    if resumed_at >= 90_000:
        assert new == []
        return
    follow(services, 0, 1, resumed_at + 1)  # it heard of version 1 before the other registered
    [again] = list_plans(services.jobs, "job")[1:]
    assert (again.version, again.plan) == (2, old.plan)
    assert again.first_step == resumed_at + 1 + 5


def test_a_run_of_one_rank_that_starts_over_is_woken_for_its_new_version() -> None:
    services = Services(CountingPlanner(iteration_time_s=0.4))
    register_job(services.jobs, "job", job_spec(num_stages=1, num_ranks=1))
    put_profile(services.jobs, "job", profile(1))
    restart(services, 0, 90_000)
    services.woken.clear()
    register_rank(services.jobs, rank_record(0))
    assert first_step(services, 0, 1, 0) == 90_005
    assert services.woken == ["job"]
    assert follow(services, 0, 1, 0) == 2
    assert get_first_step(services.jobs, "job", 2).first_step == 5


@settings(max_examples=8)
@given(st.integers(0, 10**6), st.integers(0, 10**6), st.permutations([0, 0, 0, 1, 1, 1, 2, 2, 2]))
def test_restarted_runs_get_a_near_step(ran_to: int, resumed_at: int, locks: list[int]) -> None:
    services = planned_services(num_ranks=3)
    for rank in range(3):
        first_step(services, rank, 1, ran_to)
    held: dict[int, int] = {}
    for rank in (*locks, 0, 1, 2):
        if rank in held:
            held[rank] = follow(services, rank, held[rank], resumed_at)
        else:
            register_rank(services.jobs, rank_record(rank, stage=rank % 2, dp_rank=rank // 2))
            held[rank] = 0
    newest = list_plans(services.jobs, "job")[-1]
    assert set(held.values()) == {newest.version}
    assert newest.first_step is not None
    assert newest.first_step <= resumed_at + 5


def test_a_repeated_acknowledgement_does_not_start_the_run_over(services: Services) -> None:
    for rank in (0, 1):
        first_step(services, rank, 1, 2)
    for rank in (0, 1, 0):
        first_step(services, rank, 1, 900)
    for rank in (0, 1):
        assert first_step(services, rank, 1, 1) == 7
    assert [rank.current_step for rank in get_job(services.jobs, "job").ranks] == [900, 900]
    assert len(list_plans(services.jobs, "job")) == 1


@pytest.mark.parametrize(
    ("iteration_time_s", "steps"),
    [
        (10.0, 3),
        (1.0, 3),
        (0.999, 4),
        (0.4, 5),
        (0.021, 50),
        (0.001, 50),
        (1e-300, 50),
        (5e-324, 50),
    ],
)
def test_the_margin_is_a_second_within_bounds(iteration_time_s: float, steps: int) -> None:
    assert margin_steps(iteration_time_s) == steps


ACKNOWLEDGEMENTS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 3), st.integers(0, 50), st.sampled_from("aaar")),
    max_size=25,
)


@settings(max_examples=8)
@given(ACKNOWLEDGEMENTS)
def test_versions_get_first_steps_in_order(events: list[tuple[int, int, int, str]]) -> None:
    services = planned_services(num_ranks=3)
    make_version(services, 2)
    make_version(services, 3)
    named: dict[int, int] = {}
    for rank, version, step, kind in events:
        if kind == "r":
            register_rank(services.jobs, rank_record(rank, stage=rank % 2, dp_rank=rank // 2))
            continue
        answer = first_step(services, rank, version, step)
        if answer is None:
            continue
        if version in named:
            assert answer == named[version]
            continue
        assert all(version > other for other in named)
        ranks = get_job(services.jobs, "job").ranks
        assert all(record.acknowledged_version == version for record in ranks)
        assert all(answer > (record.current_step or 0) for record in ranks)
        named[version] = answer


def test_a_version_that_asks_for_totals_drops_details(services: Services) -> None:
    def kept() -> list[int]:
        with services.jobs.store.reading() as reader:
            return [detail.step for detail in reader.list_step_details("job", 0)]

    with services.jobs.store.writing("job") as writer:
        plan = writer.find_plan("job", 1)
        assert plan is not None
        writer.add_plan(plan.evolve(version=2, measurement_detail=MeasurementDetail.CLOCKS))
        writer.save_step_details(tuple(StepDetail(job_id="job", rank=0, step=s) for s in range(9)))
    for rank in (0, 1):
        first_step(services, rank, 2, 8)
    assert kept() == list(range(9))
    make_version(services, 3)
    assert first_step(services, 0, 3, 8) is None
    assert kept() == list(range(9))
    assert first_step(services, 1, 3, 8) == 13
    assert kept() == []
