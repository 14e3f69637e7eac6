"""Times of a step's instructions, and the details that are posted of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.client.recording_gpu import RecordingGpu
from tests.unit.client.tiny_profile import HandClock

from flyball_client.session import instruction_timings
from flyball_client.session.instruction_timings import InstructionTiming, TimingRecorder
from flyball_client.session.rank_session import RankSession
from flyball_client.session.step_recorder import num_details, with_details
from flyball_wire.measurements import MeasurementDetail, StepMeasurement


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def session(clock: HandClock) -> RankSession:
    """Without a planner: nothing is started."""
    return RankSession(
        gpu=RecordingGpu(), job_id="job", rank=0, stage=0, planner=None, clock=clock.now_s
    )


def run(
    session: RankSession, clock: HandClock, kind: str, seconds: float, microbatch: int | None = None
) -> None:
    session.on_instruction_begin(kind, microbatch=microbatch)
    clock.move(seconds)
    session.on_instruction_end(kind, microbatch=microbatch)


def test_a_step_shows_when_each_instruction_ran_and_what_it_waited_for(
    session: RankSession, clock: HandClock
) -> None:
    session.on_step_begin()
    clock.move(0.25)
    session.on_transfer("receive", "forward", time_s=0.25)
    run(session, clock, "forward", 1.0, microbatch=0)
    session.on_transfer("send", "forward", time_s=0.125, microbatch=0)
    clock.move(0.5)
    session.on_transfer("receive", "backward", time_s=0.375)
    run(session, clock, "backward", 2.0, microbatch=0)
    session.on_transfer("send", "backward", time_s=0.0625, microbatch=0)
    assert not session.last_step_timings  # not before the step is over
    session.on_step_end()
    assert [astuple(timing) for timing in session.last_step_timings] == [
        ("forward", 0, 0, None, 0.25, 1.0, 0.25, 0.125),
        ("backward", 0, 0, None, 1.75, 2.0, 0.375, 0.0625),
    ]


def test_a_receive_is_the_next_instructions_of_its_kind(
    session: RankSession, clock: HandClock
) -> None:
    session.on_step_begin()
    session.on_transfer("receive", "backward", time_s=1.0)
    session.on_transfer("receive", "backward", time_s=2.0)
    for impossible_s in (math.nan, math.inf, -1.0):
        session.on_transfer("receive", "backward", time_s=impossible_s)
    run(session, clock, "forward", 1.0)
    session.on_instruction_begin("backward")
    session.on_transfer("receive", "backward", time_s=4.0)  # while one runs: the next one's
    session.on_instruction_end("backward")
    run(session, clock, "backward", 1.0)
    session.on_step_end()
    received_s = [timing.receive_time_s for timing in session.last_step_timings]
    assert received_s == [0.0, 3.0, 4.0]


def test_a_wait_within_an_instruction_is_no_computation(
    session: RankSession, clock: HandClock
) -> None:
    session.on_step_begin()
    session.on_instruction_begin("step", microbatch=0)
    for seconds in (1.0, 0.5, math.nan, -1.0):
        clock.move(2.0)
        session.on_wait_begin()
        session.on_wait_end(time_s=seconds)
    session.on_instruction_end("step", microbatch=0)
    session.on_wait_end(time_s=3.0)  # without an instruction
    session.on_step_end()
    (timing,) = session.last_step_timings
    assert (timing.compute_time_s, timing.receive_time_s) == (8.0 - 1.5, 1.5)


def test_a_send_is_that_of_the_instruction_named_however_late_it_comes(
    session: RankSession, clock: HandClock
) -> None:
    session.on_step_begin()
    for microbatch in range(3):
        run(session, clock, "forward", 1.0, microbatch)
    run(session, clock, "backward", 1.0, 1)
    session.on_transfer("send", "forward", time_s=5.0, microbatch=1)
    session.on_transfer("send", "forward", time_s=6.0)  # the last one's
    session.on_transfer("send", "forward", time_s=7.0, microbatch=9)  # did not run
    session.on_transfer("send", "backward", time_s=8.0, microbatch=1, chunk=1)  # likewise
    session.on_step_end()
    sent_s = [timing.send_time_s for timing in session.last_step_timings]
    assert sent_s == [0.0, 5.0, 6.0, 0.0]


@pytest.mark.parametrize(
    "break_off",
    [RankSession.on_step_failed, RankSession.on_step_begin],
    ids=["said to have failed", "abandoned"],
)
def test_a_step_that_is_broken_off_leaves_the_last_measured_one(
    session: RankSession, clock: HandClock, break_off: Callable[[RankSession], None]
) -> None:
    session.on_step_begin()
    run(session, clock, "forward", 1.0, 0)
    session.on_step_end()
    measured = session.last_step_timings
    session.on_step_begin()
    session.on_transfer("receive", "forward", time_s=9.0)
    session.on_instruction_begin("forward", microbatch=0)
    break_off(session)
    assert session.last_step_timings == measured
    session.on_step_begin()
    run(session, clock, "forward", 2.0, 0)
    assert session.last_step_timings == measured  # while the next one runs
    session.on_step_end()
    (timing,) = session.last_step_timings
    assert (timing.compute_time_s, timing.receive_time_s) == (2.0, 0.0)


def test_a_step_without_end_takes_bounded_memory_and_keeps_its_first_instructions(
    clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instruction_timings, "MAX_INSTRUCTIONS", 2)
    recorder = TimingRecorder(clock.now_s)
    recorder.begin_step()
    for microbatch in range(5):
        recorder.begin(("forward", microbatch, 0, None, clock.now_s()))
        clock.move(1.0 + microbatch)
        recorder.end()
    recorder.end_step()
    kept = recorder.last_step()
    assert [(timing.microbatch, timing.compute_time_s) for timing in kept] == [(0, 1.0), (1, 2.0)]


TOTALS = StepMeasurement(step=3, plan_version=2, time_s=10.0, energy_j=2000.0, num_unplanned=1)


def ran(
    kind: str, time_s: float, sm_clock_mhz: int | None, *, chunk: int = 0, microbatch: int = 0
) -> InstructionTiming:
    return InstructionTiming(
        kind=kind,
        microbatch=microbatch,
        chunk=chunk,
        sm_clock_mhz=sm_clock_mhz,
        began_s=1.0,
        compute_time_s=time_s,
        receive_time_s=0.25,
        send_time_s=0.125,
    )


def by_clock(
    *timings: InstructionTiming,
) -> dict[tuple[str, int, int | None], tuple[int, float, float]]:
    detailed = with_details(TOTALS, timings, MeasurementDetail.CLOCKS)
    assert detailed.by_clock is not None
    assert detailed.instructions is None
    return {row[:3]: row[3:] for row in detailed.by_clock}


def test_instructions_are_told_apart_by_kind_chunk_and_clock() -> None:
    found = by_clock(
        ran("forward", 1.0, 1400),
        ran("backward", 2.0, 1400),
        ran("forward", 3.0, 1400),
        ran("forward", 0.0, 1400),  # its end was not told
        ran("forward", 5.0, 1400, chunk=1),
        ran("forward", 7.0, 900),
    )
    assert found == {
        ("forward", 0, 1400): (2, 2.0, 2.0),
        ("backward", 0, 1400): (1, 2.0, 0.0),
        ("forward", 1, 1400): (1, 5.0, 0.0),
        ("forward", 0, 900): (1, 7.0, 0.0),
    }


@given(st.lists(st.floats(1e-6, 1e3), min_size=2, max_size=30))
def test_count_mean_and_variance_are_those_of_the_times(times_s: list[float]) -> None:
    found = by_clock(*(ran("forward", time_s, 1400) for time_s in times_s))
    count, mean_s, variance_s2 = found["forward", 0, 1400]
    assert count == len(times_s)
    assert mean_s == pytest.approx(statistics.fmean(times_s))
    assert variance_s2 == pytest.approx(statistics.variance(times_s), rel=1e-6, abs=1e-20)


def test_each_instruction_is_told_where_it_is_asked_for_and_the_totals_stay() -> None:
    timings = (ran("forward", 0.0, None), ran("backward", 2.0, 900, microbatch=5, chunk=1))
    detailed = with_details(TOTALS, timings, MeasurementDetail.INSTRUCTIONS)
    assert detailed.instructions == (
        ("forward", 0, 0, 1.0, 0.0, 0.25, 0.125, None),
        ("backward", 5, 1, 1.0, 2.0, 0.25, 0.125, 900),
    )
    assert detailed.by_clock == (("backward", 1, 900, 1, 2.0, 0.0),)
    assert num_details(detailed) == 3
    assert num_details(TOTALS) == 0
    assert (detailed.step, detailed.energy_j, detailed.num_unplanned) == (3, 2000.0, 1)
