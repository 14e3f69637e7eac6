"""The policy `frontier`: the least energy that is found for a target, with its certificate."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from flyball_pipeline.paths import earliest_finish_s
from flyball_profiles.clock_transitions import ClockTransitions
from flyball_server.planning.errors import TargetUnreachableError
from flyball_server.planning.frontier.noise_reserve import solver_with_reserve
from flyball_server.planning.frontier.reserve import with_reserve
from flyball_server.planning.frontier.solver import DeadlinePlan, DeadlineSolver
from flyball_server.planning.frontier.targets import deadline_of, plan_for_target
from flyball_server.planning.frontier.transition_search import TransitionSearch, is_tiny
from flyball_server.planning.model.early_requests import EarlyRequestBatch, early_requests
from flyball_server.planning.model.pipeline_model import Assignment, PipelineModel
from flyball_server.planning.model.simulator import simulate, time_and_energy
from flyball_server.planning.model.unheld_clocks import with_fewest_changes
from flyball_server.planning.policies._base import PolicyChoice, PolicyRequest
from flyball_server.planning.policies.single_clocks import MAX_COMPARED_STAGES, SingleClocks
from flyball_server.planning.request_options import MAX_CALL_SHARE, rounded_up
from flyball_wire.plan_options import Effort, PlanOptions
from flyball_wire.targets import Target, parse_target

# The plan that a search with late clock changes goes on from.
START_EFFORT = {
    Effort.LOW: Effort.LOW,
    Effort.NORMAL: Effort.LOW,
    Effort.HIGH: Effort.NORMAL,
}
# A plan that misses its deadline by its clock changes is made for an earlier deadline too: earlier
# by this multiple of the miss.
EARLIER = 1.1
# A plan that exceeds its power budget by them is made for lower ones: at most this often, each
# lower by this multiple of the excess.
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
    is_at_once = request.model.transitions is None
    if is_at_once:
        model = replace(request.model, transitions=ClockTransitions.exact(0.0))
        request = replace(request, model=model)
    choosing = _Choosing(request=request, solver=solver, at_once=at_once, asks_early=asks_early)
    if is_at_once and choosing.is_within_limits(at_once.assignment):
        return PolicyChoice(assignment=at_once.assignment, lower_bound_j=at_once.lower_bound_j)
    if target.kind == "power":
        return choosing.in_budget(target, planned)
    deadline_s = deadline_of(target, baseline_s)
    choice = choosing.in_time(deadline_s)
    time_s, _ = _figures(request.model, choice)
    return replace(
        choice,
        lower_bound_j=solver.bound_within(deadline_s, time_s),
        at_once_j=at_once.energy_j,
    )


def within_calls(options: PlanOptions, iteration_time_s: float, num_stages: int) -> PlanOptions:
    """Return the options with no more clock changes than the calls of a node leave time for.

    Args:
        options: options of a plan.
        iteration_time_s: iteration time at the highest clocks, s.
        num_stages: number of stages, of all pipelines that have clocks of their own.
    """
    times, num_gpus = options.transitions, options.gpus_in_node
    if times is None or num_gpus is None or num_gpus < 2 or not times.is_queued:
        return options
    # Each GPU of the node makes as many calls as a stage on average has changes.
    of_stage = MAX_CALL_SHARE * iteration_time_s / (num_gpus * times.call_mean_s)
    most = int(of_stage * num_stages)
    if options.max_switches is not None:
        most = min(most, options.max_switches)
    return replace(options, max_switches=most)


@dataclass(frozen=True, kw_only=True)
class _Choosing:
    """Choice of the clocks of a pipeline whose clock changes take time.

    Attributes:
        request: request, whose model has the times of clock changes.
        solver: solver of the pipeline as if clocks changed at once.
        at_once: the solver's plan for the target.
        asks_early: true if clocks may be requested ahead of an instruction's end.
    """

    request: PolicyRequest
    solver: DeadlineSolver
    at_once: DeadlinePlan
    asks_early: bool

    @property
    def model(self) -> PipelineModel:
        """Model of the request."""
        return self.request.model

    def is_within_limits(self, assignment: Assignment) -> bool:
        """Return whether the options permit so many clock changes."""
        if not self.request.options.limits_changes:
            return True
        return not self._search().num_beyond(np.array([assignment]))[0]

    def in_time(self, deadline_s: float) -> PolicyChoice:
        """Return the clocks of least energy that are found for a deadline.

        Args:
            deadline_s: s; infinite for the least energy of all.

        Raises:
            TargetUnreachableError: no plan is found that meets the deadline.
        """
        highest, found = self.model.baseline(), list[PolicyChoice]()
        # A target that counts from them is met by them, whatever their own changes take.
        is_met = time_and_energy(self.model, highest)[0] <= deadline_s
        if is_met and self.is_within_limits(highest):
            found.append(PolicyChoice(assignment=highest))
        early = self._early_in_time(deadline_s) if self.asks_early else None
        if early is not None:
            found.append(early)
        # Where delays are long or vary much, changes that come late may cost less than fewer.
        if is_tiny(self.model) or self._is_worth_a_search(early):
            _add_late(found, lambda: self._late_in_time(deadline_s))
        return min(found, key=lambda choice: _figures(self.model, choice)[1])

    def in_budget(self, target: Target, planned: Callable[[Target], DeadlinePlan]) -> PolicyChoice:
        """Return the fastest clocks that are found within a power budget.

        Args:
            target: the budget: average power in W.
            planned: function that returns the solver's plan for another budget.

        Raises:
            TargetUnreachableError: no plan is found within the budget.
        """
        early = self._early_in_budget(target) if self.asks_early else None
        found = [] if early is None else [early]
        if self._is_worth_a_search(early):
            _add_late(found, lambda: self._late_in_budget(target, planned))
        best = min(found, key=lambda choice: _figures(self.model, choice))
        early_model = self.model.with_requests(best.requests)
        return replace(best, lower_bound_j=_bound_j(early_model, self.solver, best.assignment))

    def _is_worth_a_search(self, early: PolicyChoice | None) -> bool:
        """Return whether early requests cost much, or cannot be made."""
        if early is None:
            return True
        return _figures(self.model, early)[1] > WORTH_A_SEARCH * self.at_once.energy_j

    def _early_in_time(self, deadline_s: float) -> PolicyChoice | None:
        """Return clocks that are requested ahead; None: no such plan meets the deadline."""
        model, at_once, search = self.model, self.at_once, self._search(asks_early=True)
        assignment: Assignment | None = at_once.assignment
        is_kept = not search.num_beyond(np.array([at_once.assignment]))[0]
        if (
            is_tiny(model)
            or not is_kept
            or search.energy_j(at_once.assignment) > WORTH_A_SEARCH * at_once.energy_j
        ):
            starts = [model.baseline(), at_once.assignment, *self._fewest(deadline_s)]
            assignment = search.improved(starts, deadline_s, self._time_price_w(deadline_s))
        if assignment is None or EarlyRequestBatch(model).num_unbounded(np.array([assignment]))[0]:
            return None
        return _with_early_requests(model, assignment)

    def _early_in_budget(self, target: Target) -> PolicyChoice | None:
        """Return the plan with its clocks requested ahead; None: it then exceeds the budget."""
        model, choices = self.model, np.array([self.at_once.assignment])
        search = self._search(asks_early=True)
        if search.num_beyond(choices)[0] or EarlyRequestBatch(model).num_unbounded(choices)[0]:
            return None
        early = _with_early_requests(model, self.at_once.assignment)
        drawn_w = _power_w(model.with_requests(early.requests), early.assignment)
        return early if drawn_w <= target.value else None

    def _late_in_time(self, deadline_s: float) -> Assignment:
        """Return the plan of least energy that is found to meet the deadline with late changes.

        Raises:
            TargetUnreachableError: no plan is found that meets it.
        """
        solver, search, assignment = self.solver, self._search(), self.at_once.assignment
        starts = [self.model.baseline(), assignment, search.raised(assignment, deadline_s)]
        late_s = search.times_s([assignment])[0] - deadline_s
        earlier_s = min(deadline_s, solver.slowest_time_s) - EARLIER * late_s
        if late_s > 0 and earlier_s > solver.fastest_time_s:
            earlier = solver.plan_within(earlier_s, solver.num_steps(Effort.LOW)).assignment
            starts += [earlier, search.raised(earlier, deadline_s)]
        starts += self._fewest(deadline_s)
        found = search.improved(starts, deadline_s, self._time_price_w(deadline_s))
        if found is not None:
            return found
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

    def _late_in_budget(
        self, target: Target, planned: Callable[[Target], DeadlinePlan]
    ) -> Assignment:
        """Return a plan that draws no more than the budget with its clock changes.

        One clock per stage is taken where that is faster, or as fast with less energy.

        Raises:
            TargetUnreachableError: no plan is found that draws as little.
        """
        model, assignment = self.model, self.at_once.assignment
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
            return min(found, key=lambda assignment: time_and_energy(model, assignment))
        raise TargetUnreachableError(
            f"no plan found draws {budget_w:g} W on average with the times of its clock changes;"
            f" the last plan draws {rounded_up(drawn_w)} W",
            field="target",
        )

    def _search(self, *, asks_early: bool = False) -> TransitionSearch:
        return TransitionSearch(
            with_reserve(self.model, self.solver.reserve),
            self.solver.mean_step_j,
            self.request.options,
            asks_early=asks_early,
        )

    def _fewest(self, deadline_s: float) -> list[Assignment]:
        """Return the plan of one clock per stage, unless it takes long to find."""
        if (
            not self.request.options.limits_changes
            and len(self.model.num_ranks) > MAX_COMPARED_STAGES
        ):
            return []
        aim = Target(kind="deadline", value=min(deadline_s, self.solver.slowest_time_s))
        (fewest,) = SingleClocks(self.model.without_transitions()).constant([aim])
        return [fewest.assignment]

    def _time_price_w(self, deadline_s: float) -> float:
        """Return about the energy that a second of the iteration's time is worth, W."""
        relaxed = self.solver.relax(min(deadline_s, self.solver.slowest_time_s))
        return max(-relaxed.bound_slope_w, sum(self.model.stage_blocking_power_w))


