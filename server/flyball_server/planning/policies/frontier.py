"""The policy `frontier`: the least energy that is found for a target, with its certificate."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from flyball_pipeline.paths import earliest_finish_s
from flyball_profiles.clock_transitions import ClockTransitions
from flyball_server.planning.errors import TargetUnreachableError
from flyball_server.planning.frontier.noise_reserve import solver_with_reserve
from flyball_server.planning.frontier.reserve import with_reserve
from flyball_server.planning.frontier.solver import DeadlinePlan, DeadlineSolver
from flyball_server.planning.frontier.targets import (
    deadline_of,
    plan_for_target,
)
from flyball_server.planning.frontier.transition_search import (
    SwitchLimits,
    TransitionSearch,
    is_tiny,
)
from flyball_server.planning.model.early_requests import EarlyRequestBatch, early_requests
from flyball_server.planning.model.pipeline_model import Assignment, PipelineModel
from flyball_server.planning.model.simulator import simulate, time_and_energy
from flyball_server.planning.model.unheld_clocks import with_fewest_changes
from flyball_server.planning.policies._base import PolicyChoice, PolicyRequest
from flyball_server.planning.policies.single_clocks import MAX_COMPARED_STAGES, SingleClocks
from flyball_server.planning.request_options import is_limited, rounded_up, within_calls
from flyball_wire.plan_options import Effort
from flyball_wire.targets import Target, parse_target

# The plan that a search with late clock changes goes on from.
START_EFFORT = {
    Effort.LOW: Effort.LOW,
    Effort.NORMAL: Effort.LOW,
    Effort.HIGH: Effort.NORMAL,
}
# A plan that is late by its clock changes is made for an earlier deadline too, by so much of that.
EARLIER = 1.1
# One that is above its power budget by them is made for a lower one: so often, and by so much.
LOWER_BUDGETS, LOWER = 8, 1.1
# Other clocks, and late changes, are searched for where early requests cost more than this.
WORTH_A_SEARCH = 1.01


def frontier(request: PolicyRequest) -> PolicyChoice:
    """One clock per instruction near the relaxed optimum of the target's deadline.

    Where clock changes take time, the plan meets the target with them and is no worse than one
    clock per stage; within a power budget it is otherwise the fastest as if they took none. Clocks
    are requested ahead of an instruction's end if there is such a plan and the options allow it.
    No plan needs more than the highest clocks where these meet the target, each with its late
    changes. Option `reconfigure` is not used.
    """
    request = replace(request, model=request.model.with_requests({}))
    model = request.model.without_transitions()
    target = parse_target(request.options.target)
    baseline_s, _ = time_and_energy(request.model, model.baseline())
    deadline_s = math.inf if target.kind == "power" else deadline_of(target, baseline_s)
    solver, reserve = solver_with_reserve(model, request.options, deadline_s)
    return replace(choice_with(solver, request, target, baseline_s), reserve=reserve)


def choice_with(
    solver: DeadlineSolver, request: PolicyRequest, target: Target, baseline_s: float
) -> PolicyChoice:
    """Return the clocks for a target, by a solver of the pipeline as if clocks changed at once.

    Args:
        solver: the solver, with the plan's reserve.
        request: request of which target and reserve are not used.
        target: the target.
        baseline_s: iteration time in s that the target counts from.

    Raises:
        TargetUnreachableError: no plan is found that meets the target.
    """
    if target.kind != "power":
        num_stages = request.model.schedule.num_stages
        options = within_calls(request.options, baseline_s, num_stages)
        request = replace(request, options=options)
    effort = request.options.effort
    asks_early = request.options.early_requests and request.model.transitions is not None
    if request.model.transitions is not None and target.kind != "power" and not asks_early:
        effort = START_EFFORT[effort]

    def planned(target: Target) -> DeadlinePlan:
        return plan_for_target(solver, target, baseline_s, solver.num_steps(effort))

    at_once = planned(target)
    assignment = with_fewest_changes(request.model, at_once.assignment)
    at_once = replace(at_once, assignment=assignment)
    if request.model.transitions is None:
        model = replace(request.model, transitions=ClockTransitions.exact(0.0))
        request = replace(request, model=model)
        if _is_within_limits(request, solver, at_once.assignment):
            return PolicyChoice(assignment=at_once.assignment, lower_bound_j=at_once.lower_bound_j)
    if target.kind == "power":
        return _choice_in_budget(request, solver, target, at_once, planned, asks_early=asks_early)
    deadline_s = deadline_of(target, baseline_s)
    choice = _choice_in_time(request, solver, at_once, deadline_s, asks_early=asks_early)
    time_s, _ = _figures(request.model, choice)
    return replace(
        choice,
        lower_bound_j=solver.bound_within(deadline_s, time_s),
        at_once_j=at_once.energy_j,
    )


def _choice_in_time(
    request: PolicyRequest,
    solver: DeadlineSolver,
    at_once: DeadlinePlan,
    deadline_s: float,
    *,
    asks_early: bool,
) -> PolicyChoice:
    """Return the clocks of least energy that are found for a deadline.

    Args:
        request: the request.
        solver: of the pipeline as if clocks changed at once.
        at_once: its plan for the deadline.
        deadline_s: s; infinite for the least energy of all.
        asks_early: clocks may be requested ahead of an instruction's end.

    Raises:
        TargetUnreachableError: no plan is found that meets the deadline.
    """
    model, highest = request.model, request.model.baseline()
    found: list[PolicyChoice] = []
    # A target that counts from them is met by them, whatever their own changes take.
    if time_and_energy(model, highest)[0] <= deadline_s and _is_within_limits(
        request, solver, highest
    ):
        found.append(PolicyChoice(assignment=highest))
    least_j = math.inf
    if asks_early:
        assignment = _early_in_time(request, solver, at_once, deadline_s)
        if assignment is not None:
            found.append(_with_early_requests(model, assignment))
            least_j = _figures(model, found[-1])[1]
    # Where delays are long or vary much, changes that come late may cost less than fewer.
    if is_tiny(model) or least_j > WORTH_A_SEARCH * at_once.energy_j:
        try:
            late = _in_time(request, solver, at_once.assignment, deadline_s)
            found.append(PolicyChoice(assignment=late))
        except TargetUnreachableError:
            if not found:
                raise
    return min(found, key=lambda choice: _figures(model, choice)[1])


def _choice_in_budget(
    request: PolicyRequest,
    solver: DeadlineSolver,
    target: Target,
    at_once: DeadlinePlan,
    planned: Callable[[Target], DeadlinePlan],
    *,
    asks_early: bool,
) -> PolicyChoice:
    """Return the fastest clocks that are found within a power budget.

    Args:
        request: the request.
        solver: of the pipeline as if clocks changed at once.
        target: the budget: average power in W.
        at_once: the solver's plan for it.
        planned: the same for another budget.
        asks_early: clocks may be requested ahead of an instruction's end.

    Raises:
        TargetUnreachableError: no plan is found within the budget.
    """
    model = request.model
    found: list[PolicyChoice] = []
    if asks_early:
        early = _early_in_budget(request, solver, at_once, target)
        if early is not None:
            found.append(early)
    least_j = min((_figures(model, one)[1] for one in found), default=math.inf)
    if least_j > WORTH_A_SEARCH * at_once.energy_j:
        try:
            late = _within_budget(model, target, at_once.assignment, planned)
            found.append(PolicyChoice(assignment=late))
        except TargetUnreachableError:
            if not found:
                raise
    best = min(found, key=lambda choice: _figures(model, choice))
    early_model = model.with_requests(best.requests)
    return replace(best, lower_bound_j=_bound_j(early_model, solver, best.assignment))


def _figures(model: PipelineModel, choice: PolicyChoice) -> tuple[float, float]:
    """Return time in s and energy in J of an iteration, with the choice's requests."""
    return time_and_energy(model.with_requests(choice.requests), choice.assignment)


