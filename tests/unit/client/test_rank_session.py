from __future__ import annotations

import logging
from collections.abc import Callable
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.client.memory_planner import (
    JOB_ID,
    START_ID,
    MemoryPlanner,
    SessionMaker,
    compiled_plan,
    run_noting,
)
from tests.unit.client.recording_gpu import RESET, SUPPORTED_MHZ, RecordingGpu

from flyball_client.api.errors import PlannerUnavailableError
from flyball_client.governor.in_process import InProcessGovernor
from flyball_client.session.plan_cursor import PlanCursor
from flyball_client.session.rank_session import RankSession

PLAN = (("forward", 0, 1200), ("backward", 0, 900))

Instruction = tuple[str, int, int, int]
INSTRUCTIONS: st.SearchStrategy[Instruction] = st.tuples(
    st.sampled_from(["forward", "backward"]),
    st.integers(0, 2),
    st.integers(0, 1),
    st.sampled_from(SUPPORTED_MHZ),
)


class RecordingGovernor(InProcessGovernor):
    """Records the clocks that are requested; 0: restored."""

    def __init__(self) -> None:
        super().__init__(RecordingGpu(), "rank 0")
        self.asked_mhz: list[int] = []
        self.num_ends = 0

    def set_mhz(self, sm_clock_mhz: int) -> None:
        self.asked_mhz.append(sm_clock_mhz)

    def on_instruction_end(self, upcoming_mhz: int | None = None) -> None:
        self.num_ends += 1
        if upcoming_mhz is not None:
            self.set_mhz(upcoming_mhz)

    def pause(self) -> None:
        self.asked_mhz.append(0)


@pytest.fixture
def planned(gpu: RecordingGpu, planner: MemoryPlanner, make_session: SessionMaker) -> RankSession:
    """A session that has received the plan but has run no step of it."""
    planner.name_first_step(planner.publish(*PLAN), 0)
    session = make_session(gpu)
    session.start()
    wait_until(planner, lambda: len(session.plans) > 0)
    return session


def wait_until(planner: MemoryPlanner, is_so: Callable[[], bool]) -> None:
    """Wait until the planner's threads have made it so; give up after a long while."""
    with planner.changed:
        for _ in range(1000):
            if is_so():
                return
            planner.changed.wait(0.02)
    raise AssertionError("it never came to that")


def run_step(session: RankSession, *kinds: str) -> None:
    session.on_step_begin()
    for kind in kinds or ("forward", "backward"):
        session.on_instruction_begin(kind)
        session.on_instruction_end(kind)
    session.on_step_end()


def run_until_active(session: RankSession, planner: MemoryPlanner, version: int) -> None:
    """Train until a plan is in force; it holds at once where its first step is past."""

    def is_active() -> bool:
        run_step(session)
        return session.active_version == version

    wait_until(planner, is_active)


def test_without_a_gpu_plans_are_acknowledged_since_other_ranks_wait_and_steps_are_timed(
    planner: MemoryPlanner, make_session: SessionMaker
) -> None:
    planner.name_first_step(planner.publish(*PLAN), 0)
    with make_session(None) as session:
        wait_until(planner, lambda: len(session.plans) > 0)
        run_step(session)
    (registration,) = planner.registrations
    assert (registration.gpu_uuid, registration.sm_clocks_mhz) == ("none", None)
    assert [each.version for each in planner.acknowledgements] == [1]
    (measured,) = planner.measurements.values()
    assert measured.time_s > 0
    assert (measured.plan_version, measured.energy_j, measured.sm_clock_mhz) == (None, None, None)
    assert measured.no_clocks == "it has no GPU that can be used; its log says why"


