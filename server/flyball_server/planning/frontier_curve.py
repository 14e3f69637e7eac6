"""The time-energy frontier of a request: its points, and what people compare it with."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

import numpy as np

from flyball_server.planning.data_parallel import choose_jointly
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.frontier.noise_reserve import solver_with_reserve
from flyball_server.planning.frontier.relaxation import (
    RelaxedOptimum,
    mixed_optimum,
    sandwich_error_j,
)
from flyball_server.planning.frontier.solver import DeadlinePlan, DeadlineSolver
from flyball_server.planning.model.early_requests import EarlyRequestBatch
from flyball_server.planning.model.joint_model import join_pipelines
from flyball_server.planning.model.late_clocks import LateClockSimulator
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.model.simulator import time_and_energy
from flyball_server.planning.planner import PlanRequest, model_of_request
from flyball_server.planning.policies._base import PolicyChoice
from flyball_server.planning.policies.single_clocks import single_clock_curves
from flyball_wire.closed_loop import ComparedPlan
from flyball_wire.plan_options import DEFAULT_TARGET, Policy, Reconfigure
from flyball_wire.read_models import Frontier, FrontierPoint

# Of an interval's claim to the next point, how much its width counts beside its error: where
# the bound is straight there are plans to choose from as well.
WIDTH_WEIGHT = 0.2
# Largest error of a mix of two relaxed optima in place of one that is solved for, as a share of
# the energy.
MAX_MIX_ERROR = 5e-4
# So many points are placed before the others are, by the errors that these leave. Of the way
# from the fastest to the least-energy time they have the shares of equal steps to this power.
NUM_FIRST, FIRST_BEND = 20, 1.5
# Plans are annealed at once up to this many instructions in all, which bounds the memory.
INSTRUCTIONS_AT_ONCE = 20_000
ROUNDS = 4  # of filling up after plans that another beats were dropped


PlanT = TypeVar("PlanT", DeadlinePlan, FrontierPoint)


def sweep_frontier(
    solver: DeadlineSolver,
    num_points: int,
    num_steps: int,
    report: Callable[[int], None] = lambda _: None,
) -> list[DeadlinePlan]:
    """Plans in rising time and falling energy, none beaten by another.

    Args:
        solver: solver of the pipeline.
        num_points: at least 2; fewer come only where the profile allows no more.
        num_steps: number of annealing steps of each plan.
        report: called with the number of plans made so far.
    """
    placement = _Placement(solver)
    num_at_once = max(1, INSTRUCTIONS_AT_ONCE // solver.num_instructions)
    plans: list[DeadlinePlan] = []
    frontier: list[DeadlinePlan] = []
    for _ in range(ROUNDS):
        optima = placement.add(num_points - len(frontier))
        report(len(plans))
        for first in range(0, len(optima), num_at_once):
            plans += solver.plans(optima[first : first + num_at_once], num_steps)
            report(len(plans))
        frontier = undominated(plans)
        if len(frontier) >= num_points:
            break
    return frontier


def undominated(plans: Iterable[PlanT]) -> list[PlanT]:
    """Return the plans that no other beats in both time and energy, in rising time."""
    kept: list[PlanT] = []
    for plan in sorted(plans, key=lambda plan: (plan.iteration_time_s, plan.energy_j)):
        if not kept or plan.energy_j < kept[-1].energy_j:
            kept.append(plan)
    return kept


class _Placement:
    """Placement of the next deadlines.

    The first ones lie closer together the faster they are. The others are placed in a few rounds,
    each shared out among the intervals that the rounds before left. A relaxed optimum is solved
    for where a mix of its neighbours would be too far from it.
    """

    def __init__(self, solver: DeadlineSolver) -> None:
        self._solver = solver
        self._optima: list[RelaxedOptimum] = []
        self._unused: list[RelaxedOptimum] = []

    def add(self, num_points: int) -> list[RelaxedOptimum]:
        """Return the relaxed optimum at this many new deadlines, in rising order."""
        if not self._optima:
            self._keep(self._first(min(num_points, NUM_FIRST)))
        if len(self._optima) > 1:
            self._keep(self._mixed(self._shared_out(num_points - len(self._unused))))
        added = sorted(self._unused, key=lambda relaxed: relaxed.deadline_s)
        self._unused = []
        return added

    def _first(self, num_points: int) -> list[RelaxedOptimum]:
        """Solve for at least two deadlines, from the latest on: a solver has the shortest way."""
        fastest_s, slowest_s = self._solver.fastest_time_s, self._solver.least_energy_time_s()
        if slowest_s <= fastest_s:
            return [self._solver.relax(fastest_s)]
        shares = np.linspace(1.0, 0.0, num_points) ** FIRST_BEND
        return [self._solver.relax(fastest_s + (slowest_s - fastest_s) * share) for share in shares]

    def _keep(self, added: list[RelaxedOptimum]) -> None:
        self._unused += added
        self._optima = sorted([*self._optima, *added], key=lambda relaxed: relaxed.deadline_s)

    def _mixed(self, deadlines_s: list[float]) -> list[RelaxedOptimum]:
        added: list[RelaxedOptimum] = []
        for left, right in pairwise(self._optima):
            inside_s = [
                deadline_s
                for deadline_s in deadlines_s
                if left.deadline_s < deadline_s < right.deadline_s
            ]
            added += self._between(left, right, inside_s)
        return added

    def _between(
        self, left: RelaxedOptimum, right: RelaxedOptimum, deadlines_s: list[float]
    ) -> list[RelaxedOptimum]:
        """Return the optima of rising deadlines between two: mixed, where that is exact enough."""
        if not deadlines_s:
            return []
        if sandwich_error_j(left, right) <= MAX_MIX_ERROR * abs(right.lower_bound_j):
            return [mixed_optimum(left, right, deadline_s) for deadline_s in deadlines_s]
        middle = len(deadlines_s) // 2
        solved = self._solver.relax(deadlines_s[middle])
        return [
            *self._between(left, solved, deadlines_s[:middle]),
            solved,
            *self._between(solved, right, deadlines_s[middle + 1 :]),
        ]

    def _claims(self) -> list[tuple[float, RelaxedOptimum, RelaxedOptimum]]:
        """Each interval's claim to the next point: how much error is left in it, and its width."""
        fastest, slowest = self._optima[0], self._optima[-1]
        energy_j = max(fastest.lower_bound_j - slowest.lower_bound_j, 1e-12)
        time_s = slowest.deadline_s - fastest.deadline_s
        return [
            (
                sandwich_error_j(left, right) / energy_j
                + WIDTH_WEIGHT * ((right.deadline_s - left.deadline_s) / time_s) ** 2,
                left,
                right,
            )
            for left, right in pairwise(self._optima)
        ]

    def _shared_out(self, num_points: int) -> list[float]:
        """Deadlines within the intervals, evenly in each; an error falls as its width squared."""
        claims = self._claims()
        shares = [0] * len(claims)
        heap = [(-claim, index) for index, (claim, _, _) in enumerate(claims)]
        heapq.heapify(heap)
        for _ in range(max(0, num_points)):
            _, index = heapq.heappop(heap)
            shares[index] += 1
            heapq.heappush(heap, (-claims[index][0] / (shares[index] + 1) ** 2, index))
        return [
            left.deadline_s + (right.deadline_s - left.deadline_s) * part / (share + 1)
            for share, (_, left, right) in zip(shares, claims, strict=True)
            for part in range(1, share + 1)
        ]


