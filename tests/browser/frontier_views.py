"""What the API tells of a frontier and its job, as the dashboard's modules are given it."""

from __future__ import annotations

from typing import Any


def point(time_s: float, energy_j: float, bound_j: float) -> dict[str, float]:
    """A point of the frontier, made for its own time."""
    return {
        "deadline_s": time_s,
        "iteration_time_s": time_s,
        "energy_j": energy_j,
        "lower_bound_j": bound_j,
        "gap_percent": 100 * (energy_j / bound_j - 1),
    }


FRONTIER = {
    "points": [point(2.0, 900.0, 880.0), point(2.2, 800.0, 800.0)],
    "baseline": {"name": "baseline", "iteration_time_s": 2.0, "energy_j": 1000.0},
    "envpipe": [
        {"name": "uniform, default", "iteration_time_s": 2.5, "energy_j": 850.0},
        {"name": "envelope, default", "iteration_time_s": 2.0, "energy_j": 950.0},
        {"name": "envelope, balanced", "iteration_time_s": 2.0, "energy_j": 950.0},
    ],
    "solve_s": 0.1,
}
PREDICTED = {
    "iteration_time_s": 2.0,
    "energy_j": 900.0,
    "baseline_iteration_time_s": 2.0,
    "baseline_energy_j": 1000.0,
    "saving_percent": 10.0,
    "gap_percent": 1.0,
}
MEASURED = {
    "clocks": "plan",
    "version": 3,
    "first_step": 10,
    "last_step": 19,
    "num_steps": 10,
    "iteration_time_s": 2.1,
    "energy_j": 910.0,
}


def overview(**changes: object) -> dict[str, Any]:
    """Of a job of two ranks with version 3 in force."""
    return {
        "state": "planned",
        "emulated": False,
        "num_stages": 2,
        "num_microbatches": 4,
        "schedule": "1f1b",
        "policy": "frontier",
        "target": "fastest",
        "num_ranks": 2,
        "num_present": 2,
        "newest_version": 3,
        "active_version": 3,
        "predicted": PREDICTED,
        "measured": MEASURED,
        **changes,
    }


def summary(version: int, **changes: object) -> dict[str, Any]:
    """A version in the history."""
    return {
        "version": version,
        "kind": "plan",
        "schedule": "1f1b",
        "first_step": 5,
        "predicted": PREDICTED,
        **changes,
    }


def state(history: list[dict[str, Any]] | None = None, **changes: object) -> dict[str, Any]:
    """Return what panels are given."""
    return {
        "overview": overview(**changes),
        "history": [summary(3)] if history is None else history,
    }