def _early_in_time(
    request: PolicyRequest, solver: DeadlineSolver, at_once: DeadlinePlan, deadline_s: float
) -> Assignment | None:
    """Return clocks that are requested ahead; None: no such plan meets the deadline.

    Args:
        request: the request.
        solver: of the pipeline as if clocks changed at once.
        at_once: its plan for the deadline.
        deadline_s: s; infinite for the least energy of all.
    """
    model, search = request.model, _search(request, solver, asks_early=True)
    assignment: Assignment | None = at_once.assignment
    is_kept = not search.num_beyond(np.array([at_once.assignment]))[0]
    if (
        is_tiny(model)
        or not is_kept
        or search.energy_j(at_once.assignment) > WORTH_A_SEARCH * at_once.energy_j
    ):
        starts = [model.baseline(), at_once.assignment, *_fewest(request, solver, deadline_s)]
        price_w = _time_price_w(model, solver, deadline_s)
        assignment = search.improved(starts, deadline_s, price_w)
    if assignment is None or EarlyRequestBatch(model).num_unbounded(np.array([assignment]))[0]:
        return None
    return assignment


def _early_in_budget(
    request: PolicyRequest, solver: DeadlineSolver, at_once: DeadlinePlan, target: Target
) -> PolicyChoice | None:
    """Return the plan with its clocks requested ahead; None: it is not within the budget then."""
    model, choices = request.model, np.array([at_once.assignment])
    search = _search(request, solver, asks_early=True)
    if search.num_beyond(choices)[0] or EarlyRequestBatch(model).num_unbounded(choices)[0]:
        return None
    early = _with_early_requests(model, at_once.assignment)
    drawn_w = _power_w(model.with_requests(early.requests), early.assignment)
    return early if drawn_w <= target.value else None