DEFAULT_NUM_POINTS = 100
MAX_NUM_POINTS = 10_000
# Of the curves of policies `constant` and `global`.
NUM_CURVE_POINTS = 16
# Greedy reconfiguration is left out: it ends near balanced and takes by far the longest.
COMPARED_ENVPIPE = (
    (Policy.UNIFORM, Reconfigure.DEFAULT),
    (Policy.ENVELOPE, Reconfigure.DEFAULT),
    (Policy.ENVELOPE, Reconfigure.BALANCED),
)


def make_frontier(
    request: PlanRequest | Sequence[PlanRequest],
    num_points: int = DEFAULT_NUM_POINTS,
    report: Callable[[int], None] = lambda _: None,
) -> Frontier:
    """Return the whole frontier of one pipeline, or of several with clocks of their own.

    The arguments and errors are those of `frontier_of_models`.
    """
    pipelines = (request,) if isinstance(request, PlanRequest) else request
    models = [model_of_request(pipeline) for pipeline in pipelines]
    return frontier_of_models(pipelines[0], models, num_points, report)


def frontier_of_models(
    request: PlanRequest,
    models: Sequence[PipelineModel],
    num_points: int,
    report: Callable[[int], None] = lambda _: None,
) -> Frontier:
    """Return the whole frontier of pipelines whose models are made already.

    Policy, reconfiguration, target and limits of clock changes are not used. Where clock changes
    take time, the plan of target `fastest` is one of the points.

    Args:
        request: options and inputs of the planning; its profile is not used.
        models: models of the pipelines.
        num_points: 2 to 10 000; fewer come where the profile allows no more.
        report: called with the number of plans made so far.

    Raises:
        PlanningError: a part of the request cannot be used; names its field.
    """
    if not 2 <= num_points <= MAX_NUM_POINTS:
        raise PlanningError(f"must be from 2 to {MAX_NUM_POINTS}, not {num_points}", field="points")
    model = join_pipelines(models)
    first = request.with_options(max_switches=None, min_dwell_ms=None)
    at_once = model.without_transitions()
    baseline_s = time_and_energy(at_once, at_once.baseline())[0]
    solver, reserve = solver_with_reserve(at_once, first.options, baseline_s)
    plans = sweep_frontier(solver, num_points, solver.num_sweep_steps(first.options.effort), report)
    if model.transitions is None:
        points = tuple(map(_point_of, plans))
    else:
        plans = late_plans(
            model,
            plans,
            keeps_reserve=reserve.share > 0,
            asks_early=first.options.early_requests,
        )
        fastest = choose_jointly(
            first.with_options(policy=Policy.FRONTIER, target=DEFAULT_TARGET), models, model
        )
        points = tuple(undominated([*map(_point_of, plans), _point_of_choice(model, fastest)]))
    times_s = np.linspace(points[0].iteration_time_s, points[-1].iteration_time_s, NUM_CURVE_POINTS)
    constant, global_clock = single_clock_curves(model, times_s.tolist())
    baseline, *envpipe = (
        _compared(first, models, model, policy, reconfigure)
        for policy, reconfigure in ((Policy.BASELINE, Reconfigure.DEFAULT), *COMPARED_ENVPIPE)
    )
    return Frontier(
        points=points,
        baseline=baseline,
        envpipe=tuple(envpipe),
        constant=constant,
        global_clock=global_clock,
        reserve=reserve,
        transitions=model.transitions,
    )


