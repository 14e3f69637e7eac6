"""Serves the requests in shared memory on a GPU, reads the clock back, and restores it."""

from __future__ import annotations

import math
import time

from flyball_client.governor import shared_state as word
from flyball_client.governor.lock_record import ClockHolder, LockRecord
from flyball_client.governor.shared_state import SharedState, with_sample
from flyball_client.gpu._base import (
    ClockLimit,
    GpuDevice,
    GpuError,
    GpuNotFoundError,
    GpuNotSupportedError,
    GpuPermissionError,
)

# A clock takes effect within up to 100 ms on some GPUs (published), mostly far less; sensors are
# updated about as often as they are read here.
SETTLE_S = 0.05
READ_PERIOD_S = 0.2
# One step of a GPU's clocks, since readings are rounded.
TOLERANCE_MHZ = 15
# A clock that differs in so many readings in a row, each so long after its request, was changed by
# another program. The longest delay that was published is 0.5 s.
ASSERT_AFTER_S = 1.0
DIFFERENT_READINGS = 3
# Longest series of assertions: the clock may be changed again and again.
MAX_ASSERTIONS, ASSERTIONS_PERIOD_S = 3, 3600.0
# Plans that change clocks within a second never let them settle. A GPU that has run one clock for
# so long ignores what is set if clocks were set so often, and another one in so many readings, and
# in such a share of them: one that is rarely and shortly set may always be too late.
STUCK_S, STUCK_SWITCHES, STUCK_READINGS, STUCK_SHARE = 60.0, 10, 25, 0.25
# Pause after a failed call, doubled after each further one: a driver may fail for a moment, as
# when it is reloaded, or when eight GPUs of a node are set at once.
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 30.0

# Errors of a refused call, which changes nothing.
REFUSALS = (GpuPermissionError, GpuNotSupportedError, GpuNotFoundError)


def is_lasting(error: Exception, words: memoryview) -> bool:
    """Return whether a call cannot succeed later: it is unsupported, or was never permitted.

    What was permitted before may be refused for a while, as by a driver that is reloaded.
    `words` are those of the rank's shared state.
    """
    never_set = words[word.NUM_SWITCHES] == 0
    return isinstance(error, GpuNotSupportedError) or (
        never_set and isinstance(error, GpuPermissionError)
    )


