"""Answers of the API about jobs, as the dashboard's modules get them."""

from __future__ import annotations

from typing import Any

PREDICTED = {
    "iteration_time_s": 1.9,
    "energy_j": 590.0,
    "baseline_iteration_time_s": 1.9,
    "baseline_energy_j": 700.0,
    "saving_percent": 15.7,
    "gap_percent": 1.0,
    "compared": [],
    "reserve": {"share": 0.0, "choice": None},
}


_NOT_MEASURED = (
    *("predicted", "measured", "measured_baseline_time_s", "measured_baseline_energy_j"),
    *("slowdown_percent", "saving_percent", "saved_j"),
)


def job(job_id: str = "job", /, **changes: object) -> dict[str, Any]:
    """A job of eight present ranks on version 1, without measured steps."""
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
        "missed": None,
        "headline": None,
        "saved_of_j": None,
        "delays": None,
        "own_plan": None,
        "factors": {"price_per_kwh": None, "currency": "EUR", "co2_g_per_kwh": None},
        **dict.fromkeys(_NOT_MEASURED),
        "num_steps": 0,
        "is_caught_up": True,
        "deviations": [],
        "problem": None,
        "condition": None,
        "created_at": "2026-01-05T09:30:00+00:00",
        "last_seen_at": "2026-01-05T09:40:00+00:00",
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
    """An estimate from ten steps."""
    return {"mean": mean, "low": low, "high": high, "num_steps": 10}


def headline(**changes: object) -> dict[str, Any]:
    """A measured saving that was bought with time."""
    return {
        "text": "10.0 % less energy at 2.0 % more time",
        "time_text": "at 2.0 % more time",
        "tone": "trade",
        "is_measured": True,
        "caveats": [],
        **changes,
    }


def stage_of_step(stage: int, energy_j: float | None, **changes: float | None) -> dict[str, Any]:
    """A stage's 2 s of a step."""
    return {
        "stage": stage,
        "num_ranks": 1,
        "time_s": 2.0,
        "energy_j": energy_j,
        **dict.fromkeys(("num_clock_misses", "num_power_capped", "num_thermally_capped"), 0),
        "sm_clock_mhz": None,
        **changes,
    }


def step(number: int, version: int | None = 1, **changes: object) -> dict[str, Any]:
    """A step of two stages that drew 100 W and 200 W."""
    return {
        "step": number,
        "num_ranks": 2,
        "plan_versions": [version],
        "unknown_versions": [],
        "time_s": 2.0,
        "energy_j": 600.0,
        "stages": [stage_of_step(0, 200.0), stage_of_step(1, 400.0)],
        **changes,
    }


def plan(
    version: int,
    first_step: int | None,
    created_at: str = "2026-01-05T09:30:00Z",
    **changes: object,
) -> dict[str, Any]:
    """A version with a prediction of 1.9 s and 590 J."""
    return {
        "version": version,
        "kind": "plan",
        "schedule": "1f1b",
        "policy": "frontier",
        "target": "fastest",
        "created_at": created_at,
        "first_step": first_step,
        "predicted": PREDICTED,
        "stage_clock_mhz": [1000.0, 1410.0],
        "highest_mhz": 1410,
        "baseline_cycle": [],
        **changes,
    }


def point(time_s: float, energy_j: float, bound_j: float) -> dict[str, float]:
    """A point of a frontier, made for its own time."""
    return {
        "deadline_s": time_s,
        "iteration_time_s": time_s,
        "energy_j": energy_j,
        "lower_bound_j": bound_j,
        "gap_percent": 100 * (energy_j / bound_j - 1),
    }


def compared(name: str, time_s: float, energy_j: float) -> dict[str, Any]:
    """A plan that the frontier is compared with."""
    return {"name": name, "iteration_time_s": time_s, "energy_j": energy_j}


FRONTIER = {
    "points": [point(2.0, 900.0, 880.0), point(2.2, 800.0, 800.0)],
    "baseline": compared("baseline", 2.0, 1000.0),
    "envpipe": [
        compared("uniform, default", 2.5, 850.0),
        compared("envelope, default", 2.0, 950.0),
        compared("envelope, balanced", 2.0, 950.0),
    ],
    "constant": [compared("constant", 2.0, 1000.0), compared("constant", 2.2, 880.0)],
    "global_clock": [compared("global", 2.0, 1000.0), compared("global", 2.2, 910.0)],
    "solve_s": 0.1,
}


def frontier_state(
    history: list[dict[str, Any]] | None = None, /, **changes: object
) -> dict[str, Any]:
    """The page's state of a measured job of two ranks with version 3 in force."""
    overview = {
        "num_stages": 2,
        "num_ranks": 2,
        "num_present": 2,
        "newest_version": 3,
        "active_version": 3,
        "predicted": PREDICTED,
        "measured": {**measured(2.1, 910.0), "version": 3},
        **changes,
    }
    return {"overview": job(**overview), "history": [plan(3, 5)] if history is None else history}