def test_a_plan_takes_effect_at_its_first_step_and_not_before(
    gpu: RecordingGpu, planner: MemoryPlanner, make_session: SessionMaker
) -> None:
    with make_session(gpu) as session:
        run_step(session)
        version = planner.publish(*PLAN)
        wait_until(planner, lambda: len(planner.acknowledgements) == 1)
        assert planner.acknowledgements[0].current_step == 1
        planner.name_first_step(version, 3)
        wait_until(planner, lambda: len(session.plans) > 0)
        run_step(session)  # step 1
        assert gpu.told == []
        run_step(session)  # step 2, whose end asks for the first clock of the plan
        assert gpu.told == [1200]
        assert session.active_version is None
        run_step(session)  # step 3
        assert gpu.told == [1200, 900, 1200]
        assert session.active_version == version
        assert [step.plan_version for step in session.history] == [None, None, None, version]
    assert gpu.told == [1200, 900, 1200, RESET]


def run_microbatches(session: RankSession, num_microbatches: int) -> int | None:
    """Run a step of a single stage; return the plan version that was in force in it."""
    session.on_step_begin()
    version = session.active_version
    for microbatch in range(num_microbatches):
        for kind in ("forward", "backward"):
            session.on_instruction_begin(kind, microbatch=microbatch)
            session.on_instruction_end(kind)
    session.on_step_end()
    return version