def _add_late(found: list[PolicyChoice], late: Callable[[], Assignment]) -> None:
    """Add the plan whose clock changes may come late; nothing if only other plans are found.

    Raises:
        TargetUnreachableError: no plan is found at all.
    """
    try:
        found.append(PolicyChoice(assignment=late()))
    except TargetUnreachableError:
        if not found:
            raise


def _figures(model: PipelineModel, choice: PolicyChoice) -> tuple[float, float]:
    """Return time in s and energy in J of an iteration, with the choice's requests."""
    return time_and_energy(model.with_requests(choice.requests), choice.assignment)


def _with_early_requests(model: PipelineModel, assignment: Assignment) -> PolicyChoice:
    transitions, clocked = model.transitions, model.clocked
    assert transitions is not None  # noqa: S101 - the caller has seen to it
    requests = early_requests(clocked, clocked.clocks(assignment), transitions)
    return PolicyChoice(assignment=assignment, requests=requests)


def _power_w(model: PipelineModel, assignment: Assignment) -> float:
    time_s, energy_j = time_and_energy(model, assignment)
    return energy_j / time_s


def _bound_j(model: PipelineModel, solver: DeadlineSolver, assignment: Assignment) -> float:
    """Return a lower bound on the energy of plans as fast as this plan that keep the reserve, J.

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