def _compared(
    request: PlanRequest,
    models: Sequence[PipelineModel],
    joint: PipelineModel,
    policy: Policy,
    reconfigure: Reconfigure,
) -> ComparedPlan:
    request = request.with_options(
        policy=policy, reconfigure=reconfigure, target=DEFAULT_TARGET, reserve=0.0
    )
    choice = choose_jointly(request, models, joint)
    time_s, energy_j = time_and_energy(joint, choice.assignment)
    return ComparedPlan(
        name=policy if policy == Policy.BASELINE else f"{policy}, {reconfigure}",
        iteration_time_s=time_s,
        energy_j=energy_j,
    )


def _point_of(plan: DeadlinePlan) -> FrontierPoint:
    return FrontierPoint(
        deadline_s=plan.relaxed.deadline_s,
        iteration_time_s=plan.iteration_time_s,
        energy_j=plan.energy_j,
        lower_bound_j=plan.lower_bound_j,
        gap_percent=100 * (plan.energy_j / plan.lower_bound_j - 1),
    )


def _point_of_choice(model: PipelineModel, choice: PolicyChoice) -> FrontierPoint:
    """Return the point of the plan for target `fastest`."""
    time_s, energy_j = time_and_energy(model.with_requests(choice.requests), choice.assignment)
    bound_j = choice.lower_bound_j
    assert bound_j is not None  # noqa: S101 - of policy `frontier`
    return FrontierPoint(
        deadline_s=time_and_energy(model, model.baseline())[0],
        iteration_time_s=time_s,
        energy_j=energy_j,
        lower_bound_j=bound_j,
        gap_percent=100 * (energy_j / bound_j - 1),
    )


def late_plans(
    model: PipelineModel,
    plans: Sequence[DeadlinePlan],
    *,
    keeps_reserve: bool,
    asks_early: bool = False,
) -> list[DeadlinePlan]:
    """Return plans made as if clocks changed at once, evaluated with late clock changes.

    A deadline that a plan misses becomes its time. The bounds are on plans as fast as they are
    then, from the tangent to the bound at the deadline, which is convex. Plans that another
    one beats are left out.

    Args:
        model: the pipeline, with the times of its clock changes.
        plans: plans for deadlines.
        keeps_reserve: whether the bounds are on plans that keep a reserve.
        asks_early: clocks are requested ahead of an instruction's end in plans where that keeps
            them in time.
    """
    batch, early = LateClockSimulator(model), EarlyRequestBatch(model) if asks_early else None
    # A plan with a reserve may wait as much less as it ends later.
    least_slope_w = sum(model.stage_blocking_power_w) if keeps_reserve else 0.0
    # No plan takes less than its instructions do, each at its cheapest clock.
    least_j = sum(min(point.energy_j for point in points) for points in model.points)
    num_at_once = max(1, INSTRUCTIONS_AT_ONCE // model.clocked.num_instructions)
    late: list[DeadlinePlan] = []
    for first in range(0, len(plans), num_at_once):
        some = plans[first : first + num_at_once]
        choices = np.array([plan.assignment for plan in some])
        run = batch.run(choices)
        times_s, energies_j = run.iteration_time_s, run.total_energy_j
        if early is not None:
            is_early, run = early.num_unbounded(choices) == 0, early.estimated(choices)
            times_s = np.where(is_early, run.iteration_time_s, times_s)
            energies_j = np.where(is_early, run.total_energy_j, energies_j)
        for plan, time_s, energy_j in zip(some, times_s.tolist(), energies_j.tolist(), strict=True):
            relaxed, later_s = plan.relaxed, max(0.0, time_s - plan.relaxed.deadline_s)
            bound_j = relaxed.lower_bound_j + (relaxed.bound_slope_w - least_slope_w) * later_s
            late.append(
                replace(
                    plan,
                    relaxed=replace(
                        relaxed,
                        deadline_s=relaxed.deadline_s + later_s,
                        lower_bound_j=max(bound_j, (1 - 1e-9) * least_j),
                    ),
                    iteration_time_s=time_s,
                    energy_j=energy_j,
                )
            )
    return undominated(late)
