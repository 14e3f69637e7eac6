"""Targets on the frontier, and the deadline that each one comes to."""

from __future__ import annotations

import decimal
import math
from dataclasses import dataclass

from flyball_server.planning.errors import PlanningError, TargetUnreachableError
from flyball_server.planning.frontier.solver import DeadlinePlan, DeadlineSolver

POWER_ROUNDS = 6
POWER_BISECTIONS = 20
POWER_MARGIN = 1e-4  # beyond the excess found, so that few rounds are needed

TARGET_FORMS = ("fastest", "slowdown:0.05", "deadline:2.9", "least-energy", "power:8000")


@dataclass(frozen=True, kw_only=True)
class Target:
    """An aim: `fastest`, `slowdown` (share), `deadline` (s), `least-energy`, `power` (W)."""

    kind: str
    value: float = 0.0


def parse_target(text: str) -> Target:
    """The target that `text` names.

    Raises:
        PlanningError: it names none; the message lists the forms.
    """
    kind, colon, value_text = text.partition(":")
    forms = {form.partition(":")[0]: ":" in form for form in TARGET_FORMS}
    if kind not in forms or bool(colon) != forms[kind]:
        raise PlanningError(f"unknown {text!r}; known: {', '.join(TARGET_FORMS)}", field="target")
    if not colon:
        return Target(kind=kind)
    try:
        value = float(value_text)
    except ValueError:
        value = math.nan
    least = 0.0 if kind == "slowdown" else math.ulp(0.0)
    if not (math.isfinite(value) and value >= least):
        raise PlanningError(
            f"{text!r} needs a number after the colon, as in"
            f" {next(form for form in TARGET_FORMS if form.startswith(kind))!r}",
            field="target",
        )
    return Target(kind=kind, value=value)


def plan_for_target(
    solver: DeadlineSolver, target: Target, baseline_time_s: float, num_moves: int
) -> DeadlinePlan:
    """The plan of least energy that meets the target.

    Raises:
        TargetUnreachableError: none does; the message says what can be met.
    """
    if target.kind == "power":
        return _plan_for_power(solver, target.value, baseline_time_s, num_moves)
    wanted_s = {
        "fastest": baseline_time_s,
        "slowdown": baseline_time_s * (1 + target.value),
        "deadline": target.value,
        "least-energy": math.inf,
    }[target.kind]
    if wanted_s < solver.fastest_time_s:
        raise TargetUnreachableError(
            f"no plan takes {wanted_s:g} s;"
            f" the fastest takes {_rounded_up(solver.fastest_time_s)} s",
            field="target",
        )
    relaxed = solver.relax(min(wanted_s, solver.slowest_time_s))
    return solver.plan(solver.without_waiting(relaxed), num_moves)


def _plan_for_power(
    solver: DeadlineSolver,
    budget_w: float,
    baseline_time_s: float,
    num_moves: int,
) -> DeadlinePlan:
    """The fastest plan, not faster than the baseline, whose average power is in the budget.

    Along the frontier energy falls as time grows, so average power falls. The deadline is found
    by bisection on the bound's power; a plan lies a little above its bound, so the bound then
    aims as much lower, until the plan itself is in the budget.
    """
    least_energy_s = solver.least_energy_time_s()
    least = solver.plan(solver.relax(least_energy_s), num_moves)
    if _power_w(least) > budget_w:
        raise TargetUnreachableError(
            f"no plan on the frontier draws {budget_w:g} W on average; the least is"
            f" {_rounded_up(_power_w(least))} W, at {least.iteration_time_s:.6g} s",
            field="target",
        )
    fast_s, slow_s = min(baseline_time_s, least_energy_s), least_energy_s
    aim_w = budget_w
    for _ in range(POWER_ROUNDS):
        deadline_s = _deadline_for_bound_power(solver, aim_w, fast_s, slow_s)
        plan = solver.plan(solver.relax(deadline_s), num_moves)
        excess = _power_w(plan) / budget_w
        if excess <= 1:
            return plan
        aim_w /= excess * (1 + POWER_MARGIN)
    return least


def _deadline_for_bound_power(
    solver: DeadlineSolver, power_w: float, fast_s: float, slow_s: float
) -> float:
    relaxed = solver.relax(fast_s)
    if relaxed.lower_bound_j <= power_w * fast_s:
        return fast_s
    for _ in range(POWER_BISECTIONS):
        middle_s = (fast_s + slow_s) / 2
        if solver.relax(middle_s).lower_bound_j <= power_w * middle_s:
            slow_s = middle_s
        else:
            fast_s = middle_s
    return slow_s


def _power_w(plan: DeadlinePlan) -> float:
    return plan.energy_j / plan.iteration_time_s


def _rounded_up(value: float) -> str:
    """Six digits, so rounded that asking for exactly the printed figure is granted."""
    context = decimal.Context(prec=6, rounding=decimal.ROUND_CEILING)
    return f"{context.create_decimal_from_float(value).normalize():f}"
