"""An emulated GPU whose power limit holds its clock down, and a governor that reads that back."""

from __future__ import annotations

from dataclasses import replace

from flyball_client import EmulatedGpu
from flyball_client.governor._base import ClockReport
from flyball_client.governor.clock_controller import READ_PERIOD_S, TOLERANCE_MHZ
from flyball_client.governor.in_process import InProcessGovernor
from flyball_client.gpu._base import ClockLimit


class CappedGpu(EmulatedGpu):
    """An EmulatedGpu that may be held below the clock that it was set to.

    Attributes:
        cap_mhz: it runs at its highest clock up to here, whatever is asked; None: no cap.
    """

    cap_mhz: int | None = None

    def clock_limits(self) -> ClockLimit:
        """Power, where the cap holds the clock down now."""
        is_held_down = self.sm_clock_mhz() < self.asked_mhz()
        return ClockLimit.POWER if is_held_down else ClockLimit.NONE

    def asked_mhz(self) -> int:
        """The clock that it was set to, MHz."""
        return super()._settle_clock(self.emulated_time_s())

    def _settle_clock(self, now_s: float) -> int:
        asked_mhz = super()._settle_clock(now_s)
        cap_mhz = self.cap_mhz
        if cap_mhz is None or asked_mhz <= cap_mhz:
            return asked_mhz
        return next(mhz for mhz in self.supported_sm_clocks_mhz() if mhz <= cap_mhz)


class ReadingGovernor(InProcessGovernor):
    """Reads the clock back as often as the governor of a real GPU, in emulated time."""

    def __init__(self, gpu: CappedGpu, rank_name: str) -> None:
        super().__init__(gpu, rank_name)
        self._capped_gpu = gpu
        self._next_comparison_s = 0.0
        self._reads = ClockReport()

    def on_instruction_end(self) -> None:
        """Compare the clock in force with the one that was set, when it is time to."""
        super().on_instruction_end()
        now_s = self._capped_gpu.emulated_time_s()
        if self.is_over or now_s < self._next_comparison_s:
            return
        self._next_comparison_s = now_s + READ_PERIOD_S
        mhz, asked_mhz = self._capped_gpu.sm_clock_mhz(), self._capped_gpu.asked_mhz()
        is_missed = mhz < asked_mhz - TOLERANCE_MHZ
        is_capped = bool(self._capped_gpu.clock_limits() & ClockLimit.POWER)
        self._reads = replace(
            self._reads,
            num_reads=self._reads.num_reads + 1,
            num_misses=self._reads.num_misses + is_missed,
            num_power_capped=self._reads.num_power_capped + (is_missed and is_capped),
        )

    def report(self) -> ClockReport:
        """Return what became of the requests so far."""
        return replace(
            super().report(),
            num_reads=self._reads.num_reads,
            num_misses=self._reads.num_misses,
            num_power_capped=self._reads.num_power_capped,
        )
