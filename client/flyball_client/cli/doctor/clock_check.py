"""What a GPU's clock and energy counter say at the moment."""

from __future__ import annotations

import time

from flyball_client.cli.doctor.check_result import CheckResult
from flyball_client.gpu import nvml_facts
from flyball_client.gpu._base import ClockLimit
from flyball_client.gpu.nvml import NvmlGpu

# One step of the clocks that NVML offers; it rounds what it reports.
_TOLERANCE_MHZ = 15
# Real counters move every 20 to 100 ms.
_COUNTER_TIMEOUT_S = 1.0
_COUNTER_PAUSE_S = 0.02

# What holds a clock down -> (how it is told, what to do), the gravest first.
_LIMITS = {
    ClockLimit.THERMAL: (
        "held down by heat",
        "check the cooling: nvidia-smi -q -d TEMPERATURE; planned clocks will be missed",
    ),
    ClockLimit.POWER: (
        "held down by the power limit",
        "compare the limit with its default: nvidia-smi -q -d POWER; under a limit the highest"
        " clocks are missed, so profile under the same one",
    ),
    ClockLimit.OTHER: (
        "held down by the hardware",
        "see nvidia-smi -q -d PERFORMANCE; planned clocks will be missed",
    ),
}


def check_clock(gpu: NvmlGpu, name: str, *, is_ours: bool) -> CheckResult:
    """The clock in force against the highest, and what explains the difference.

    Args:
        gpu: whose clock it is.
        name: of the check.
        is_ours: a record says that Flyball set it, so it needs no other explanation.
    """
    highest_mhz = gpu.supported_sm_clocks_mhz()[0]
    now_mhz = gpu.sm_clock_mhz()
    limits = gpu.clock_limits()
    found = f"{now_mhz} MHz of {highest_mhz}"
    for limit, (reason, advice) in _LIMITS.items():
        if limits & limit:
            return CheckResult(
                name=name, state="warning", found=f"{found}, {reason}", advice=advice
            )
    is_low = now_mhz < highest_mhz - _TOLERANCE_MHZ
    is_idle = bool(limits & ClockLimit.IDLE)
    if is_ours:
        return CheckResult(name=name, state="ok", found=f"{found}, set by Flyball (see records)")
    if is_low and (nvml_facts.has_chosen_clocks(gpu.uuid) or not is_idle):
        return CheckResult(
            name=name,
            state="warning",
            found=f"{found}, held there by somebody: no record of Flyball's explains it",
            advice=f"if nobody wants it so, flyball unlock --gpu {gpu.uuid} gives a locked clock"
            " back; nvidia-smi -q -d CLOCK shows application clocks",
        )
    return CheckResult(name=name, state="ok", found=f"{found}, idle" if is_idle else found)


def check_energy(gpu: NvmlGpu, name: str) -> CheckResult:
    """Whether the energy counter can be read and moves; a GPU always draws something."""
    before_j = gpu.total_energy_j()
    give_up_s = time.monotonic() + _COUNTER_TIMEOUT_S
    while time.monotonic() < give_up_s:
        if gpu.total_energy_j() > before_j:
            return CheckResult(name=name, state="ok", found="the energy counter moves")
        time.sleep(_COUNTER_PAUSE_S)
    return CheckResult(
        name=name,
        state="problem",
        found=f"the energy counter stood still for {_COUNTER_TIMEOUT_S:g} s",
        advice="update the driver; without it nothing can be measured, and plans need measured"
        " profiles",
    )