def _with_early_requests(model: PipelineModel, assignment: Assignment) -> PolicyChoice:
    transitions, clocked = model.transitions, model.clocked
    assert transitions is not None  # noqa: S101 - the caller has seen to it
    requests = early_requests(clocked, clocked.clocks(assignment), transitions)
    return PolicyChoice(assignment=assignment, requests=requests)


def _is_within_limits(
    request: PolicyRequest, solver: DeadlineSolver, assignment: Assignment
) -> bool:
    if not is_limited(request.options):
        return True
    return not _search(request, solver).num_beyond(np.array([assignment]))[0]


def _search(
    request: PolicyRequest, solver: DeadlineSolver, *, asks_early: bool = False
) -> TransitionSearch:
    options = request.options
    return TransitionSearch(
        with_reserve(request.model, solver.reserve),
        solver.mean_step_j,
        options.effort,
        SwitchLimits(
            max_switches=options.max_switches, min_dwell_s=(options.min_dwell_ms or 0.0) / 1e3
        ),
        asks_early=asks_early,
    )


def _fewest(request: PolicyRequest, solver: DeadlineSolver, deadline_s: float) -> list[Assignment]:
    """Return the plan of one clock per stage, unless it takes long to find."""
    if not is_limited(request.options) and len(request.model.num_ranks) > MAX_COMPARED_STAGES:
        return []
    aim = Target(kind="deadline", value=min(deadline_s, solver.slowest_time_s))
    (fewest,) = SingleClocks(request.model.without_transitions()).constant([aim])
    return [fewest.assignment]


def _time_price_w(model: PipelineModel, solver: DeadlineSolver, deadline_s: float) -> float:
    """Return about the energy that a second of the iteration's time is worth, W."""
    price_w = solver.relax(min(deadline_s, solver.slowest_time_s)).bound_slope_w
    return max(-price_w, sum(model.stage_blocking_power_w))


