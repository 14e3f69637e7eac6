"""The newest steps of a job as they are kept for live events."""

from __future__ import annotations

import pytest
from tests.planner.samples import CountingPlanner, Services, job_record, job_spec, rank_record
from tests.planner.samples import step_record as measured

from flyball_server.jobs.measurements.pruning import most_steps
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.step_records import StepRecord
from flyball_server.views import stage_steps
from flyball_server.views.stage_steps import (
    RENEWAL_S,
    StepWindow,
    WindowStep,
    settled_step,
)
from flyball_wire.read_models import StagesOfStep


class Clock:
    """Monotonic seconds, moved by hand."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def services() -> JobServices:
    made = Services(CountingPlanner()).jobs
    with made.store.writing("job") as writer:
        writer.save_job(job_record())
        for rank in (0, 1):
            writer.save_ranks([rank_record(rank)])
    return made


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def window(clock: Clock) -> StepWindow:
    return StepWindow(rendered, clock=clock)


def rendered(summary: StagesOfStep) -> bytes:
    return f"{summary.step}: {summary.num_ranks} ranks, {summary.energy_j} J".encode()


def post(services: JobServices, *steps: StepRecord) -> None:
    with services.store.writing("job") as writer:
        writer.save_steps(steps)


def read(window: StepWindow, services: JobServices) -> tuple[WindowStep, ...]:
    with services.store.reading() as reader:
        return window.read(reader, reader.require_job("job"))


def numbers(steps: tuple[WindowStep, ...]) -> list[int]:
    return [each.step for each in steps]


def test_changed_steps_have_new_revisions(services: JobServices, window: StepWindow) -> None:
    assert read(window, services) == ()
    post(services, measured(0, 0), measured(1, 0))
    first = read(window, services)
    assert [(each.step, each.revision, each.is_complete) for each in first] == [
        (0, 1, False),
        (1, 2, False),
    ]
    assert read(window, services) is first
    post(services, measured(0, 1))
    second = read(window, services)
    assert [(each.step, each.revision, each.is_complete) for each in second] == [
        (0, 3, True),
        (1, 2, False),
    ]
    assert second[0].rendered == b"0: 2 ranks, 200.0 J"
    # Complete steps before any that is not are settled.
    assert (settled_step(()), settled_step(first), settled_step(second)) == (-1, -1, 0)


def test_late_posts_are_read(services: JobServices, window: StepWindow, clock: Clock) -> None:
    post(services, *(measured(step, rank) for step in range(3) for rank in (0, 1)))
    read(window, services)
    post(services, measured(1, 0, energy_j=50.0))
    clock.now_s = RENEWAL_S - 1
    assert read(window, services)[1].rendered == b"1: 2 ranks, 200.0 J"
    clock.now_s = RENEWAL_S
    renewed = read(window, services)
    assert renewed[1].rendered == b"1: 2 ranks, 150.0 J"
    assert [each.revision for each in renewed] == [1, 4, 3]


@pytest.fixture
def few_per_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between renewals three steps of two ranks are read."""
    monkeypatch.setattr(stage_steps, "_MEASUREMENTS_PER_READ", 6)
    monkeypatch.setattr(stage_steps, "_FEWEST_STEPS_PER_READ", 1)


@pytest.mark.usefixtures("few_per_read")
def test_where_more_steps_came_than_a_look_reads_none_is_left_out_but_the_oldest(
    services: JobServices, window: StepWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage_steps, "KEPT_STEPS", 15)
    for last in (2, 5, 9, 20):
        post(services, *(measured(step, rank) for step in range(last) for rank in (0, 1)))
        found = read(window, services)
        assert numbers(found) == [*range(max(0, last - 15), last)]
        assert settled_step(found) == last - 1


@pytest.mark.usefixtures("few_per_read")
def test_between_renewals_only_the_newest_steps_after_the_complete_ones_are_read(
    services: JobServices, window: StepWindow, clock: Clock
) -> None:
    """Rank 1 is slow: of the many steps that wait for it the newest are read."""
    post(services, *(measured(step, 0) for step in range(5)))
    read(window, services)
    post(services, measured(5, 0), *(measured(step, 1) for step in range(6)))
    found = read(window, services)
    assert numbers(found) == [*range(6)]
    assert [each.is_complete for each in found] == [False] * 3 + [True] * 3
    assert settled_step(found) == -1
    clock.now_s = RENEWAL_S
    assert settled_step(read(window, services)) == 5


def test_another_run_begins_with_nothing(services: JobServices, window: StepWindow) -> None:
    post(services, *(measured(step, rank) for step in range(5) for rank in (0, 1)))
    read(window, services)
    with services.store.writing("job") as writer:
        writer.delete_job("job")
        writer.save_job(job_record(seconds_later=60))
        for rank in (0, 1):
            writer.save_ranks([rank_record(rank)])
    assert read(window, services) == ()
    # The very same figures are news all the same.
    post(services, measured(0, 0), measured(0, 1))
    assert [(each.step, each.revision) for each in read(window, services)] == [(0, 6)]


@pytest.mark.parametrize(
    ("num_ranks", "num_stages", "expected"),
    [(2, 2, 200), (327, 8, 200), (328, 8, 199), (4096, 64, 16), (100_000, 64, 1), (256, 256, 64)],
)
def test_answers_are_bounded_by_ranks(num_ranks: int, num_stages: int, expected: int) -> None:
    spec = job_spec(num_ranks=num_ranks, num_stages=num_stages)
    found = most_steps(
        spec,
        stage_steps.KEPT_STEPS,
        num_measurements=stage_steps.KEPT_MEASUREMENTS,
        num_stages=stage_steps.KEPT_STAGES,
    )
    assert found == expected
