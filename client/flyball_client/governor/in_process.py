"""A governor in the rank's own process, for GPUs that end with it: emulated ones."""

from __future__ import annotations

import logging
import time

from flyball_client.governor._base import ClockReport
from flyball_client.governor.clock_controller import HOPELESS_ERRORS, READ_PERIOD_S, SETTLE_S
from flyball_client.gpu._base import ClockLimit, EmulatedDevice, GpuDevice

_logger = logging.getLogger(__name__)


class InProcessGovernor:
    """A ClockGovernor that calls the GPU from the hook; after the first failure never again.

    A process that is killed cannot give a clock back, so this is no governor for real GPUs. The
    clock is read back when an instruction ends, of an emulated GPU as often in emulated time as a
    real one's in its own; what was read is not compared with what was set.

    Args:
        gpu: whose clock it is.
        rank_name: for the log.
    """

    def __init__(self, gpu: GpuDevice, rank_name: str) -> None:
        self._gpu = gpu
        self._rank_name = rank_name
        self._in_force_mhz: int | None = None
        self._num_switches = 0
        self._num_failures = 0
        self._is_touched = False
        self._is_over = False
        self._clock_s = gpu.emulated_time_s if isinstance(gpu, EmulatedDevice) else time.monotonic
        self._next_read_s = 0.0
        self._read_mhz: int | None = None
        self._num_samples = 0
        self._samples_mhz = 0

    @property
    def is_over(self) -> bool:
        """Return whether the clock was given up or given back for good."""
        return self._is_over

    def start(self) -> None:
        """Nothing to start."""

    def on_step_begin(self) -> None:
        """Nothing to see to."""

    def set_mhz(self, sm_clock_mhz: int) -> None:
        """Run at this clock from now on."""
        if sm_clock_mhz == self._in_force_mhz or self._is_over:
            return
        was_touched, self._is_touched = self._is_touched, True
        try:
            self._gpu.lock_sm_clock_mhz(sm_clock_mhz)
        except Exception as error:
            self._num_failures += 1
            # Refused altogether, it changed nothing.
            self._is_touched = was_touched or not isinstance(error, HOPELESS_ERRORS)
            self.give_up(error)
            return
        self._in_force_mhz = sm_clock_mhz
        self._num_switches += 1
        self._let_settle()

    def on_instruction_end(self) -> None:
        """Read the clock back, when it is time to."""
        if self._is_over or (now_s := self._clock_s()) < self._next_read_s:
            return
        self._next_read_s = now_s + READ_PERIOD_S
        try:
            sm_clock_mhz = self._gpu.sm_clock_mhz()
            limits = self._gpu.clock_limits()
        except Exception as error:
            _logger.debug("%s: the SM clock was not read back: %s", self._rank_name, error)
            return
        self._read_mhz = sm_clock_mhz
        if not limits & ClockLimit.IDLE:
            self._num_samples += 1
            self._samples_mhz += sm_clock_mhz

    def pause(self) -> None:
        """Give the clock back until the next one is set."""
        if not self._is_touched:
            return
        try:
            self._gpu.reset_sm_clock()
        except Exception as error:
            self.give_up(error)
            return
        self._in_force_mhz = None
        self._is_touched = False
        self._let_settle()

    def give_up(self, error: Exception) -> None:
        """Back to default clocks for good, with one line in the log."""
        if not self._is_over:
            _logger.warning(
                "%s: clocks are no longer set, training goes on at default clocks: %s",
                self._rank_name,
                error,
            )
            self.close()

    def report(self) -> ClockReport:
        """Return what became of the requests so far."""
        return ClockReport(
            num_switches=self._num_switches,
            num_failures=self._num_failures,
            sm_clock_mhz=self._read_mhz,
            num_samples=self._num_samples,
            samples_mhz=self._samples_mhz,
        )

    def _let_settle(self) -> None:
        self._next_read_s = max(self._next_read_s, self._clock_s() + SETTLE_S)

    def close(self) -> None:
        """Give the clock back for good; the GPU is not asked where it was never set."""
        self._is_over = True
        if not self._is_touched:
            return
        self._is_touched = False
        was_set = self._in_force_mhz is not None
        self._in_force_mhz = None
        try:
            self._gpu.reset_sm_clock()
        except Exception as error:
            # Where the very first lock failed, as without permission, nothing is left behind.
            level = logging.ERROR if was_set else logging.DEBUG
            _logger.log(
                level, "%s: the SM clock could not be given back: %s", self._rank_name, error
            )
