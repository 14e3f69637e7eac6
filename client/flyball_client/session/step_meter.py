"""Time and energy of each training step of one rank, read at the step's two ends."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from flyball_client.governor._base import ClockGovernor, ClockReport
from flyball_client.gpu._base import EmulatedDevice, GpuDevice
from flyball_wire.messages import StepMeasurement

_logger = logging.getLogger(__name__)


class StepMeter:
    """Reads clock and energy counter when a step begins and ends.

    The counter is as coarse as the GPU's (about 100 ms), so the energy of a single short step
    is rough; over many steps the roughness cancels, since each step begins where the last
    one's reading stood. A counter that fails is not asked again: energies are then None.

    Args:
        gpu: whose energy it is; an emulated one also gives the time and counts overruns.
        governor: of its clock, which reads the clock back and knows how often it was missed.
        clock_s: monotonic time, s; None: emulated time on an emulated GPU, else the system's.
        rank_name: for the log.
    """

    def __init__(
        self,
        gpu: GpuDevice,
        governor: ClockGovernor,
        *,
        clock_s: Callable[[], float] | None,
        rank_name: str,
    ) -> None:
        self._governor = governor
        self._gpu = gpu
        self._emulated = gpu if isinstance(gpu, EmulatedDevice) else None
        if clock_s is None:
            clock_s = time.monotonic if self._emulated is None else self._emulated.emulated_time_s
        self.clock_s = clock_s
        self._rank_name = rank_name
        self._has_counter = True
        self._began_s = 0.0
        self._began_j: float | None = None
        self._began_overruns = 0
        self._began_report = ClockReport()
        self._readings: list[tuple[float, float] | None] = []

    def begin(self) -> None:
        """A step begins."""
        self._began_j = self._energy_j()
        self._began_overruns = self._num_overruns()
        self._began_report = self._governor.report()
        self._readings.clear()
        self._began_s = self.clock_s()

    @property
    def num_readings(self) -> int:
        """Return how often the counter was read within the step, or could not be."""
        return len(self._readings)

    def read_within(self) -> None:
        """Read the counter now, within the step."""
        now_j, began_j = self._energy_j(), self._began_j
        is_read = now_j is not None and began_j is not None
        self._readings.append(
            (self.clock_s() - self._began_s, (now_j or 0.0) - (began_j or 0.0)) if is_read else None
        )

    def end(self, *, step: int, plan_version: int | None, num_unplanned: int) -> StepMeasurement:
        """The step is over: what it took."""
        time_s = self.clock_s() - self._began_s
        ended_j = self._energy_j()
        report, began = self._governor.report(), self._began_report
        is_measured = self._began_j is not None and ended_j is not None
        return StepMeasurement(
            step=step,
            plan_version=plan_version,
            time_s=time_s,
            energy_j=(ended_j or 0.0) - (self._began_j or 0.0) if is_measured else None,
            num_unplanned=num_unplanned,
            num_overruns=self._num_overruns() - self._began_overruns,
            num_clock_misses=report.num_misses - began.num_misses,
            num_power_capped=report.num_power_capped - began.num_power_capped,
            num_thermally_capped=report.num_thermally_capped - began.num_thermally_capped,
            sm_clock_mhz=report.mean_sm_clock_mhz(began),
        )

    def readings(self, num_wanted: int) -> tuple[tuple[float, float], ...] | None:
        """The `[s, J]` read within the step; None: they are not as many, or one failed."""
        readings = tuple(reading for reading in self._readings if reading is not None)
        return readings if len(readings) == len(self._readings) == num_wanted else None

    def _energy_j(self) -> float | None:
        if not self._has_counter:
            return None
        try:
            return self._gpu.total_energy_j()
        except Exception as error:
            self._has_counter = False
            _logger.warning("%s: energy is not measured: %s", self._rank_name, error)
            return None

    def _num_overruns(self) -> int:
        return 0 if self._emulated is None else self._emulated.num_overruns
