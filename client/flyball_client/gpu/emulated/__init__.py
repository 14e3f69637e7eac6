"""Emulated GPUs, with the clocks, times and energies of a stage profile."""

from flyball_client.gpu.emulated.device import (
    COUNTER_PERIOD_S,
    DEFAULT_PHYSICS,
    IDEAL_GPU,
    EmulatedGpu,
    EmulationClock,
    LeapingClock,
    WallClock,
)
from flyball_client.gpu.emulated.execution import EmulatedGpuSettings, EmulatedNode, RandomTime

__all__ = [
    "COUNTER_PERIOD_S",
    "DEFAULT_PHYSICS",
    "IDEAL_GPU",
    "EmulatedGpu",
    "EmulatedGpuSettings",
    "EmulatedNode",
    "EmulationClock",
    "LeapingClock",
    "RandomTime",
    "WallClock",
]
