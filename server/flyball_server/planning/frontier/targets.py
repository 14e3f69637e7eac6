"""Targets on the frontier, and the deadline that each one comes to."""

from __future__ import annotations

import math

from flyball_server.planning.errors import TargetUnreachableError
from flyball_server.planning.frontier.power_budget import plan_for_power
from flyball_server.planning.frontier.solver import DeadlinePlan, DeadlineSolver
from flyball_server.planning.request_options import rounded_up
from flyball_wire.targets import Target


def deadline_of(target: Target, baseline_time_s: float) -> float:
    """Return the latest end of an iteration in s that a target other than `power` allows."""
    return {
        "fastest": baseline_time_s,
        "slowdown": baseline_time_s * (1 + target.value),
        "deadline": target.value,
        "least-energy": math.inf,
    }[target.kind]


def plan_for_target(
    solver: DeadlineSolver, target: Target, baseline_time_s: float, num_steps: int
) -> DeadlinePlan:
    """Return the plan of least energy that meets the target.

    Raises:
        TargetUnreachableError: none does; the message says what can be met.
    """
    if target.kind == "power":
        return plan_for_power(solver, target.value, baseline_time_s, num_steps)
    wanted_s = deadline_of(target, baseline_time_s)
    if wanted_s < solver.fastest_time_s:
        fastest = rounded_up(solver.fastest_time_s)
        raise TargetUnreachableError(
            f"no plan takes {wanted_s:g} s; the fastest takes {fastest} s",
            field="target",
            nearest_target=f"deadline:{fastest}",
        )
    return solver.plan_within(wanted_s, num_steps)
