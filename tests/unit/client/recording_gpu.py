"""A GpuDevice that writes down what it is told and fails when a test wants it to."""

from __future__ import annotations

from flyball_client.gpu._base import ClockLimit, GpuError, GpuPermissionError
from flyball_profiles.gpu_conditions import GpuConditions
from flyball_profiles.stage_profile import EnergyScope

SUPPORTED_MHZ = (1400, 1200, 900)
RESET = "reset"


class RecordingGpu:
    """Not emulated: it has neither times nor instructions."""

    name = "recording GPU"
    uuid = "GPU-recording"
    is_emulated = False
    address = None

    def __init__(self) -> None:
        self.told: list[int | str] = []
        self.energy_j: float | None = 0.0
        self.refuses_locks = False
        self.refuses_clocks = False
        self.gpu_conditions: GpuConditions | None = None

    def clock_limits(self) -> ClockLimit:
        return ClockLimit.NONE

    def supported_sm_clocks_mhz(self) -> tuple[int, ...]:
        if self.refuses_clocks:
            raise GpuError("clocks cannot be read")
        return SUPPORTED_MHZ

    def lock_sm_clock_mhz(self, sm_clock_mhz: int) -> None:
        if self.refuses_locks:
            raise GpuPermissionError("run as root")
        self.told.append(sm_clock_mhz)

    def reset_sm_clock(self) -> None:
        self.told.append(RESET)

    def sm_clock_mhz(self) -> int:
        last = self.told[-1] if self.told else RESET
        return last if isinstance(last, int) else SUPPORTED_MHZ[0]

    def total_energy_j(self) -> float:
        if self.energy_j is None:
            raise GpuError("no energy counter")
        return self.energy_j

    def energy_scope(self) -> EnergyScope | None:
        return None

    def conditions(self) -> GpuConditions | None:
        return self.gpu_conditions

    def close(self) -> None:
        self.reset_sm_clock()
