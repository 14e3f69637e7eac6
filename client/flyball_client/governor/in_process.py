"""Governor in the rank's own process, for emulated GPUs, which end with it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from flyball_client.governor._base import CLOSED, ClockReport, log_given_up
from flyball_client.governor.clock_controller import READ_PERIOD_S, REFUSALS, SETTLE_S
from flyball_client.gpu._base import (
    ClockCall,
    ClockLimit,
    EmulatedDevice,
    GpuDevice,
)

_logger = logging.getLogger(__name__)


class InProcessGovernor:
    """ClockGovernor that calls the GPU from the hook, and gives up after the first failure.

    Not for real GPUs, since a process that is killed cannot restore a clock; the timed requests of
    one are made at the first hook from their time on. The clock is read
    back when an instruction ends, on an emulated GPU in emulated time; readings are not compared
    with the set clock.
    """

    def __init__(self, gpu: GpuDevice, rank_name: str) -> None:
        self._gpu = gpu
        self._rank_name = rank_name
        self._in_force_mhz: int | None = None
        self._may_be_locked = False
        self._is_over = False
        self._no_clocks: str | None = None
        self._clock_s = gpu.emulated_time_s if isinstance(gpu, EmulatedDevice) else time.monotonic
        self._next_read_s = 0.0
        self._report = ClockReport()
        self._last_call: ClockCall | None = None
        # Clock in MHz and moment of `_clock_s`.
        self._timed: tuple[int, float] | None = None

    @property
    def is_over(self) -> bool:
        """Return whether clocks are no longer set."""
        return self._is_over

    @property
    def no_clocks(self) -> str | None:
        """Return why clocks are not set; None: they are."""
        return self._no_clocks

    def begin_plan(self) -> None:
        """Do nothing."""

    def start(self, *, strict: bool = False) -> None:
        """Do nothing."""

    def on_step_begin(self) -> None:
        """Make a timed request that is due."""
        self._make_timed()

    def set_mhz(self, sm_clock_mhz: int) -> None:
        """Set this clock."""
        self._make_timed()
        timed, self._timed = self._timed, None
        if self._is_over:
            return
        if sm_clock_mhz != self._in_force_mhz:
            self._lock(sm_clock_mhz)
        elif timed is not None and isinstance(self._gpu, EmulatedDevice):
            # Without a call: it drops the timed request.
            self._try(lambda: self._gpu.lock_sm_clock_mhz(sm_clock_mhz))

    def set_mhz_later(self, sm_clock_mhz: int, delay_s: float) -> None:
        """Set this clock after a delay; an emulated GPU does so itself."""
        self._make_timed()
        if self._is_over or (self._timed is None and sm_clock_mhz == self._in_force_mhz):
            return
        gpu, moment_s = self._gpu, self._clock_s() + max(0.0, delay_s)
        if not isinstance(gpu, EmulatedDevice) or self._try(
            lambda: gpu.lock_sm_clock_mhz_at(sm_clock_mhz, moment_s)
        ):
            self._timed = (sm_clock_mhz, moment_s)
            self._make_timed()

    def on_instruction_end(self, upcoming_mhz: int | None = None) -> None:
        """Make a timed request that is due; read the clock back; set the next instruction's."""
        self._make_timed()
        self._read_back()
        if upcoming_mhz is not None:
            self.set_mhz(upcoming_mhz)

    def _read_back(self) -> None:
        if self._is_over or (now_s := self._clock_s()) < self._next_read_s:
            return
        self._next_read_s = now_s + READ_PERIOD_S
        try:
            sm_clock_mhz = self._gpu.sm_clock_mhz()
            limits = self._gpu.clock_limits()
        except Exception as error:
            _logger.debug("%s: the SM clock was not read back: %s", self._rank_name, error)
            return
        self._report = replace(self._report, sm_clock_mhz=sm_clock_mhz)
        if not limits & ClockLimit.IDLE:
            self._count(num_samples=1, samples_mhz=sm_clock_mhz)

    def pause(self) -> None:
        """Restore the clock until the next is set."""
        self._last_call = self._timed = None
        if not self._may_be_locked:
            return
        try:
            self._gpu.reset_sm_clock()
        except Exception as error:
            self.give_up(error)
            return
        self._in_force_mhz = None
        self._may_be_locked = False
        self._let_settle()

    def give_up(self, error: Exception) -> None:
        """Restore the clock permanently, and log the error."""
        if not self._is_over:
            self._no_clocks = log_given_up(_logger, self._rank_name, error)
            self.close()

    def report(self) -> ClockReport:
        """Return the counts so far."""
        return self._report

    def last_call(self) -> ClockCall | None:
        """Return the last request's call."""
        self._make_timed()
        if self._timed is not None:
            return None
        if self._last_call is None or not isinstance(self._gpu, EmulatedDevice):
            return self._last_call
        return self._gpu.last_call()

    def close(self) -> None:
        """Restore the clock permanently, if it may be locked."""
        self._is_over = True
        self._no_clocks = self._no_clocks or CLOSED
        self._timed = None
        if not self._may_be_locked:
            return
        self._may_be_locked = False
        was_set = self._in_force_mhz is not None
        self._in_force_mhz = None
        try:
            self._gpu.reset_sm_clock()
        except Exception as error:
            # If the first lock failed, as without permission, the clock is unchanged.
            level = logging.ERROR if was_set else logging.DEBUG
            _logger.log(level, "%s: the SM clock could not be restored: %s", self._rank_name, error)

    def _make_timed(self) -> None:
        """Make the timed request that is due."""
        if self._timed is None or self._clock_s() < self._timed[1]:
            return
        (sm_clock_mhz, _), self._timed = self._timed, None
        if sm_clock_mhz == self._in_force_mhz:
            return
        if isinstance(self._gpu, EmulatedDevice):
            self._note_call(sm_clock_mhz, time.monotonic())
        else:
            self._lock(sm_clock_mhz)

    def _lock(self, sm_clock_mhz: int) -> None:
        self._last_call, began_s = None, time.monotonic()
        if self._try(lambda: self._gpu.lock_sm_clock_mhz(sm_clock_mhz)):
            self._note_call(sm_clock_mhz, began_s)

    def _try(self, call: Callable[[], object]) -> bool:
        """Return whether a call that locks a clock did not fail; give up after a failure."""
        may_have_been_locked, self._may_be_locked = self._may_be_locked, True
        try:
            call()
        except Exception as error:
            self._count(num_failures=1)
            self._may_be_locked = may_have_been_locked or not isinstance(error, REFUSALS)
            self.give_up(error)
            return False
        return True

    def _note_call(self, sm_clock_mhz: int, began_s: float) -> None:
        self._in_force_mhz = sm_clock_mhz
        self._last_call = ClockCall(
            sm_clock_mhz=sm_clock_mhz,
            requested_s=began_s,
            began_s=began_s,
            returned_s=time.monotonic(),
        )
        self._count(num_switches=1)
        self._let_settle()

    def _count(self, **numbers: int) -> None:
        counts = {name: getattr(self._report, name) + number for name, number in numbers.items()}
        self._report = replace(self._report, **counts)

    def _let_settle(self) -> None:
        self._next_read_s = max(self._next_read_s, self._clock_s() + SETTLE_S)