class ClockController:
    """Control of one GPU's clock by one governor process.

    Args:
        gpu: GPU to control.
        shared_state: Memory shared with the rank.
        record: Lock record of this GPU, held.
        holder: Content of the record while the clock may be locked.
    """

    def __init__(
        self, gpu: GpuDevice, shared_state: SharedState, record: LockRecord, holder: ClockHolder
    ) -> None:
        self._gpu = gpu
        self._shared_state = shared_state
        self._words = shared_state.words
        self._record = record
        self._holder = holder
        self._pause_s = FIRST_PAUSE_S
        self._next_read_s = 0.0
        # Since the clock was requested, and readings of another clock since then.
        self._requested_s = 0.0
        self._num_different = 0
        self._asserted_s: list[float] = []
        # Clocks in force that were set, lowest and highest; none: no clock had an effect so far.
        self._followed_mhz: tuple[int, int] | None = None
        # Clock of all readings since then, how many there are, how many of them contradict the one
        # that was set, and the switches before.
        self._stuck_mhz, self._stuck_since_s, self._switches_before = 0, 0.0, 0
        self._num_alike = self._num_stuck = 0
        # Of a clock that could not be restored, or that a killed governor left.
        self._owes_restore = False

    def serve(self) -> None:
        """Serve the newest request, unless it is served already, then a timed one that is due.

        Requests for a clock are dropped while the GPU fails: the rank's next hook repeats them.

        Raises:
            GpuError: Clocks can no longer be set.
        """
        words = self._words
        if self._owes_restore:
            self.restore()
        request = words[word.REQUEST]
        if word.is_newer(request, words[word.SERVED]):
            self._serve(request)
        timed = word.timed_request(words)
        if timed is not None and time.monotonic_ns() >= timed[1]:
            self._serve(timed[0])

    def until_timed_s(self) -> float:
        """Return the time in s until a timed request; 0 or less: it is due; inf: there is none."""
        timed = word.timed_request(self._words)
        return math.inf if timed is None else (timed[1] - time.monotonic_ns()) / 1e9

    def _serve(self, request: int) -> None:
        words = self._words
        words[word.DELIVERED_NS] = time.monotonic_ns()
        sm_clock_mhz = request & word.MHZ_MASK
        if sm_clock_mhz in {word.RESTORE, word.QUIT}:
            self.restore()
        else:
            self._lock(sm_clock_mhz)
        words[word.SERVED] = request

    def _lock(self, sm_clock_mhz: int) -> None:
        words = self._words
        if sm_clock_mhz == words[word.IN_FORCE_MHZ]:
            return
        if self.until_try_s() > 0 or word.yields(words):
            return
        is_first = not words[word.MAY_BE_LOCKED]
        if is_first:
            # Before the lock, for the processes that survive this one.
            self._record.write(self._holder)
            words[word.MAY_BE_LOCKED] = 1
        try:
            self._gpu.lock_sm_clock_mhz(sm_clock_mhz)
        except (GpuError, ValueError) as error:
            self._on_failure(error, is_first=is_first)
            return
        words[word.RETURNED_NS] = time.monotonic_ns()
        self.try_now()
        self._owes_restore = False
        words[word.IN_FORCE_MHZ] = sm_clock_mhz
        words[word.NUM_SWITCHES] += 1
        self._requested_s, self._num_different = time.monotonic(), 0
        self._let_settle()

    def _on_failure(self, error: Exception, *, is_first: bool) -> None:
        words = self._words
        words[word.NUM_FAILURES] += 1
        if is_first and isinstance(error, REFUSALS):
            # Nothing was locked, so nothing must be restored, and another program's lock stays.
            words[word.MAY_BE_LOCKED] = 0
            self._record.clear()
        if is_lasting(error, words):
            raise error
        # At once: the clock before may be a low one.
        self.restore()
        self._pause(error)

    def restore(self) -> bool:
        """Restore the clock where it may be locked; return whether none may be any more.

        After a failed attempt nothing is done for a pause, which grows, and the record stays.

        Raises:
            GpuError: It cannot be restored now or later.
        """
        words = self._words
        if not words[word.MAY_BE_LOCKED]:
            self._owes_restore = False
            return True
        # A clock that may be any is not in force.
        self._owes_restore, words[word.IN_FORCE_MHZ] = True, 0
        if self.until_try_s() > 0:
            return False
        try:
            self._gpu.reset_sm_clock()
            self._record.clear()
        except (GpuError, OSError) as error:
            if is_lasting(error, words):
                raise
            self._pause(error)
            return False
        self._owes_restore = False
        self._let_settle()
        # Last: if this process is killed before, the standby repeats all of it.
        words[word.MAY_BE_LOCKED] = 0
        return True

    def until_try_s(self) -> float:
        """Return the time in s until a GPU that fails is called again; 0 or less: it may be now."""
        next_try_ns = self._words[word.NEXT_TRY_NS]
        return (next_try_ns - time.monotonic_ns()) / 1e9 if next_try_ns else 0.0

    def try_now(self) -> None:
        """End a pause, and begin with the shortest one again."""
        self._words[word.NEXT_TRY_NS] = 0
        self._pause_s = FIRST_PAUSE_S

    def _pause(self, error: Exception) -> None:
        if self.until_try_s() > 0:
            return
        if self._words[word.STATE] != word.GIVEN_UP:  # whose reason the rank has yet to read
            self._shared_state.write_text(f"{error}")
        self._words[word.NEXT_TRY_NS] = time.monotonic_ns() + round(self._pause_s * 1e9)
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def _let_settle(self) -> None:
        self._next_read_s = max(self._next_read_s, time.monotonic() + SETTLE_S)

    def until_read_s(self) -> float:
        """Return the time in s until the next reading; 0 or less: it is due."""
        return self._next_read_s - time.monotonic()

    def read_back(self) -> None:
        """Read the clock in force when a reading is due, and compare it with the set one."""
        now_s = time.monotonic()
        if now_s < self._next_read_s:
            return
        self._next_read_s = now_s + READ_PERIOD_S
        try:
            real_mhz = self._gpu.sm_clock_mhz()
            limits = self._gpu.clock_limits()
        except GpuError:
            return
        words = self._words
        words[word.SM_CLOCK_MHZ] = real_mhz
        if limits & ClockLimit.IDLE:
            return
        words[word.SAMPLES] = with_sample(words[word.SAMPLES], real_mhz)
        if asked_mhz := words[word.IN_FORCE_MHZ]:
            self._compare(asked_mhz, real_mhz, limits)

    def _compare(self, asked_mhz: int, real_mhz: int, limits: ClockLimit) -> None:
        words = self._words
        words[word.NUM_READS] += 1
        if real_mhz < asked_mhz - TOLERANCE_MHZ:
            words[word.NUM_MISSES] += 1
            words[word.NUM_POWER_CAPPED] += bool(limits & ClockLimit.POWER)
            words[word.NUM_THERMALLY_CAPPED] += bool(limits & ClockLimit.THERMAL)
        is_settled = time.monotonic() - self._requested_s >= ASSERT_AFTER_S
        is_others = _differ(real_mhz, asked_mhz) and not limits
        if not _differ(real_mhz, asked_mhz):
            lowest_mhz, highest_mhz = self._followed_mhz or (real_mhz, real_mhz)
            self._followed_mhz = min(lowest_mhz, real_mhz), max(highest_mhz, real_mhz)
        if self._is_stuck(real_mhz, limits, contradicts=is_others):
            self._yield_ignored(real_mhz)
            return
        self._num_different = self._num_different + 1 if is_settled and is_others else 0
        if self._num_different >= DIFFERENT_READINGS:
            self._num_different = 0
            self._assert(asked_mhz, real_mhz)

    def _is_stuck(self, real_mhz: int, limits: ClockLimit, *, contradicts: bool) -> bool:
        """Return whether the GPU has run one clock for long, whatever was set.

        Args:
            real_mhz: Clock of this reading.
            limits: Limits at this reading, which explain a clock.
            contradicts: True: another clock was set, and no limit explains this clock.
        """
        now_s = time.monotonic()
        if limits or _differ(real_mhz, self._stuck_mhz):
            self._stuck_mhz, self._stuck_since_s = real_mhz, now_s
            self._switches_before = self._words[word.NUM_SWITCHES]
            self._num_alike = self._num_stuck = 0
        self._num_alike += 1
        self._num_stuck += contradicts
        return (
            self._num_stuck >= max(STUCK_READINGS, STUCK_SHARE * self._num_alike)
            and self._words[word.NUM_SWITCHES] >= self._switches_before + STUCK_SWITCHES
            and now_s - self._stuck_since_s >= STUCK_S
        )

    def _has_followed_beside(self, real_mhz: int) -> bool:
        """Return whether a clock other than this has ever come to be in force."""
        return any(_differ(mhz, real_mhz) for mhz in self._followed_mhz or ())

    def _is_application_clock(self, real_mhz: int) -> bool:
        """Return whether this is the GPU's application clock, and that is not the highest clock."""
        try:
            conditions = self._gpu.conditions()
            highest_mhz = max(self._gpu.supported_sm_clocks_mhz())
        except GpuError:
            return False
        clock_mhz = None if conditions is None else conditions.application_clock_mhz
        return (
            clock_mhz is not None
            and _differ(clock_mhz, highest_mhz)
            and not _differ(clock_mhz, real_mhz)
        )

    def _yield_ignored(self, real_mhz: int) -> None:
        """Restore the clock until the next plan: the GPU runs this one, whatever is set."""
        is_application = self._is_application_clock(real_mhz)
        self.restore()
        self._yield(word.APPLICATION if is_application else word.NO_EFFECT, real_mhz)

    def _yield(self, reason: int, real_mhz: int) -> None:
        words = self._words
        self._num_alike = self._num_stuck = 0
        words[word.YIELD_REASON], words[word.HELD_MHZ] = reason, real_mhz
        words[word.YIELDED_PLAN] = words[word.PLAN_NUMBER] + 1

    def _assert(self, asked_mhz: int, real_mhz: int) -> None:
        """Set a clock again that another program has changed, or yield.

        A reset, or a lock in passing, is undone, at most three times an hour. A lower clock that
        comes back is meant to stay: it is left as it is until the rank's next plan. So is the clock
        of a GPU that never ran another clock that was set.
        """
        words, now_s = self._words, time.monotonic()
        self._asserted_s = [at_s for at_s in self._asserted_s if now_s - at_s < ASSERTIONS_PERIOD_S]
        is_ignored = bool(self._asserted_s) and not self._has_followed_beside(real_mhz)
        if is_ignored and (real_mhz > asked_mhz or self._is_application_clock(real_mhz)):
            self._yield_ignored(real_mhz)
        elif real_mhz < asked_mhz and self._asserted_s:
            self._record.clear()
            words[word.IN_FORCE_MHZ] = words[word.MAY_BE_LOCKED] = 0
            self._yield(word.OTHERS, real_mhz)
        elif len(self._asserted_s) < MAX_ASSERTIONS:
            self._asserted_s.append(now_s)
            words[word.NUM_ASSERTED] += 1
            words[word.IN_FORCE_MHZ] = 0
            self._lock(asked_mhz)


def _differ(one_mhz: int, other_mhz: int) -> bool:
    return abs(one_mhz - other_mhz) > TOLERANCE_MHZ
