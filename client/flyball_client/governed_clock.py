"""The SM clock of one rank's GPU while a plan sets it: set, given back, and given up on failure."""

from __future__ import annotations

import logging

from flyball_client.gpu._base import GpuDevice

_logger = logging.getLogger(__name__)


class GovernedClock:
    """Sets the clock only when it changes; after the first failure never again.

    No method raises: training must not stop because a clock could not be set.

    Args:
        gpu: whose clock it is.
        rank_name: for the log.
    """

    def __init__(self, gpu: GpuDevice, rank_name: str) -> None:
        self._gpu = gpu
        self._rank_name = rank_name
        self._in_force_mhz: int | None = None
        self._is_touched = False
        self._is_over = False

    @property
    def is_over(self) -> bool:
        """Whether the clock was given up or given back for good."""
        return self._is_over

    def read_supported_mhz(self) -> tuple[int, ...]:
        """SM clocks that can be set, MHz, falling; empty, and given up, where there are none."""
        try:
            supported_mhz = self._gpu.supported_sm_clocks_mhz()
        except Exception as error:
            self.give_up(error)
            return ()
        if not supported_mhz:
            self.give_up(ValueError("the GPU names no SM clock that can be locked"))
        return supported_mhz

    def set_mhz(self, sm_clock_mhz: int) -> None:
        """Run at this clock from now on."""
        if sm_clock_mhz == self._in_force_mhz or self._is_over:
            return
        # First, so that whoever interrupts the next lines gives the clock back.
        self._is_touched = True
        try:
            self._gpu.lock_sm_clock_mhz(sm_clock_mhz)
        except Exception as error:
            self.give_up(error)
            return
        self._in_force_mhz = sm_clock_mhz
        if self._is_over:
            # A signal handler released the clock between the first line and the lock, and
            # training goes on: release it once more.
            self._is_touched = True
            self.release()

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

    def give_up(self, error: Exception) -> None:
        """Back to default clocks for good, with one line in the log."""
        if not self._is_over:
            _logger.warning(
                "%s: clocks are no longer set, training goes on at default clocks: %s",
                self._rank_name,
                error,
            )
            self.release()

    def release(self) -> None:
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
