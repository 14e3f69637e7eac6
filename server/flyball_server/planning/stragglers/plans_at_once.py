"""Plans that ranks wait for: of a large pipeline a first plan, of any other the ordinary one.

A GPU has become slow, and with the clocks from before every iteration takes longer than it need.
A plan at T' is wanted now; a better one may follow (`make_paced_plan` with the job's own effort).
"""

from __future__ import annotations

import math

from flyball_server.planning.errors import PlanningError
from flyball_server.planning.frontier.targets import Target, parse_target
from flyball_server.planning.plan import DataParallelPlan, FrequencyPlan
from flyball_server.planning.planner import SEARCHING, PhaseReport, PlanRequest, model_of_request
from flyball_server.planning.schedule_choice import is_auto
from flyball_server.planning.stragglers.first_plans import PacedFirstPlans
from flyball_server.planning.stragglers.running_clocks import RunningClocks
from flyball_server.planning.stragglers.slowed_pipelines import (
    PacedRequest,
    make_paced_plan,
    pace_classes,
)

# Of all pipelines that are planned apart: below, the search with the least effort takes no more
# than half a second, and comes nearer to the bound.
FIRST_PLANS_FROM = 3_000
# For a power budget; each plan takes as long as one for a deadline.
POWER_ROUNDS = 4
# A deadline for a budget is not looked for more closely than this share.
SAME_DEADLINE = 0.002

AnyPlan = FrequencyPlan | DataParallelPlan


def make_plan_at_once(
    paced: PacedRequest,
    running: RunningClocks | None = None,
    report: PhaseReport = lambda _: None,
) -> FrequencyPlan | DataParallelPlan:
    """A plan for these paces, in the time that ranks may wait for it.

    Args:
        paced: as for `make_paced_plan`, with the least effort.
        running: what the ranks run now; None: not known. A first plan is begun from it. Where
            these clocks are known of all ranks, the plan is given only if it is better at what
            the target asks for: if it needs no more energy than they do by now, unless they were
            planned for a longer iteration than a deadline allows; for a power budget, if they are
            beyond it by now or slower.
        report: told what is about to be done.

    Returns:
        A plan that meets the target; its bound is proven, and looser where it is a first plan.

    Raises:
        PlanningError, TargetUnreachableError: as for `make_paced_plan`.
    """
    return make_first_plan(paced, running, report) or make_paced_plan(paced, report)


def make_first_plan(
    paced: PacedRequest,
    running: RunningClocks | None = None,
    report: PhaseReport = lambda _: None,
) -> FrequencyPlan | DataParallelPlan | None:
    """The first plan for these paces; None: none is of use, or none is needed.

    Arguments and errors as for `make_plan_at_once`.
    """
    request = paced.request
    target = _target(request)
    if target is None:
        return None
    num_pipelines = len(pace_classes(paced.paces, paced.num_pipelines))
    if model_of_request(request).dag.num_nodes * num_pipelines < FIRST_PLANS_FROM:
        return None
    report(SEARCHING)
    plans = PacedFirstPlans(paced, running)
    # Where none is found the search says what can be met.
    if target.kind == "power":
        plan = _plan_for_power(plans, target.value)
    else:
        plan = plans.plan(_deadline_s(target, plans))
    is_useful = plan is not None and not _is_worse(plan, plans, target, running)
    return plan if is_useful else None


def _target(request: PlanRequest) -> Target | None:
    """What is aimed at; None: nothing for which a first plan can be made."""
    if request.policy != "frontier" or is_auto(request.schedule):
        return None
    try:
        return parse_target(request.target)
    except PlanningError:
        return None  # the search says so


def _deadline_s(target: Target, plans: PacedFirstPlans) -> float:
    return {
        "fastest": plans.baseline_s,
        "slowdown": plans.baseline_s * (1 + target.value),
        "deadline": target.value,
        "least-energy": math.inf,
    }[target.kind]


def _plan_for_power(plans: PacedFirstPlans, budget_w: float) -> AnyPlan | None:
    """The fastest plan that is found, not faster than the baseline, with this power on average.

    Along the frontier energy falls with time, and convexly. So between a deadline that is too
    short for the budget and one that is long enough, the straight line between their energies
    crosses the budget's at one that is long enough too, and nearer to the shortest there is.
    """
    plan = plans.plan(plans.baseline_s)
    if plan is None or _excess_j(plan, budget_w) <= 0:
        return plan
    within = plans.plan(math.inf)
    if within is None or _excess_j(within, budget_w) > 0:
        return None
    too_short_s, too_much_j = plans.baseline_s, _excess_j(plan, budget_w)
    for _ in range(POWER_ROUNDS):
        left_s = within.iteration_time_s - too_short_s
        if left_s < SAME_DEADLINE * too_short_s:
            break
        deadline_s = too_short_s + left_s * too_much_j / (too_much_j - _excess_j(within, budget_w))
        plan = plans.plan(deadline_s)
        if plan is None:
            break
        if _excess_j(plan, budget_w) > 0:
            too_short_s, too_much_j = deadline_s, _excess_j(plan, budget_w)
        else:
            within = min(plan, within, key=lambda one: one.iteration_time_s)
    return within


def _excess_j(plan: AnyPlan, budget_w: float) -> float:
    """How much more an iteration takes than the budget allows it, J."""
    return plan.energy_j - budget_w * plan.iteration_time_s


def _is_worse(
    plan: AnyPlan, plans: PacedFirstPlans, target: Target, running: RunningClocks | None
) -> bool:
    """Whether the clocks that run now are better by now than the plan, at what is aimed at.

    Clocks that were planned for slower iterations than a deadline allows may need less energy:
    that is no fault. Nor is anything found of clocks that are not known.
    """
    if running is None or plans.now is None:
        return False
    time_s, energy_j = plans.now
    if target.kind == "power":
        return energy_j <= target.value * time_s and time_s <= plan.iteration_time_s
    if target.kind != "least-energy" and running.iteration_time_s > plan.iteration_time_s:
        return False
    return plan.energy_j > energy_j
