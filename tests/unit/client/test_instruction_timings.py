from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import astuple

import pytest
from tests.unit.client.recording_gpu import RecordingGpu
from tests.unit.client.tiny_profile import HandClock

from flyball_client.session import instruction_timings
from flyball_client.session.instruction_timings import TimingRecorder
from flyball_client.session.rank_session import RankSession


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
