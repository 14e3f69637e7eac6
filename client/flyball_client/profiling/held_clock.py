"""SM clock while profiling, set through a governor, which restores it after a crash."""

from __future__ import annotations

import logging
import time
from typing import Self

from flyball_client.governor import make_governor
from flyball_client.governor._base import ClockGovernor
from flyball_client.gpu._base import ClockCall, GpuDevice, GpuError

_GOVERNOR_LOGGER = logging.getLogger("flyball_client.governor")
# A governor starts within half a second, on a busy machine later.
_SET_WITHIN_S = 30.0
_POLL_S = 0.002
# Checking the governor's processes takes 0.1 ms.
_CHECK_PROCESSES_EVERY_S = 0.25


class HeldClock:
    """SM clock of one GPU, for a `with` block; restored at its end.

    Args:
        gpu: GPU whose clock is set.
        governor: Governor of the clock; None: the default for the GPU.

    Raises:
        GpuError: No governor can be created.
    """

    def __init__(self, gpu: GpuDevice, governor: ClockGovernor | None = None) -> None:
        self._gpu = gpu
        try:
            self._governor = governor or make_governor(gpu, "flyball profile")
        except OSError as error:
            raise GpuError(f"no clock governor can be created: {error}") from None
        # Keeps the governor's warning, which is about training, off standard error, where Python
        # prints what no handler takes. The reason is in the GpuError.
        self._unlogged = logging.NullHandler()
        self._next_check_s = 0.0

    def __enter__(self) -> Self:
        _GOVERNOR_LOGGER.addHandler(self._unlogged)
        self._governor.start()
        return self

    def __exit__(self, *exception: object) -> None:
        # Before closing, whose errors are logged as usual.
        _GOVERNOR_LOGGER.removeHandler(self._unlogged)
        self._governor.close()

    def set_mhz(self, sm_clock_mhz: int) -> None:
        """Lock this clock, and return once the driver has accepted it.

        Raises:
            GpuError: It cannot be set.
        """
        num_before = self._governor.report().num_switches
        self._governor.set_mhz(sm_clock_mhz)
        give_up_s = time.monotonic() + _SET_WITHIN_S
        while self._governor.report().num_switches == num_before:
            self.renew()
            if time.monotonic() > give_up_s:
                raise GpuError(
                    f"{sm_clock_mhz} MHz was not set on {self._gpu.name} within {_SET_WITHIN_S:g} s"
                )
            time.sleep(_POLL_S)

    def request_mhz(self, sm_clock_mhz: int) -> None:
        """Request this clock, and return at once, as a training hook does."""
        self._governor.set_mhz(sm_clock_mhz)

    def last_call(self) -> ClockCall | None:
        """Return the call of the last request, once it has returned; renew the lease.

        Raises:
            GpuError: The governor has given up.
        """
        self.renew()
        return self._governor.last_call()

    def renew(self) -> None:
        """Renew the lease of the clock.

        Raises:
            GpuError: The governor has given up.
        """
        now_s = time.monotonic()
        if now_s >= self._next_check_s:
            self._next_check_s = now_s + _CHECK_PROCESSES_EVERY_S
            self._governor.on_step_begin()
        self._governor.on_instruction_end()
        if self._governor.is_over:
            raise GpuError(
                f"the SM clock of {self._gpu.name} cannot be set: {self._governor.no_clocks}"
            )
