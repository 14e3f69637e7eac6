"""Steps by stages over HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.planner.live import LivePlanner, live_planner
from tests.planner.samples import rank_record, step_record

from flyball_server.views import stage_steps
from flyball_wire import routes
from flyball_wire.codec import decode_list
from flyball_wire.read_models import StagesOfStep

PATH = routes.fill(routes.STAGES_OF_STEPS, job_id="job")


@pytest.fixture
def planner() -> Iterator[LivePlanner]:
    """With a job of two stages, two ranks each."""
    with live_planner() as live:
        live.put_job(num_ranks=4).raise_for_status()
        with live.state.services.store.writing("job") as writer:
            for rank in range(4):
                writer.save_ranks([rank_record(rank, stage=rank // 2, dp_rank=rank % 2)])
        yield live


def steps(planner: LivePlanner, **query: int) -> tuple[StagesOfStep, ...]:
    answer = planner.http.get(PATH, params=query).raise_for_status()
    return decode_list(StagesOfStep, answer.json())


def test_a_step_is_told_by_stages_and_as_a_whole(planner: LivePlanner) -> None:
    planner.put_profile().raise_for_status()
    planner.post_steps(0, 0, time_s=1.5, num_clock_misses=3, num_power_capped=2)
    planner.post_steps(
        1, 0, time_s=1.25, plan_version=1, num_clock_misses=1, num_thermally_capped=1
    )
    planner.post_steps(2, 0, time_s=1.75, energy_j=None)
    (step,) = steps(planner)
    assert (step.step, step.num_ranks, step.plan_versions) == (0, 3, (None, 1))
    assert (step.time_s, step.energy_j) == (1.75, None)
    first, second = step.stages
    assert (first.stage, first.num_ranks, first.time_s, first.energy_j) == (0, 2, 1.5, 200.0)
    capped = (first.num_clock_misses, first.num_power_capped, first.num_thermally_capped)
    assert capped == (4, 2, 1)
    assert (second.stage, second.num_ranks, second.energy_j) == (1, 1, None)
    whole = planner.http.get(routes.fill(routes.STEPS, job_id="job")).json()[0]
    for name in ("step", "num_ranks", "time_s", "energy_j"):
        assert getattr(step, name) == whole[name], name
    assert list(step.plan_versions) == whole["plan_versions"]


def test_the_newest_steps_come_rising_and_no_more_than_one_answer_holds(
    planner: LivePlanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    with planner.state.services.store.writing("job") as writer:
        writer.save_steps(tuple(step_record(step, 0) for step in range(20)))

    def numbers(**query: int) -> list[int]:
        return [step.step for step in steps(planner, **query)]

    assert numbers(limit=2) == [18, 19]
    assert numbers(limit=2, after_step=18) == [19]
    assert numbers(after_step=19) == numbers(after_step=10**9) == []
    assert numbers(after_step=-1) == list(range(20))
    for bound, held, first in (
        ("MOST_STAGES", 12, 14),
        ("MOST_MEASUREMENTS", 8, 18),
        ("MOST_MEASUREMENTS", 3, 19),
    ):
        monkeypatch.setattr(stage_steps, bound, held)
        assert numbers() == list(range(first, 20))
