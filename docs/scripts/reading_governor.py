"""A governor of an emulated GPU that compares the clock in force with the one that was set."""

from __future__ import annotations

from dataclasses import replace

from flyball_client import EmulatedGpu
from flyball_client.governor._base import ClockReport
from flyball_client.governor.clock_controller import READ_PERIOD_S, TOLERANCE_MHZ
from flyball_client.governor.in_process import InProcessGovernor
from flyball_client.gpu._base import ClockLimit


class ReadingGovernor(InProcessGovernor):
    """Reads the clock back as often as the governor of a real GPU, in emulated time."""

    def __init__(self, gpu: EmulatedGpu, rank_name: str) -> None:
        super().__init__(gpu, rank_name)
        self._emulated_gpu = gpu
        self._next_comparison_s = 0.0
        self._reads = ClockReport()

    def on_instruction_end(self, upcoming_mhz: int | None = None) -> None:
        """Compare the clock in force with the one that was set, before the next one is."""
        self._compare()
        super().on_instruction_end(upcoming_mhz)

    def _compare(self) -> None:
        now_s = self._emulated_gpu.emulated_time_s()
        if self.is_over or now_s < self._next_comparison_s:
            return
        self._next_comparison_s = now_s + READ_PERIOD_S
        mhz, asked_mhz = (
            self._emulated_gpu.sm_clock_mhz(),
            self._emulated_gpu.requested_sm_clock_mhz,
        )
        is_missed = mhz < asked_mhz - TOLERANCE_MHZ
        is_capped = bool(self._emulated_gpu.clock_limits() & ClockLimit.POWER)
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
