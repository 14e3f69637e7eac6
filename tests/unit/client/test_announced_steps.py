"""A session whose steps are announced: hooks, helper and measurements, one rank alone."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Sequence

import pytest
from tests.planner.hostile import hostile_planner
from tests.planner.patience import PATIENCE_S
from tests.unit.client.memory_planner import MemoryPlanner, SessionMaker, compiled_plan
from tests.unit.client.recording_gpu import RESET, RecordingGpu
from tests.unit.client.step_parts import HEAVY, LIGHT, part_of_stage
from tests.unit.client.test_rank_session import run_until_active, wait_until
from tests.unit.client.test_session_and_served_planner import served
from tests.unit.client.tiny_profile import HandClock

from flyball_client.api.planner_client import PlannerClient
from flyball_client.helper.link import _Shared
from flyball_client.session.rank_session import RankSession
from flyball_wire.measurements import StepMeasurement

Work = list[list[int]]
PART = part_of_stage(0, 1, deadline_ratio=1.25)
ROWS = [(PART.kinds[kind], microbatch) for kind, microbatch, *_ in PART.instructions]


def publish(planner: MemoryPlanner) -> int:
    """Publish a version whose steps have plans of their own, from step 0 on."""
    rows = [(kind, microbatch, 1400) for kind, microbatch in ROWS]
    version = planner.publish(*rows, pipeline=PART.pipeline)
    planner.name_first_step(version, 0)
    return version


def planning_session(
    planner: MemoryPlanner,
    gpu: RecordingGpu,
    make_session: SessionMaker,
    client: PlannerClient | None = None,
) -> RankSession:
    """Start a session that plans its steps, and publish a version for them."""
    session = make_session(gpu, planner=client or planner.client())
    session.plan_steps()
    session.start()
    publish(planner)
    return session


@pytest.fixture
def session(planner: MemoryPlanner, gpu: RecordingGpu, make_session: SessionMaker) -> RankSession:
    return planning_session(planner, gpu, make_session)


class Listening:
    """Agreement of a pipeline's only rank that gathers all the same, and hears what that says."""

    greatest = None

    def __init__(self, hear: Callable[..., object]) -> None:
        self._hear = hear

    def gather(self, message: bytes) -> Listening:
        self._hear(*json.loads(message.partition(b"\n")[0]))
        self._messages = [message]
        return self

    def result(self) -> list[bytes]:
        return self._messages

    def close(self) -> None:
        pass


def run_step(
    session: RankSession,
    next_work: Work | None = None,
    rows: Sequence[tuple[str, int]] = tuple(ROWS),
    pause_s: float = 0.02,
) -> None:
    """Run a step that is long enough for the next one's exchange, where that has work."""
    session.on_step_begin()
    if next_work is not None:
        session.announce_step(next_work)
        time.sleep(pause_s)
    for kind, microbatch in rows:
        session.on_instruction_begin(kind, microbatch=microbatch)
        session.on_instruction_end(kind, microbatch=microbatch)
    session.on_step_end()


def train_until(
    session: RankSession,
    works: Callable[[int], Work],
    is_so: Callable[[], bool],
    rows: Callable[[int], Sequence[tuple[str, int]]] = lambda _: ROWS,
) -> None:
    """Train until it is so; the works and rows of steps are given by a step's number.

    Steps take longer and longer, so that their exchanges are in time on any machine.
    """
    give_up_s, pause_s = time.monotonic() + PATIENCE_S, 0.02
    while not is_so():
        assert time.monotonic() < give_up_s
        run_step(session, works(session.current_step), rows(session.current_step), pause_s)
        pause_s = min(1.05 * pause_s, 1.0)


def with_plan(planner: MemoryPlanner) -> list[StepMeasurement]:
    return [each for each in planner.measurements.values() if each.step_plan is not None]


def test_a_light_step_runs_at_lower_clocks_than_a_heavy_one_and_says_so(
    planner: MemoryPlanner, gpu: RecordingGpu, session: RankSession
) -> None:
    train_until(
        session,
        lambda step: LIGHT if step % 2 else HEAVY,
        lambda: len(with_plan(planner)) >= 6,
    )
    metrics = session.metrics(prefix="")
    session.close()
    assert metrics["total_num_steps_with_own_plan"] >= 6
    assert metrics["total_planned_saving_j"] > 0
    assert gpu.told[-1] == RESET
    assert {900, 1200} & set(gpu.told)
    for each in with_plan(planner):
        assert each.work is not None
        assert each.step_plan is not None
        slack, lowest_mhz, highest_mhz, saved_j = each.step_plan
        assert slack == pytest.approx(0.2)
        assert lowest_mhz in {900, 1200}
        assert lowest_mhz <= highest_mhz <= 1400
        assert saved_j > 0
    # The first steps, which had no plan yet, have work all the same.
    assert planner.measurements[1].work is not None


