"""Targets on the frontier, and the deadline that each one comes to."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flyball_server.planning.errors import PlanningError, TargetUnreachableError
from flyball_server.planning.frontier.power_budget import plan_for_power
from flyball_server.planning.frontier.solver import DeadlinePlan, DeadlineSolver
from flyball_server.planning.request_options import rounded_up

TARGET_FORMS = ("fastest", "slowdown:5%", "deadline:2.9", "least-energy", "power:8000")


@dataclass(frozen=True, kw_only=True)
class Target:
    """An aim: `fastest`, `slowdown` (share), `deadline` (s), `least-energy`, `power` (W)."""

    kind: str
    value: float = 0.0


def parse_target(text: str) -> Target:
    """Return the target that `text` names; a slowdown is in percent with `%`, else a share.

    Raises:
        PlanningError: it names none, where the message lists the forms, or a share above 1, which
            is taken for percent without the sign.
    """
    kind, colon, value_text = text.partition(":")
    forms = {form.partition(":")[0]: ":" in form for form in TARGET_FORMS}
    if kind not in forms or bool(colon) != forms[kind]:
        raise PlanningError(f"unknown {text!r}; known: {', '.join(TARGET_FORMS)}", field="target")
    if not colon:
        return Target(kind=kind)
    number_text = value_text.removesuffix("%") if kind == "slowdown" else value_text
    try:
        value = float(number_text) / (1 if number_text == value_text else 100)
    except ValueError:
        value = math.nan
    least = 0.0 if kind == "slowdown" else math.ulp(0.0)
    if not (math.isfinite(value) and value >= least):
        raise PlanningError(
            f"{text!r} needs a number after the colon, as in"
            f" {next(form for form in TARGET_FORMS if form.startswith(kind))!r}",
            field="target",
        )
    if kind == "slowdown" and value > 1 and number_text == value_text:
        raise PlanningError(
            f"{text!r} would be {100 * value:g} %; write 'slowdown:{value_text}%' or"
            f" 'slowdown:{100 * value:g}%'",
            field="target",
        )
    return Target(kind=kind, value=value)


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