def test_each_number_of_microbatches_has_its_own_plan_and_none_runs_another_ones(
    planner: MemoryPlanner, planned: RankSession, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[int] = []
    planned.watch_shape(told.append)
    caplog.set_level(logging.INFO)
    assert [run_microbatches(planned, 1) for _ in range(3)] == [1, 1, 1]
    # A single step of another number, as at the end of a loader, changes nothing.
    assert [run_microbatches(planned, number) for number in (2, 1, 2, 1)] == [1, 1, 1, 1]
    assert [run_microbatches(planned, 2) for _ in range(4)] == [1, 1, None, None]
    assert "steps have 2 microbatches, for which there is no plan yet" in caplog.text
    two = [(kind, number, 1410) for number in range(2) for kind in ("forward", "backward")]
    planner.name_first_step(planner.publish(*two), 0)
    wait_until(planner, lambda: len(planned.plans) > 0)
    assert [run_microbatches(planned, 2) for _ in range(2)] == [2, 2]
    assert [run_microbatches(planned, 1) for _ in range(4)] == [2, 2, 1, 1]
    assert told == [1, 2, 1]
    assert planned.last_step_timings[0].sm_clock_mhz == 1200


def test_the_first_clock_is_that_of_the_plan_that_the_next_step_runs() -> None:
    governor = RecordingGovernor()
    session = RankSession(
        gpu=RecordingGpu(), job_id=JOB_ID, rank=0, stage=0, planner=None, governor=governor
    )
    two = [(kind, number, 1400) for number in range(2) for kind in ("forward", "backward")]
    session.plans.put(compiled_plan(*PLAN), 0)
    for _ in range(2):
        run_microbatches(session, 1)
    # A newer plan is for steps of two microbatches; those that run have one.
    session.plans.put(compiled_plan(*two, version=2), 2)
    for _ in range(2):
        assert governor.asked_mhz[-1] == 1200
        assert run_microbatches(session, 1) == 1
    assert 1400 not in governor.asked_mhz


def test_steps_that_name_no_microbatches_have_as_many_as_their_plan() -> None:
    session = RankSession(
        gpu=RecordingGpu(),
        job_id=JOB_ID,
        rank=0,
        stage=0,
        planner=None,
        governor=RecordingGovernor(),
    )
    told: list[int] = []
    session.watch_shape(told.append)
    two = [(kind, number, 1400) for number in range(2) for kind in ("forward", "backward")]
    session.plans.put(compiled_plan(*two), 0)
    for _ in range(2):
        run_step(session, "forward", "backward", "forward", "backward")
    assert told == [2]


def test_unplanned_instructions_run_at_the_highest_clock_and_are_counted_and_logged_once(
    gpu: RecordingGpu, planned: RankSession, caplog: pytest.LogCaptureFixture
) -> None:
    run_step(planned, "forward", "recompute", "backward")
    run_step(planned, "recompute")
    run_step(planned)
    # The clock of the backward was asked for when recompute came in its place.
    assert gpu.told == [1200, 900, 1400, 1200, 1400, 1200, 900, 1200]
    assert [step.num_unplanned for step in planned.history] == [2, 1, 0]
    (line,) = [m for m in caplog.messages if "does not fit step" in m]
    assert "recompute at position 1, where the plan has backward" in line


@given(
    planned=st.lists(INSTRUCTIONS, max_size=6),
    come=st.lists(INSTRUCTIONS, max_size=8),
    follows_plan=st.booleans(),
    names_microbatches=st.booleans(),
)
def test_each_instruction_gets_the_clock_that_its_plan_says_by_whichever_way(
    planned: list[Instruction],
    come: list[Instruction],
    follows_plan: bool,
    names_microbatches: bool,
) -> None:
    plan = compiled_plan(*((kind, number, mhz, chunk) for kind, number, chunk, mhz in planned))
    governor, cursor = RecordingGovernor(), PlanCursor(plan)
    session = RankSession(
        gpu=RecordingGpu(), job_id=JOB_ID, rank=0, stage=0, planner=None, governor=governor
    )
    session.plans.put(plan, 0)
    asked_mhz: list[int] = []
    wanted_mhz: list[int] = []
    for step in range(2):
        session.on_step_begin()
        cursor.begin_step(step)
        for kind, number, chunk, _ in planned if follows_plan else come:
            microbatch = number if names_microbatches else None
            session.on_instruction_begin(kind, microbatch=microbatch, chunk=chunk)
            asked_mhz.append(governor.asked_mhz[-1])
            session.on_instruction_end(kind, microbatch=microbatch, chunk=chunk)
            wanted_mhz.append(cursor.next_sm_clock_mhz(kind, microbatch, chunk))
        session.on_step_end()
        assert session.history[-1].num_unplanned == cursor.num_unplanned
        cursor.end_step()
    assert asked_mhz == wanted_mhz
    assert governor.num_ends == len(wanted_mhz)


def test_each_clock_is_asked_for_once_when_the_instruction_or_step_before_ends(
    gpu: RecordingGpu, make_session: SessionMaker
) -> None:
    governor = RecordingGovernor()
    session = make_session(gpu, planner=None, governor=governor)
    asked_mhz: list[list[int]] = []

    def note() -> None:
        asked_mhz.append(governor.asked_mhz.copy())
        governor.asked_mhz.clear()

    def asked_in_step(rows: tuple[tuple[str, int, int], ...]) -> list[list[int]]:
        asked_mhz.clear()
        run_noting(session, rows, note)
        return asked_mhz

    rows = (("forward", 0, 1200), ("forward", 1, 1200), ("forward", 2, 900), ("backward", 0, 1200))
    session.plans.put(compiled_plan(*rows), 0)
    # Begin and end of each instruction, then the end of the step.
    assert asked_in_step(rows) == [[1200], [], [], [900], [900], [1200], [1200], [], [1200]]
    # Due in the next step, its first clock is asked for at the end of this one.
    session.plans.put(compiled_plan(*((kind, number, 1400) for kind, number, _ in rows)), 2)
    assert asked_in_step(rows) == [[1200], [], [], [900], [900], [1200], [1200], [], [1400]]
    assert asked_in_step(rows) == [[1400], [], [], [], [], [], [], [], [1400]]
    # What has become of it each instruction's end sees.
    assert governor.num_ends == 12
    # Given back with a failed step, it is asked for again in the next one.
    session.on_step_begin()
    session.on_step_failed()
    note()
    assert asked_mhz[-1] == [0]
    assert asked_in_step(rows)[0] == [1400]


def test_where_no_end_is_told_instructions_are_timed_and_each_begin_ends_the_last_one(
    gpu: RecordingGpu, make_session: SessionMaker
) -> None:
    governor = RecordingGovernor()
    session = make_session(gpu, planner=None, governor=governor)
    session.plans.put(compiled_plan(*(("forward", number, 900) for number in range(3))), 0)
    session.on_step_begin()
    for microbatch in range(3):
        session.on_instruction_begin("forward", microbatch=microbatch)
        if microbatch == 0:
            session.on_transfer("send", "forward", time_s=0.1, microbatch=microbatch)
    session.on_step_end()
    assert governor.asked_mhz == [900, 900]
    assert governor.num_ends == 2
    timings = [(timing.microbatch, timing.compute_time_s) for timing in session.last_step_timings]
    assert timings == [(0, 0.0), (1, 0.0), (2, 0.0)]


@pytest.mark.parametrize("refuses_clocks", [False, True])
def test_the_gpu_is_registered_and_every_measurement_reaches_the_planner(
    gpu: RecordingGpu, planner: MemoryPlanner, make_session: SessionMaker, refuses_clocks: bool
) -> None:
    gpu.refuses_clocks = refuses_clocks
    with make_session(gpu) as session:
        wait_until(planner, lambda: planner.knows_rank)
        for _ in range(5):
            run_step(session)
    (registration,) = planner.registrations
    assert (registration.gpu_name, registration.gpu_uuid) == (gpu.name, gpu.uuid)
    assert registration.sm_clocks_mhz == (None if refuses_clocks else SUPPORTED_MHZ)
    assert not registration.emulated
    assert gpu.told == []
    assert tuple(planner.measurements.values()) == session.history
    assert [step.step for step in session.history] == [0, 1, 2, 3, 4]
    assert session.history[0].energy_j == 0.0
    assert session.num_dropped_measurements == 0


def test_a_forgotten_rank_is_registered_again_and_every_later_call_carries_its_run(
    gpu: RecordingGpu, planner: MemoryPlanner, make_session: SessionMaker
) -> None:
    planner.name_first_step(planner.publish(*PLAN), 0)
    with make_session(gpu) as session:
        run_until_active(session, planner, 1)
        with planner.changed:
            planner.knows_rank = False
        wait_until(planner, lambda: len(planner.registrations) == 2)
        wait_until(planner, lambda: len(planner.acknowledgements) == 2)
        run_step(session)
        assert session.active_version == 1
    assert {ack.start_id for ack in planner.acknowledgements} == {START_ID}
    assert planner.posting_starts == {START_ID}
    assert planner.left_start == START_ID


def test_a_plan_that_cannot_be_read_is_refused_once_and_the_next_one_taken(
    gpu: RecordingGpu,
    planner: MemoryPlanner,
    make_session: SessionMaker,
    caplog: pytest.LogCaptureFixture,
) -> None:
    planner.publish(("forward", 0, 0))
    with make_session(gpu) as session:
        wait_until(planner, lambda: any("plan version 1 refused" in m for m in caplog.messages))
        planner.name_first_step(planner.publish(*PLAN), 0)
        run_until_active(session, planner, 2)
    assert [ack.version for ack in planner.acknowledgements] == [2]
    assert sum("refused" in m for m in caplog.messages) == 1


def test_a_clock_that_cannot_be_set_ends_governing_and_not_training(
    gpu: RecordingGpu, planned: RankSession, caplog: pytest.LogCaptureFixture
) -> None:
    for gpu.refuses_locks in (False, True, False):
        run_step(planned)
    assert planned.active_version is None
    assert [step.plan_version for step in planned.history] == [1, None, None]
    set_clocks, *others = [step.no_clocks for step in planned.history]
    assert set_clocks is None
    assert all(why is not None and why.endswith("run as root") for why in others)
    planned.close()
    assert gpu.told == [1200, 900, 1200, RESET]
    (line,) = [m for m in caplog.messages if "clocks are no longer set" in m]
    assert line.endswith("run as root")


def test_a_long_reason_is_whole_in_a_message_and_cut_for_the_planner(
    gpu: RecordingGpu, make_session: SessionMaker
) -> None:
    governor = InProcessGovernor(gpu, "rank 3")
    why = f"{300 * 'x'}; set FLYBALL_STATE_DIR"
    governor.give_up(RuntimeError(f"{why}\n\x1b[31m"))
    assert governor.no_clocks == f"{why} ?[31m"
    with make_session(gpu, governor=governor) as session:
        run_step(session)
    assert [step.no_clocks for step in session.history] == [why[:256]]


def test_an_observer_that_fails_is_dismissed_and_the_clocks_go_on(
    gpu: RecordingGpu,
    planner: MemoryPlanner,
    make_session: SessionMaker,
    caplog: pytest.LogCaptureFixture,
) -> None:
    planner.name_first_step(planner.publish(*PLAN), 0)
    observer = Mock(spec=["on_instruction_begin", "on_instruction_end"])
    observer.on_instruction_begin.side_effect = RuntimeError("no forward")
    with make_session(gpu, observer=observer) as session:
        wait_until(planner, lambda: len(session.plans) > 0)
        run_step(session)
    observer.on_instruction_begin.assert_called_once()
    observer.on_instruction_end.assert_not_called()
    assert gpu.told == [1200, 900, 1200, RESET]
    assert sum("no longer emulated: no forward" in m for m in caplog.messages) == 1


def test_hooks_after_the_end_and_out_of_order_do_nothing(
    gpu: RecordingGpu, make_session: SessionMaker
) -> None:
    session = make_session(gpu, planner=None, history_length=3)
    session.on_step_end()
    assert session.current_step == 0
    session.on_step_begin()
    session.on_step_begin()  # step 0 was abandoned
    session.on_step_end()
    assert [step.step for step in session.history] == [1]
    for _ in range(3):
        run_step(session)
    assert [step.step for step in session.history] == [2, 3, 4]  # bounded
    session.close()
    session.close()
    run_step(session)
    session.start()
    assert session.current_step == 5
    assert gpu.told == []

    def broken() -> float:
        raise OSError("no clock")

    session = make_session(gpu, planner=None, clock=broken)
    run_step(session)
    run_step(session)
    assert (session.current_step, session.history) == (2, ())


def test_a_step_that_fails_restores_the_clock_and_the_next_one_sets_it_again(
    gpu: RecordingGpu, planned: RankSession
) -> None:
    planned.on_step_begin()
    planned.on_instruction_begin("forward")
    planned.on_step_failed()
    planned.on_step_failed()
    assert gpu.told == [1200, RESET]
    assert planned.active_version == 1
    run_step(planned)
    planned.on_step_failed()  # outside a step
    assert gpu.told == [1200, RESET, 1200, 900, 1200]
    assert [step.step for step in planned.history] == [1]
    planned.close()
    assert gpu.told == [1200, RESET, 1200, 900, 1200, RESET]


@pytest.mark.parametrize(
    "arguments",
    [
        {"history_length": 0},
        {"initial_step": -1},
        {"without_planner": "panic"},
    ],
)
def test_arguments_out_of_range_are_refused(
    gpu: RecordingGpu, make_session: SessionMaker, arguments: dict[str, object]
) -> None:
    with pytest.raises(ValueError, match=r"must be|count from 0"):
        make_session(gpu, **arguments)


def test_closing_the_planner_under_a_session_is_no_error(
    gpu: RecordingGpu, planner: MemoryPlanner, make_session: SessionMaker
) -> None:
    client = planner.client()
    with make_session(gpu, planner=client) as session:
        wait_until(planner, lambda: planner.knows_rank)
        client.close()
        run_step(session)
    with pytest.raises(PlannerUnavailableError):
        client.health()
