from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.unit.client.recording_gpu import RESET, RecordingGpu
from tests.unit.client.tiny_profile import HandClock

from flyball_client.governor import clock_controller
from flyball_client.governor import shared_state as word
from flyball_client.governor.clock_controller import (
    ASSERT_AFTER_S,
    ASSERTIONS_PERIOD_S,
    DIFFERENT_READINGS,
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    MAX_ASSERTIONS,
    READ_PERIOD_S,
    SETTLE_S,
    STUCK_READINGS,
    STUCK_S,
    TOLERANCE_MHZ,
    ClockController,
)
from flyball_client.governor.lock_record import ClockHolder, LockRecord
from flyball_client.governor.shared_state import SharedState
from flyball_client.gpu._base import (
    ClockLimit,
    GpuError,
    GpuNotFoundError,
    GpuPermissionError,
)
from flyball_profiles.gpu_conditions import GpuConditions

UUID = "GPU-recording"
HOLDER = ClockHolder(uuid=UUID, control="nvml", rank_name="job gpt rank 3", rank_byte=1 << 42)


class TroubledGpu(RecordingGpu):
    """Fails as often as it is told to, and runs at a clock of the test's choice."""

    def __init__(self) -> None:
        super().__init__()
        self.lock_errors: list[Exception] = []
        self.reset_errors: list[Exception] = []
        self.limits = ClockLimit.NONE
        self.held_mhz: int | None = None
        self.num_reads = 0

    def lock_sm_clock_mhz(self, sm_clock_mhz: int) -> None:
        if self.lock_errors:
            raise self.lock_errors.pop(0)
        super().lock_sm_clock_mhz(sm_clock_mhz)

    def reset_sm_clock(self) -> None:
        if self.reset_errors:
            raise self.reset_errors.pop(0)
        super().reset_sm_clock()

    def sm_clock_mhz(self) -> int:
        self.num_reads += 1
        return super().sm_clock_mhz() if self.held_mhz is None else self.held_mhz

    def clock_limits(self) -> ClockLimit:
        return self.limits


@dataclass(frozen=True, kw_only=True)
class Desk:
    """A keeper and all that it works with."""

    gpu: TroubledGpu
    shared_state: SharedState
    record: LockRecord
    controller: ClockController
    clock: HandClock

    def ask(self, sm_clock_mhz: int) -> None:
        """Leave a request as the rank does."""
        number = (self.shared_state.words[word.REQUEST] >> 32) + 1
        self.shared_state.words[word.REQUEST] = number << 32 | sm_clock_mhz

    def ask_at(self, sm_clock_mhz: int, delay_s: float) -> None:
        """Leave a timed request as the rank does, the one after the newest."""
        words = self.shared_state.words
        newest = max(words[word.REQUEST] >> 32, words[word.TIMED_REQUEST] >> 32)
        request = newest + 1 << 32 | sm_clock_mhz
        moment_ns = int((self.clock.now_s() + delay_s) * 1e9)
        words[word.NOT_BEFORE_NS] = word.tagged_ns(moment_ns, request)
        words[word.TIMED_REQUEST] = request

    def serve(self, sm_clock_mhz: int) -> None:
        """Ask, and have it served."""
        self.ask(sm_clock_mhz)
        self.controller.serve()

    def read_after(self, wait_s: float) -> None:
        """Have the clock read back some time later."""
        self.clock.move(wait_s)
        self.controller.read_back()

    def counted(self, *words: int) -> tuple[int, ...]:
        """These words of the board."""
        return tuple(self.shared_state.words[word] for word in words)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    clock = HandClock()
    time = SimpleNamespace(monotonic=clock.now_s, monotonic_ns=lambda: int(clock.now_s() * 1e9))
    monkeypatch.setattr(clock_controller, "time", time)
    gpu, shared_state, record = TroubledGpu(), SharedState.create(), LockRecord.take(tmp_path, UUID)
    controller = ClockController(gpu, shared_state, record, HOLDER)
    yield Desk(
        gpu=gpu, shared_state=shared_state, record=record, controller=controller, clock=clock
    )
    shared_state.close()
    record.close()


