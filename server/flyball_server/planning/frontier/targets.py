"""Targets on the frontier, and the deadline that each one comes to."""

from __future__ import annotations

import decimal
import math
from dataclasses import dataclass

from flyball_server.planning.errors import PlanningError, TargetUnreachableError
from flyball_server.planning.frontier.solver import DeadlinePlan, DeadlineSolver

# Plans made for a power budget, at most, and the error of their deadline, as a share.
POWER_ROUNDS = 12
POWER_TOLERANCE = 5e-4

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
    return solver.plan_within(wanted_s, num_moves)


def _plan_for_power(
    solver: DeadlineSolver, budget_w: float, baseline_time_s: float, num_moves: int
) -> DeadlinePlan:
    """Return the fastest plan found, not faster than the baseline, within an average power.

    Along the frontier energy falls with time. The deadline is the root of the plans' excess
    energy, found by Newton's method with the slope of the bound, inside a bracket of deadlines
    that are too short and long enough.
    """
    least = solver.plan_within(math.inf, num_moves)
    if _excess_j(least, budget_w) > 0:
        raise TargetUnreachableError(
            f"no plan on the frontier draws {budget_w:g} W on average; the least is"
            f" {_rounded_up(least.energy_j / least.iteration_time_s)} W,"
            f" at {least.iteration_time_s:.6g} s",
            field="target",
        )
    best, too_short_s, enough_s = least, 0.0, max(least.iteration_time_s, solver.fastest_time_s)
    deadline_s = min(baseline_time_s, enough_s)
    for number in range(POWER_ROUNDS):
        plan = solver.plan_within(deadline_s, num_moves)
        excess_j = _excess_j(plan, budget_w)
        if excess_j > 0:
            too_short_s = deadline_s
        else:
            best = min(best, plan, key=lambda one: one.iteration_time_s)
            enough_s = min(enough_s, plan.iteration_time_s)
        tolerance_s = POWER_TOLERANCE * deadline_s
        step_s = excess_j / (budget_w - plan.relaxed.bound_slope_w)
        is_near = -tolerance_s <= step_s <= 0
        if is_near or enough_s <= max(baseline_time_s, too_short_s + tolerance_s):
            break
        deadline_s += step_s + tolerance_s / 2
        # Plans change in steps, and Newton's steps can fall short of one again and again.
        if number % 4 == 3 or not too_short_s < deadline_s < enough_s:
            deadline_s = (max(too_short_s, baseline_time_s) + enough_s) / 2
    return best


def _excess_j(plan: DeadlinePlan, budget_w: float) -> float:
    """Return the energy of an iteration beyond the budget, J."""
    return plan.energy_j - budget_w * plan.iteration_time_s


def _rounded_up(value: float) -> str:
    """Six digits, so rounded that asking for exactly the printed figure is granted."""
    context = decimal.Context(prec=6, rounding=decimal.ROUND_CEILING)
    return f"{context.create_decimal_from_float(value).normalize():f}"
