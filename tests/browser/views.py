"""What the API tells of a job, as the dashboard's modules are given it."""

from __future__ import annotations

from typing import Any


def job(job_id: str, **changes: object) -> dict[str, Any]:
    """A job of eight present ranks on version 1, that nothing is measured of."""
    return {
        "job_id": job_id,
        "state": "planned",
        "emulated": False,
        "num_stages": 8,
        "num_microbatches": 12,
        "schedule": "1f1b",
        "num_ranks": 8,
        "num_registered": 8,
        "num_present": 8,
        "newest_version": 1,
        "active_version": 1,
        "policy": "frontier",
        "target": "fastest",
        "predicted": None,
        "measured": None,
        "measured_baseline_time_s": None,
        "measured_baseline_energy_j": None,
        "slowdown_percent": None,
        "saving_percent": None,
        "saved_j": None,
        "num_steps": 0,
        "is_caught_up": True,
        "problem": None,
        "created_at": "2026-01-05T09:30:00+00:00",
        "heard_at": "2026-01-05T09:40:00+00:00",
        **changes,
    }


def measured(time_s: float, energy_j: float | None, clocks: str = "plan") -> dict[str, Any]:
    """The mean of ten steps."""
    return {
        "clocks": clocks,
        "version": 1,
        "first_step": 10,
        "last_step": 19,
        "num_steps": 10,
        "iteration_time_s": time_s,
        "energy_j": energy_j,
    }


def estimate(mean: float, low: float | None = None, high: float | None = None) -> dict[str, Any]:
    """Of ten steps."""
    return {"mean": mean, "low": low, "high": high, "num_steps": 10}


def stage_of_step(stage: int, energy_j: float | None, **held: int) -> dict[str, Any]:
    """Of 2 s."""
    return {
        "stage": stage,
        "num_ranks": 1,
        "time_s": 2.0,
        "energy_j": energy_j,
        "num_clock_misses": 0,
        "num_power_capped": 0,
        "num_thermally_capped": 0,
        "sm_clock_mhz": None,
        **held,
    }


def step(number: int, version: int | None = 1, **changes: object) -> dict[str, Any]:
    """Of two stages that drew 100 W and 200 W."""
    return {
        "step": number,
        "num_ranks": 2,
        "plan_versions": [version],
        "time_s": 2.0,
        "energy_j": 600.0,
        "stages": [stage_of_step(0, 200.0), stage_of_step(1, 400.0)],
        **changes,
    }


def plan(
    version: int, first_step: int | None, created_at: str, **changes: object
) -> dict[str, Any]:
    """A version that is predicted to take 1.9 s and 590 J."""
    return {
        "version": version,
        "kind": "plan",
        "schedule": "1f1b",
        "policy": "frontier",
        "target": "fastest",
        "created_at": created_at,
        "first_step": first_step,
        "predicted": {
            "iteration_time_s": 1.9,
            "energy_j": 590.0,
            "baseline_iteration_time_s": 1.9,
            "baseline_energy_j": 700.0,
            "saving_percent": 15.7,
            "gap_percent": 1.0,
        },
        "stage_clock_mhz": [1000.0, 1410.0],
        **changes,
    }