LOCK_WORDS = (word.IN_FORCE_MHZ, word.MAY_BE_LOCKED)
READ_WORDS = (
    word.NUM_READS,
    word.NUM_MISSES,
    word.NUM_POWER_CAPPED,
    word.NUM_THERMALLY_CAPPED,
)

# ------------------------------------------------------------------ serving


def test_the_record_stands_from_before_a_clock_is_set_until_it_is_restored(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[ClockHolder | None, int]] = []

    def look(*_: int) -> None:
        seen.append((desk.record.holder(), desk.shared_state.words[word.MAY_BE_LOCKED]))

    monkeypatch.setattr(desk.gpu, "lock_sm_clock_mhz", look)
    monkeypatch.setattr(desk.gpu, "reset_sm_clock", look)
    desk.serve(1200)
    desk.controller.restore()
    assert seen == [(HOLDER, 1), (HOLDER, 1)]
    assert desk.record.holder() is None


def test_a_timed_request_waits_for_its_time(desk: Desk) -> None:
    desk.serve(1200)
    assert desk.controller.until_timed_s() == math.inf
    desk.ask_at(900, 0.01)
    assert desk.controller.until_timed_s() == pytest.approx(0.01, abs=1e-6)
    desk.clock.move(0.0099)
    desk.controller.serve()
    assert desk.gpu.told == [1200]
    desk.clock.move(0.0002)
    assert desk.controller.until_timed_s() < 0
    desk.controller.serve()
    desk.controller.serve()
    assert desk.gpu.told == [1200, 900]
    assert desk.counted(word.SERVED) == desk.counted(word.TIMED_REQUEST)
    assert desk.controller.until_timed_s() == math.inf


def test_a_timed_request_that_is_being_written_is_none_yet(desk: Desk) -> None:
    desk.serve(1200)
    desk.ask_at(900, 1.0)
    words = desk.shared_state.words
    later_ns = words[word.NOT_BEFORE_NS] + 1_000_000_000
    words[word.TIMED_REQUEST] += 1 << 32  # the next one's, whose moment is not there yet
    desk.clock.move(1.5)
    desk.controller.serve()
    assert desk.gpu.told == [1200]
    words[word.NOT_BEFORE_NS] = word.tagged_ns(later_ns, words[word.TIMED_REQUEST])
    desk.clock.move(1.0)
    desk.controller.serve()
    assert desk.gpu.told == [1200, 900]


# ------------------------------------------------------------------ failures


def test_a_refusal_of_the_first_clock_leaves_another_programs_lock(desk: Desk) -> None:
    desk.gpu.lock_errors = [GpuNotFoundError("it fell off the bus")]
    desk.serve(1200)
    assert desk.gpu.told == []
    assert desk.counted(*LOCK_WORDS) == (0, 0)
    assert desk.record.holder() is None
    desk.clock.move(FIRST_PAUSE_S)
    desk.serve(1200)
    assert desk.gpu.told == [1200]


def test_a_clock_that_a_killed_governor_left_locked_stays_recorded_until_it_is_restored(
    desk: Desk,
) -> None:
    # A standby finds this state when its governor was killed within the call.
    desk.record.write(HOLDER)
    desk.shared_state.words[word.MAY_BE_LOCKED] = 1
    desk.gpu.lock_errors = [GpuPermissionError("run as root")]
    with pytest.raises(GpuPermissionError):
        desk.serve(1200)
    assert desk.shared_state.words[word.MAY_BE_LOCKED] == 1
    assert desk.record.holder() == HOLDER
    desk.controller.restore()
    assert desk.gpu.told == [RESET]
    assert desk.record.holder() is None


