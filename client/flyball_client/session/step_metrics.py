"""Figures of a rank's steps for a training loop's log, as a flat dict of numbers."""

from __future__ import annotations

from flyball_wire.messages import StepMeasurement

_COUNTS = (
    "num_unplanned",
    "num_overruns",
    "num_clock_misses",
    "num_power_capped",
    "num_thermally_capped",
)


class StepMetrics:
    """Figures of the last measured step, and totals of all of them."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._totals: dict[str, float] = {
            "total_num_steps": 0.0,
            "total_num_steps_without_plan": 0.0,
            "total_time_s": 0.0,
            **{f"total_{count}": 0.0 for count in _COUNTS},
        }

    def add(self, step: StepMeasurement) -> None:
        """Add a measured step."""
        last = {
            "step": float(step.step),
            "plan_version": float(step.plan_version or 0),
            "step_time_s": step.time_s,
            **{f"step_{count}": float(getattr(step, count)) for count in _COUNTS},
        }
        if step.energy_j is not None:
            last["step_energy_j"] = step.energy_j
            if step.time_s > 0:
                last["step_power_w"] = step.energy_j / step.time_s
        if step.sm_clock_mhz is not None:
            last["step_sm_clock_mhz"] = step.sm_clock_mhz
        totals = self._totals
        totals["total_num_steps"] += 1
        totals["total_num_steps_without_plan"] += step.plan_version is None
        for name in ("time_s", "energy_j", *_COUNTS):
            if (value := last.get(f"step_{name}")) is not None:
                totals[f"total_{name}"] = totals.get(f"total_{name}", 0.0) + value
        self._last = last

    def values(self) -> dict[str, float]:
        """Return the figures by name; one that was not measured is missing."""
        return self._last | self._totals