def _within_budget(
    model: PipelineModel,
    target: Target,
    assignment: Assignment,
    planned: Callable[[Target], DeadlinePlan],
) -> Assignment:
    """Return a plan that draws no more than the budget with its clock changes.

    One clock per stage is taken where that is faster, or as fast with less energy.

    Args:
        model: the pipeline, with the times of its clock changes.
        target: the budget: average power in W.
        assignment: the plan for this budget as if clocks changed at once.
        planned: plans for another budget as if clocks changed at once.

    Raises:
        TargetUnreachableError: no plan is found that draws as little.
    """
    budget_w = asked_w = target.value
    (fewest,) = SingleClocks(model).constant([target])
    found = [fewest.assignment] if _power_w(model, fewest.assignment) <= budget_w else []
    drawn_w = _power_w(model, assignment)
    for _ in range(LOWER_BUDGETS):
        if drawn_w <= budget_w:
            break
        asked_w -= LOWER * (drawn_w - budget_w)
        assignment = planned(replace(target, value=asked_w)).assignment
        drawn_w = _power_w(model, assignment)
    if drawn_w <= budget_w:
        found.append(assignment)
    if found:
        return min(found, key=lambda one: time_and_energy(model, one))
    raise TargetUnreachableError(
        f"no plan found draws {budget_w:g} W on average with the times of its clock changes; the"
        f" last one draws {rounded_up(drawn_w)} W",
        field="target",
    )


def _power_w(model: PipelineModel, assignment: Assignment) -> float:
    time_s, energy_j = time_and_energy(model, assignment)
    return energy_j / time_s


def _in_time(
    request: PolicyRequest, solver: DeadlineSolver, assignment: Assignment, deadline_s: float
) -> Assignment:
    """Return the plan of least energy that is found to meet the deadline with its clock changes.

    Args:
        request: the request.
        solver: of the pipeline as if clocks changed at once.
        assignment: its plan for the deadline.
        deadline_s: s; infinite for the least energy of all.

    Raises:
        TargetUnreachableError: no plan is found that meets it.
    """
    search = _search(request, solver)
    starts = [request.model.baseline(), assignment, search.raised(assignment, deadline_s)]
    late_s = search.times_s([assignment])[0] - deadline_s
    earlier_s = min(deadline_s, solver.slowest_time_s) - EARLIER * late_s
    if late_s > 0 and earlier_s > solver.fastest_time_s:
        earlier = solver.plan_within(earlier_s, solver.num_steps(Effort.LOW)).assignment
        starts += [earlier, search.raised(earlier, deadline_s)]
    starts += _fewest(request, solver, deadline_s)
    price_w = _time_price_w(request.model, solver, deadline_s)
    found = search.improved(starts, deadline_s, price_w)
    if found is None:
        is_beyond = search.num_beyond(np.array(starts)) > 0
        if is_beyond.all():
            raise TargetUnreachableError(
                "no plan found is within max_switches and min_dwell_ms", field="target"
            )
        within_s = np.array(search.times_s(starts))[~is_beyond]
        fastest = rounded_up(float(within_s.min()))
        raise TargetUnreachableError(
            f"no plan found takes {deadline_s:g} s with the times of its clock changes; the fastest"
            f" found takes {fastest} s",
            field="target",
            nearest_target=f"deadline:{fastest}",
        )
    return found


def _bound_j(model: PipelineModel, solver: DeadlineSolver, assignment: Assignment) -> float:
    """Return what no plan needs less than that keeps the reserve and is as fast as this one, J.

    While a clock has not changed yet, an instruction runs at points that the profile has: what it
    takes lies on a line between them, so above the hull that the bound is for. With all of its
    reserve used, the plan ends at the deadline of the bound.
    """
    simulation = simulate(model, assignment)
    longer = with_reserve(model, solver.reserve)
    longest_s = max(
        earliest_finish_s(
            model.dag,
            [
                busy_s * long[choice].time_s / own[choice].time_s
                for busy_s, long, own, choice in zip(
                    simulation.busy_s, longer.points, model.points, assignment, strict=True
                )
            ],
        )
    )
    deadline_s = min(max(longest_s, solver.fastest_time_s), solver.slowest_time_s)
    unused_s = max(0.0, longest_s - simulation.iteration_time_s)
    return solver.bound_j(solver.relax(deadline_s), unused_s)