def test_a_step_that_left_its_plan_reports_none_of_its_own(
    planner: MemoryPlanner, session: RankSession
) -> None:
    train_until(
        session,
        lambda _: LIGHT,
        lambda: len(with_plan(planner)) >= 4,
        rows=lambda step: [*ROWS, ROWS[0]] if step % 2 else ROWS,
    )
    session.close()
    assert not any(each.step % 2 for each in with_plan(planner))


def test_a_step_in_which_the_governor_gave_up_reports_no_plan_of_its_own(
    planner: MemoryPlanner, gpu: RecordingGpu, session: RankSession
) -> None:
    # The first clock of a step with a plan of its own is a lower one.
    train_until(
        session,
        lambda _: LIGHT,
        lambda: bool(with_plan(planner)) and gpu.told[-1] != 1400,
    )
    step = session.current_step
    session.on_step_begin()
    session._governor.give_up(RuntimeError("its GPU is gone"))
    for kind, microbatch in ROWS:
        session.on_instruction_begin(kind, microbatch=microbatch)
        session.on_instruction_end(kind, microbatch=microbatch)
    session.on_step_end()
    session.close()
    assert planner.measurements[step].work is not None
    assert planner.measurements[step].step_plan is None


@pytest.mark.slow
def test_a_helper_that_is_killed_plans_steps_again_once_it_is_back(
    planner: MemoryPlanner, gpu: RecordingGpu, make_session: SessionMaker
) -> None:
    with (
        hostile_planner(lambda _, request: served(planner, request)) as server,
        PlannerClient(server.url) as client,
    ):
        session = planning_session(planner, gpu, make_session, client)
        train_until(session, lambda _: LIGHT, lambda: len(with_plan(planner)) >= 3)
        link = _Shared.link
        assert link is not None
        assert link._process is not None
        os.kill(link._process._pid, signal.SIGKILL)
        killed_at = session.current_step
        train_until(
            session,
            lambda _: LIGHT,
            lambda: sum(each.step > killed_at + 5 for each in with_plan(planner)) >= 3,
        )
        session.close()


def test_an_announced_step_of_another_number_of_microbatches_runs_the_plan_for_that(
    planner: MemoryPlanner, gpu: RecordingGpu, make_session: SessionMaker
) -> None:
    three = [[4, 3], [5], [2]]
    session = planning_session(planner, gpu, make_session)
    train_until(session, lambda _: LIGHT, lambda: len(with_plan(planner)) >= 2)
    part = part_of_stage(0, 1, num_microbatches=3, deadline_ratio=1.25)
    rows = [(part.kinds[kind], microbatch) for kind, microbatch, *_ in part.instructions]
    version = planner.publish(*[(*row, 1400) for row in rows], pipeline=part.pipeline)
    planner.name_first_step(version, 0)
    works = {step: three for step in range(session.current_step + 1, 10_000) if step % 3 == 0}

    def planned_versions() -> dict[int, int | None]:
        return {each.step: each.plan_version for each in with_plan(planner)}

    train_until(
        session,
        lambda step: works.get(step + 1, LIGHT),
        lambda: sum(found == version for found in planned_versions().values()) >= 4,
        rows=lambda step: rows if step in works else ROWS,
    )
    session.close()
    for step, found in planned_versions().items():
        assert found == (version if step in works else 1)


def test_the_plan_of_the_steps_number_of_microbatches_is_named_to_the_other_ranks(
    gpu: RecordingGpu, make_session: SessionMaker
) -> None:
    said: dict[int, list[object]] = {}

    def hear(step: int, *plans_and_more: object) -> None:
        said[step] = list(plans_and_more[:2])

    session = make_session(gpu, planner=None)
    session.plan_steps(Listening(hear))
    session.start()
    part = part_of_stage(0, 1, num_microbatches=3)
    three = [(part.kinds[kind], microbatch) for kind, microbatch, *_ in part.instructions]
    two_plan, three_plan = (
        compiled_plan(
            *[(*row, 1400) for row in rows],
            version=version,
            plan_id=f"{version}",
            pipeline=pipeline,
        )
        for version, rows, pipeline in ((1, ROWS, PART.pipeline), (2, three, part.pipeline))
    )
    session.plans.put(two_plan, 0)
    run_step(session, LIGHT)
    run_step(session, LIGHT)
    # The newest plan is for steps of three microbatches; those that run have two.
    session.plans.put(three_plan, session.current_step)
    newer = session.current_step + 1
    for _ in range(3):
        run_step(session, LIGHT)
        assert session.active_version == 1
    give_up_s = time.monotonic() + PATIENCE_S
    named: list[object] = [[1, "1"], [[3, [2, "2"]]]]
    late: list[object] = [None, []]
    while named not in said.values():
        assert time.monotonic() < give_up_s
        run_step(session, LIGHT)
    session.close()
    assert all(plans in (named, late) for step, plans in said.items() if step > newer)