@pytest.mark.parametrize(
    "error", [GpuError("busy"), GpuNotFoundError("lost"), GpuPermissionError("not now")]
)
def test_a_gpu_that_fails_for_a_while_is_left_alone_for_pauses_that_grow(
    desk: Desk, error: GpuError
) -> None:
    desk.serve(1400)
    pause_s = FIRST_PAUSE_S
    for num_failures in range(1, 15):
        desk.gpu.lock_errors = [error]
        desk.serve(1200)
        assert desk.counted(*LOCK_WORDS, word.NUM_FAILURES) == (0, 0, num_failures)
        assert desk.counted(word.SERVED) == desk.counted(word.REQUEST)
        assert desk.controller.until_try_s() == pytest.approx(pause_s, abs=1e-6)
        desk.clock.move(0.9 * pause_s)
        desk.serve(1200)
        assert desk.gpu.told[-1] == RESET
        desk.clock.move(0.11 * pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
    desk.serve(1200)
    assert desk.gpu.told[-1] == 1200
    assert desk.counted(*LOCK_WORDS, word.NEXT_TRY_NS) == (1200, 1, 0)
    desk.gpu.lock_errors = [error]
    desk.serve(1400)
    assert desk.controller.until_try_s() == pytest.approx(FIRST_PAUSE_S, abs=1e-6)


def test_a_clock_that_could_not_be_restored_is_restored_before_another_request(desk: Desk) -> None:
    desk.serve(510)
    desk.gpu.lock_errors, desk.gpu.reset_errors = [GpuError("busy")], [GpuError("busy")]
    desk.serve(1400)
    assert desk.counted(*LOCK_WORDS) == (0, 1)
    assert desk.record.holder() == HOLDER
    desk.controller.serve()
    assert desk.gpu.told == [510]
    desk.clock.move(FIRST_PAUSE_S)
    desk.controller.serve()
    assert desk.gpu.told == [510, RESET]
    assert desk.record.holder() is None


# ------------------------------------------------------------------ reading back


def test_a_clock_is_read_back_when_it_has_settled_and_not_too_often(desk: Desk) -> None:
    desk.serve(1200)
    desk.read_after(SETTLE_S / 2)
    assert desk.gpu.num_reads == 0
    desk.read_after(SETTLE_S)
    assert desk.gpu.num_reads == 1
    desk.read_after(READ_PERIOD_S / 2)
    assert desk.gpu.num_reads == 1
    desk.read_after(READ_PERIOD_S)
    assert desk.counted(*READ_WORDS, word.SM_CLOCK_MHZ) == (2, 0, 0, 0, 1200)
    # One that was restored settles too, and is compared with none.
    desk.clock.move(READ_PERIOD_S)
    desk.serve(word.RESTORE)
    desk.read_after(SETTLE_S / 2)
    assert desk.gpu.num_reads == 2
    desk.gpu.held_mhz = 1410
    desk.read_after(SETTLE_S)
    samples = word.samples_of(desk.shared_state.words[word.SAMPLES])
    assert samples == (3, 1200 + 1200 + 1410)
    assert desk.counted(word.NUM_READS) == (2,)


@pytest.mark.parametrize(
    ("limits", "real_mhz", "counts"),
    [
        (ClockLimit.NONE, 1200 - TOLERANCE_MHZ, (1, 0, 0, 0)),
        (ClockLimit.NONE, 1200 - TOLERANCE_MHZ - 1, (1, 1, 0, 0)),
        (ClockLimit.POWER, 900, (1, 1, 1, 0)),
        (ClockLimit.THERMAL, 900, (1, 1, 0, 1)),
        (ClockLimit.POWER | ClockLimit.THERMAL, 900, (1, 1, 1, 1)),
        (ClockLimit.OTHER, 900, (1, 1, 0, 0)),
        (ClockLimit.POWER, 1200, (1, 0, 0, 0)),
        (ClockLimit.IDLE | ClockLimit.POWER, 300, (0, 0, 0, 0)),
    ],
)
def test_misses_are_counted_by_what_held_the_clock_down(
    desk: Desk, limits: ClockLimit, real_mhz: int, counts: tuple[int, ...]
) -> None:
    desk.serve(1200)
    desk.gpu.limits, desk.gpu.held_mhz = limits, real_mhz
    desk.read_after(2 * SETTLE_S)
    assert desk.counted(*READ_WORDS) == counts
    assert desk.shared_state.words[word.SM_CLOCK_MHZ] == real_mhz


# ------------------------------------------------------------------ another program's clocks


def read_other(desk: Desk, real_mhz: int, num: int = DIFFERENT_READINGS) -> None:
    """Have so many readings find the GPU at a clock that another program has set."""
    desk.gpu.held_mhz = real_mhz
    for _ in range(num):
        desk.read_after(READ_PERIOD_S)
    desk.gpu.held_mhz = None


@pytest.mark.parametrize("real_mhz", [600, 1980])
def test_a_clock_that_another_program_changed_is_set_again_once_it_is_certain(
    desk: Desk, real_mhz: int
) -> None:
    desk.serve(1200)
    # It may still be about to take effect.
    read_other(desk, real_mhz, num=int(ASSERT_AFTER_S / READ_PERIOD_S) - 1)
    read_other(desk, real_mhz, num=DIFFERENT_READINGS - 1)
    read_other(desk, 1200, num=1)
    read_other(desk, real_mhz, num=DIFFERENT_READINGS - 1)
    assert desk.gpu.told == [1200]
    read_other(desk, real_mhz, num=1)
    assert desk.gpu.told == [1200, 1200]
    assert desk.counted(*LOCK_WORDS, word.NUM_ASSERTED) == (1200, 1, 1)


def test_a_clock_is_set_again_three_times_an_hour_at_most(desk: Desk) -> None:
    desk.serve(1200)
    desk.read_after(SETTLE_S)
    for _ in range(10):
        desk.clock.move(ASSERT_AFTER_S)
        read_other(desk, 1980)
    assert desk.counted(word.NUM_ASSERTED) == (MAX_ASSERTIONS,)
    desk.clock.move(ASSERTIONS_PERIOD_S)
    read_other(desk, 1980, num=2 * DIFFERENT_READINGS)
    assert desk.counted(word.NUM_ASSERTED) == (MAX_ASSERTIONS + 1,)


def test_a_lower_clock_that_comes_back_is_left_as_it_is_until_the_next_plan(desk: Desk) -> None:
    words = desk.shared_state.words
    words[word.PLAN_NUMBER] = 1
    desk.serve(1200)
    for _ in range(2):
        desk.clock.move(ASSERT_AFTER_S)
        read_other(desk, 600)
    assert desk.gpu.told == [1200, 1200]
    assert desk.counted(*LOCK_WORDS) == (0, 0)
    assert desk.record.holder() is None
    desk.serve(1400)
    desk.serve(word.RESTORE)
    # Nor is it given back: it is no longer ours.
    assert desk.gpu.told == [1200, 1200]
    words[word.PLAN_NUMBER] = 2
    desk.serve(1400)
    assert desk.gpu.told == [1200, 1200, 1400]


# ------------------------------------------------------------------ clocks without effect

YIELD_WORDS = (word.YIELD_REASON, word.HELD_MHZ)


def test_a_gpu_that_runs_a_higher_clock_than_any_that_was_set_gets_none_until_the_next_plan(
    desk: Desk,
) -> None:
    words = desk.shared_state.words
    words[word.PLAN_NUMBER] = 1
    desk.serve(1200)
    for num_asserted in (1, 1):
        desk.clock.move(ASSERT_AFTER_S)
        read_other(desk, 1980)
        assert desk.counted(word.NUM_ASSERTED) == (num_asserted,)
    assert word.yields(words)
    assert desk.counted(*YIELD_WORDS) == (word.NO_EFFECT, 1980)
    # It might come to have an effect later, under nobody's eyes.
    assert desk.gpu.told == [1200, 1200, RESET]
    assert desk.record.holder() is None
    desk.serve(900)
    words[word.PLAN_NUMBER] = 2
    desk.serve(900)
    assert desk.gpu.told[2:] == [RESET, 900], "the next plan is tried"


@pytest.mark.parametrize(
    ("application_mhz", "reason"),
    [(1000, word.APPLICATION), (900, word.OTHERS), (1400, word.OTHERS), (None, word.OTHERS)],
)
def test_an_application_clock_below_the_highest_that_wins_is_told_from_another_program(
    desk: Desk, application_mhz: int | None, reason: int
) -> None:
    desk.gpu.gpu_conditions = GpuConditions(application_clock_mhz=application_mhz)
    desk.serve(1200)
    for _ in range(2):
        desk.clock.move(ASSERT_AFTER_S)
        read_other(desk, 1000)
    assert desk.counted(*YIELD_WORDS) == (reason, 1000)
    assert (desk.gpu.told[-1] == RESET) == (reason == word.APPLICATION)


def alternate(desk: Desk, real_mhz: int, num: int, clocks_mhz: tuple[int, int]) -> None:
    """Set two clocks in turn, none for long, at a GPU that runs its own."""
    for number in range(num):
        desk.serve(clocks_mhz[number % 2])
        desk.gpu.held_mhz = real_mhz
        desk.read_after(READ_PERIOD_S)


def test_a_clock_that_is_seldom_set_is_asserted_again_after_an_hour_and_not_without_effect(
    desk: Desk,
) -> None:
    desk.serve(1200)
    desk.read_after(SETTLE_S)
    desk.clock.move(ASSERT_AFTER_S)
    read_other(desk, 1400, num=3 * int(STUCK_S / READ_PERIOD_S))
    assert not word.yields(desk.shared_state.words)


def test_a_gpu_that_ignores_clocks_that_change_often_is_found_within_a_minute(desk: Desk) -> None:
    num = int(STUCK_S / READ_PERIOD_S)
    alternate(desk, 1400, num - 1, (1400, 1200))
    assert not word.yields(desk.shared_state.words)
    alternate(desk, 1400, 4, (1400, 1200))
    assert word.yields(desk.shared_state.words)
    assert desk.counted(*YIELD_WORDS, word.NUM_ASSERTED) == (word.NO_EFFECT, 1400, 0)
    assert desk.gpu.told[-1] == RESET


@pytest.mark.parametrize("limit", [ClockLimit.POWER, ClockLimit.THERMAL, ClockLimit.OTHER])
def test_a_clock_that_a_limit_holds_is_nobodys_change_nor_without_effect(
    desk: Desk, limit: ClockLimit
) -> None:
    desk.serve(1200)
    desk.gpu.limits = limit
    desk.clock.move(ASSERT_AFTER_S)
    read_other(desk, 900, num=20)
    assert desk.gpu.told == [1200]
    alternate(desk, 1000, 3 * int(STUCK_S / READ_PERIOD_S), (1400, 1200))
    assert not word.yields(desk.shared_state.words)


def test_a_clock_that_is_set_rarely_and_comes_too_late_is_not_without_effect(desk: Desk) -> None:
    for _ in range(2 * STUCK_READINGS):
        desk.serve(1400)
        read_other(desk, 1400, num=10)
        desk.serve(1200)
        read_other(desk, 1400, num=1)
    assert not word.yields(desk.shared_state.words)


def test_a_gpu_that_follows_now_and_then_is_not_without_effect(desk: Desk) -> None:
    for _ in range(4):
        alternate(desk, 1400, int(STUCK_S / READ_PERIOD_S) - 5, (1400, 1200))
        alternate(desk, 1200, 2, (1400, 1200))
    assert not word.yields(desk.shared_state.words)