@pytest.mark.parametrize("plans_steps", [True, False])
def test_a_step_without_work_or_of_a_rank_that_plans_none_runs_at_the_highest_clocks(
    planner: MemoryPlanner, gpu: RecordingGpu, make_session: SessionMaker, plans_steps: bool
) -> None:
    session = make_session(gpu)
    if plans_steps:
        session.plan_steps()
    session.start()
    rows = [(kind, microbatch, 1200) for kind, microbatch in ROWS]
    planner.name_first_step(planner.publish(*rows, pipeline=PART.pipeline), 0)
    run_until_active(session, planner, 1)
    if not plans_steps:
        session.announce_step(LIGHT)
    told = len(gpu.told)
    run_step(session)
    assert set(gpu.told[told:]) <= {1400}
    assert gpu.told[-1] == 1400


def test_work_is_announced_before_the_session_starts_and_not_after_its_end(
    planner: MemoryPlanner, gpu: RecordingGpu, make_session: SessionMaker
) -> None:
    session = make_session(gpu)
    with pytest.raises(ValueError, match=r"coupling: must be step, backward, .*, not 'steps'"):
        session.plan_steps(coupling="steps")  # type: ignore[arg-type]
    session.plan_steps()
    session.announce_step(LIGHT)
    session.start()
    with pytest.raises(RuntimeError, match="before the session starts"):
        session.plan_steps()
    time.sleep(0.05)
    run_step(session)
    wait_until(planner, lambda: 0 in planner.measurements)
    session.close()
    session.announce_step(LIGHT)
    assert planner.measurements[0].work is not None


def test_a_plan_that_was_made_before_work_was_announced_is_not_run(
    planner: MemoryPlanner, gpu: RecordingGpu, make_session: SessionMaker
) -> None:
    session = make_session(gpu)
    session.plan_steps()
    session.announce_step(LIGHT)
    session.start()
    rows = [(kind, microbatch, 1200) for kind, microbatch in ROWS]
    planner.name_first_step(planner.publish(*rows), 0)
    run_until_active(session, planner, 1)
    told = len(gpu.told)
    run_step(session, LIGHT)
    assert set(gpu.told[told:]) <= {1400}
    # The next one's planner knows of the work, and gives no step clocks of its own.
    planner.name_first_step(planner.publish(*rows), 0)
    run_until_active(session, planner, 2)
    run_step(session, LIGHT)
    assert gpu.told[-1] == 1200


def test_a_session_tells_its_pipeline_how_much_slower_than_planned_its_gpu_is(
    planner: MemoryPlanner, gpu: RecordingGpu, make_session: SessionMaker
) -> None:
    said: list[object] = []
    clock = HandClock()
    session = make_session(gpu, clock=clock.now_s)
    session.plan_steps(Listening(lambda *parts: said.append(parts[-1])))
    session.start()
    planner.name_first_step(
        planner.publish(
            *((kind, microbatch, 1400) for kind, microbatch in ROWS),
            pipeline=part_of_stage(0, 1).pipeline,
        ),
        0,
    )
    give_up_s, pause_s = time.monotonic() + PATIENCE_S, 0.02
    # Alone, all run at the highest clock; work of 1 takes 0.1 and 0.2 s there.
    while [1.25, 0.0] not in said:
        assert time.monotonic() < give_up_s
        session.on_step_begin()
        session.announce_step([1.0, 1.0])
        time.sleep(pause_s)
        pause_s = min(1.05 * pause_s, 1.0)
        for kind, microbatch in ROWS:
            session.on_instruction_begin(kind, microbatch=microbatch)
            clock.move(1.25 * (0.1 if kind == "forward" else 0.2))
            session.on_instruction_end(kind, microbatch=microbatch)
        session.on_step_end()
    assert [each for each in said if each != [1.25, 0.0]] == [[1.0, 0.0]] * (len(said) - 1)
