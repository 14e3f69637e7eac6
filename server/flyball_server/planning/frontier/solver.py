"""Plans and bounds of one pipeline, for one deadline after another."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from flyball_server.planning.cancellation import cancellation_point
from flyball_server.planning.frontier.curves import model_curves
from flyball_server.planning.frontier.event_network import END, EventNetwork, build_network
from flyball_server.planning.frontier.highs_relaxation import HighsRelaxation
from flyball_server.planning.frontier.relaxation import Relaxation, RelaxedOptimum
from flyball_server.planning.frontier.reserve import with_reserve
from flyball_server.planning.frontier.rounding import TINY_INSTRUCTIONS, RoundedPlans, Rounding
from flyball_server.planning.model.array_dag import FloatArray, IndexArray
from flyball_server.planning.model.pipeline_model import Assignment, PipelineModel
from flyball_server.planning.model.simulator import RELATIVE_TIME_TOLERANCE, time_and_energy
from flyball_wire.plan_options import Effort

# Up to here a general solver is as fast as the interior point (docs/decisions/0004).
MAX_HIGHS_INSTRUCTIONS = 2_000
SEED = 4  # of the annealing; any will do, but always the same


# Annealing steps of one plan for each instruction, and the fewest: what was seen to be enough from
# 8 stages x 12 microbatches to 64 x 256.
STEPS_BY_EFFORT = {Effort.LOW: 1, Effort.NORMAL: 8, Effort.HIGH: 200}
MIN_STEPS_BY_EFFORT = {Effort.LOW: 100, Effort.NORMAL: 1_000, Effort.HIGH: 25_000}
# A step takes time by the number of instructions: a large pipeline gets fewer of them.
MAX_STEPPED = {Effort.LOW: 300_000, Effort.NORMAL: 3_000_000, Effort.HIGH: 300_000_000}
# In a small pipeline a single clock matters, and a single annealing may miss it: there are several
# at once, with other random numbers, fewer by the square of the number of instructions.
MAX_ATTEMPTS, ATTEMPTED_SQUARE = 8, 450_000
# Tiny pipelines are annealed in rounds, in turn hot and warm, until some in a row have found
# nothing.
TINY_ROUNDS, MAX_IDLE_ROUNDS = 6, 2
# Bounds are up to this share below the optimum that they prove: no plan is to be sought there.
AS_GOOD_AS_THE_BOUND = 1e-9
LEAST_IMPROVEMENT = 1e-6  # of a round's energy
# A plan of a whole frontier starts near its neighbour, and needs fewer.
SWEEP_STEPS_BY_EFFORT = {Effort.LOW: 0, Effort.NORMAL: 0, Effort.HIGH: 1_000}


@dataclass(frozen=True, kw_only=True)
class DeadlinePlan:
    """A plan for one deadline, with its certificate.

    Attributes:
        relaxed: the relaxed optimum for the deadline, and so the bound.
        assignment: per node, an index into its operating points.
        iteration_time_s: iteration time, at most the deadline, s.
        energy_j: energy of one iteration, J.
    """

    relaxed: RelaxedOptimum
    assignment: Assignment
    iteration_time_s: float
    energy_j: float

    @property
    def lower_bound_j(self) -> float:
        """No plan that meets the deadline needs less, J; with a reserve, as DeadlineSolver says."""
        return self.relaxed.lower_bound_j


class DeadlineSolver:
    """Solves one pipeline. Not to be shared between threads.

    Args:
        model: the pipeline, as profiled.
        reserve: possible lengthening of its instructions, as a share; see `with_reserve`.
            Bounds of plans are then on all that keep this reserve at the deadline and are no
            faster.
        is_waiting_free: costs are E - r P t alone, without the iteration time's price: energies
            and bounds are then less by blocking power times iteration time.

    Attributes:
        model: the pipeline, as profiled.
        reserve: the reserve.
        planned: the pipeline with the reserve.
        fastest_time_s: iteration time with every instruction at its fastest, s.
        slowest_time_s: with every one at its slowest clock of any use, s; a later deadline
            allows nothing more.
        mean_step_j: how much a step to the next slower clock saves on average, J.
    """

    def __init__(
        self, model: PipelineModel, *, reserve: float = 0.0, is_waiting_free: bool = False
    ) -> None:
        self.model = model
        self.reserve = reserve
        cancellation_point()
        self.planned = model = with_reserve(model, reserve)
        curves = model_curves(model)
        self._network = build_network(model, curves)
        if is_waiting_free:
            self._network = self._network.without_waiting()
        cancellation_point()
        self._relaxation: Relaxation = choose_relaxation(self._network)
        self._rounding = Rounding(model.dag, curves, self._network)
        self._num_attempts = max(1, min(MAX_ATTEMPTS, ATTEMPTED_SQUARE // self.num_instructions**2))
        self._least_bound_j = -math.inf if is_waiting_free else _busy_energy_j(self.model)
        self.fastest_time_s = float(self._rounding.fastest().end_s[0])
        self.slowest_time_s = self._rounding.slowest_time_s
        self.mean_step_j = self._rounding.mean_step_j
        self._newest: tuple[float, RelaxedOptimum] | None = None

    @property
    def num_instructions(self) -> int:
        """Instructions of one iteration."""
        return self._network.num_instructions

    def num_steps(self, effort: Effort) -> int:
        """Annealing steps that one plan of this pipeline gets."""
        wanted = max(MIN_STEPS_BY_EFFORT[effort], STEPS_BY_EFFORT[effort] * self.num_instructions)
        return min(wanted, MAX_STEPPED[effort] // (self._num_attempts * self.num_instructions))

    def num_sweep_steps(self, effort: Effort) -> int:
        """Likewise, for one plan among those of a whole frontier."""
        return min(SWEEP_STEPS_BY_EFFORT[effort], self.num_steps(effort))

    def relax(self, deadline_s: float) -> RelaxedOptimum:
        """Return the relaxed problem's optimum for a deadline not below `fastest_time_s`.

        Raises:
            ValueError: it is below.
        """
        if deadline_s < self.fastest_time_s * (1 - RELATIVE_TIME_TOLERANCE):
            raise ValueError(f"{deadline_s} s is below the fastest, {self.fastest_time_s} s")
        if self._newest is None or self._newest[0] != deadline_s:
            self._newest = deadline_s, self._relaxed(deadline_s)
        return self._newest[1]

    def _relaxed(self, deadline_s: float) -> RelaxedOptimum:
        cancellation_point()
        try:
            relaxed = self._relaxation.solve(deadline_s)
        except ArithmeticError:
            # Never seen but in tests. The other solver takes longer, and a plan is owed.
            self._relaxation = _interior_point(self._network)
            relaxed = self._relaxation.solve(deadline_s)
        if relaxed.lower_bound_j < self._least_bound_j:
            return replace(relaxed, lower_bound_j=self._least_bound_j, bound_slope_w=0.0)
        return relaxed

    def durations_s(self, relaxed: RelaxedOptimum) -> FloatArray:
        """Return the time that each instruction takes in a relaxed optimum, s; (num_nodes,)."""
        network, num_nodes = self._network, self._network.num_instructions
        event_s, length_s = relaxed.event_time_s, network.length_s[:num_nodes]
        window_s = event_s[network.head[:num_nodes]] - event_s[network.tail[:num_nodes]]
        shortest_s = network.min_window_s[:num_nodes]
        longest_s = shortest_s + np.where(np.isinf(length_s), 0.0, length_s).sum(axis=1)
        durations_s: FloatArray = np.clip(window_s, shortest_s, longest_s)
        return durations_s

    def bound_within(self, deadline_s: float, iteration_time_s: float) -> float:
        """Return what no plan needs less than that meets a deadline, J; as in `bound_j`."""
        within_s = min(max(deadline_s, self.fastest_time_s), self.slowest_time_s)
        return self.bound_j(self.relax(within_s), iteration_time_s)

    def bound_j(self, relaxed: RelaxedOptimum, iteration_time_s: float = 0.0) -> float:
        """Return what no plan needs less than that keeps the reserve at the deadline, J.

        A plan that uses none of its reserve ends earlier, and waits less.

        Args:
            relaxed: the optimum for the deadline.
            iteration_time_s: with a reserve the bound is on plans that are no faster, s.
        """
        deadline_s = relaxed.deadline_s
        unused_s = max(0.0, min(deadline_s - iteration_time_s, self.reserve * deadline_s))
        bound_j = relaxed.lower_bound_j - self._network.waiting_power_w * unused_s
        return max(bound_j, self._least_bound_j)

    def _without_waiting(self, relaxed: RelaxedOptimum) -> RelaxedOptimum:
        """Return the same optimum, with a reserve for no later a deadline than it needs.

        The bound of a plan with a reserve is the lower the longer it may wait at its end.
        """
        if not self.reserve:
            return relaxed
        end_s = max(self.fastest_time_s, float(relaxed.event_time_s[END]))
        return replace(relaxed, deadline_s=min(relaxed.deadline_s, end_s))

    def least_energy_time_s(self) -> float:
        """Return the iteration time beyond which waiting costs more than slower clocks save, s."""
        relaxed = self.relax(self.slowest_time_s)
        return max(self.fastest_time_s, float(relaxed.event_time_s[END]))

    @functools.cached_property
    def without_waiting(self) -> DeadlineSolver:
        """Return a solver of the same pipeline in which waiting is free."""
        return DeadlineSolver(self.model, reserve=self.reserve, is_waiting_free=True)

    def certified(self, assignment: Assignment) -> DeadlinePlan:
        """Return the plan of an assignment, with the bound for its own iteration time."""
        time_s, energy_j = time_and_energy(self.planned, assignment)
        relaxed = self.relax(min(max(time_s, self.fastest_time_s), self.slowest_time_s))
        plan = DeadlinePlan(
            relaxed=replace(relaxed, deadline_s=time_s),
            assignment=assignment,
            iteration_time_s=time_s,
            energy_j=energy_j,
        )
        return self._as_profiled(plan) if self.reserve else plan

    def plan_within(self, deadline_s: float, num_steps: int) -> DeadlinePlan:
        """Return the plan of least energy for a deadline not below `fastest_time_s`.

        It never takes more energy than the highest clocks do, where these meet the deadline.

        Args:
            deadline_s: infinite for the least energy of all.
            num_steps: number of annealing steps.
        """
        relaxed = self.relax(min(deadline_s, self.slowest_time_s))
        plan = self.plan(self._without_waiting(relaxed), num_steps)
        highest = self.planned.baseline()
        if time_and_energy(self.planned, highest)[0] > deadline_s:
            return plan
        highest_s, highest_j = time_and_energy(self.model, highest)
        if highest_j >= plan.energy_j:
            return plan
        plan = replace(plan, assignment=highest, iteration_time_s=highest_s, energy_j=highest_j)
        return self._as_profiled(replace(plan, relaxed=relaxed)) if self.reserve else plan

    def plan(self, relaxed: RelaxedOptimum, num_steps: int) -> DeadlinePlan:
        """A deployable plan for the relaxed problem's deadline.

        Args:
            relaxed: the optimum to round.
            num_steps: number of annealing steps.
        """
        best = self._rounding.best(relaxed.deadline_s)
        if best is None:
            best = self._rounding.points(self._annealed(relaxed, num_steps))[0]
        return self._deployable([relaxed], best[None, :])[0]

    def plans(self, optima: Sequence[RelaxedOptimum], num_steps: int) -> list[DeadlinePlan]:
        """Deployable plans for rising deadlines, which are annealed at once.

        Where the plan before, stretched to the deadline, is better, the search goes on from that.
        Of a tiny pipeline each is the best of all plans.

        Args:
            optima: per plan, the optimum to round.
            num_steps: number of annealing steps of each plan.
        """
        if not optima:
            return []
        rounding = self._rounding
        best = [rounding.best(relaxed.deadline_s) for relaxed in optima]
        tried = [assignment for assignment in best if assignment is not None]
        if tried:
            return self._deployable(optima, np.array(tried))
        deadlines_s = np.array([relaxed.deadline_s for relaxed in optima])
        plans = rounding.round_down(self._finish_s(optima), deadlines_s)
        plans = rounding.improve(plans, deadlines_s, num_steps, is_hot=False, seed=SEED)
        stretched = rounding.stretch(plans.some(slice(-1)), deadlines_s[1:] / deadlines_s[:-1])
        better = plans.some(slice(1, None)).or_better(stretched)
        plans = RoundedPlans(
            event_s=np.concatenate([plans.event_s[:1], better.event_s]),
            cost_j=np.concatenate([plans.cost_j[:1], better.cost_j]),
        )
        plans = rounding.improve(plans, deadlines_s, num_steps, is_hot=False, seed=SEED + 1)
        return self._deployable(optima, rounding.points(plans))

    def _deployable(
        self, optima: Sequence[RelaxedOptimum], points: IndexArray
    ) -> list[DeadlinePlan]:
        """Return the plans as they are measured, none late by the rounding of sums."""
        rounding = self._rounding
        measured = rounding.at_points(points)
        deadlines_s = np.array([relaxed.deadline_s for relaxed in optima])
        late = np.flatnonzero(measured.end_s > deadlines_s)
        if len(late):
            for plan in late:
                points[plan] = rounding.in_time(points[plan], deadlines_s[plan])
            measured = rounding.at_points(points)
        plans = [
            DeadlinePlan(
                relaxed=relaxed, assignment=assignment, iteration_time_s=end_s, energy_j=cost_j
            )
            for relaxed, assignment, end_s, cost_j in zip(
                optima,
                rounding.assignments(points),
                measured.end_s.tolist(),
                measured.cost_j.tolist(),
                strict=True,
            )
        ]
        return [self._as_profiled(plan) for plan in plans] if self.reserve else plans

    def _as_profiled(self, plan: DeadlinePlan) -> DeadlinePlan:
        """Return what the plan takes where no instruction uses its reserve, and a bound on that.

        The relaxed bound has the waiting that the whole reserve causes in it. Of a plan that keeps
        the reserve at the deadline, and is no faster than this one, that is at most what is taken
        off here: up to the deadline, or the reserve of all of its longest path.
        """
        iteration_time_s, energy_j = time_and_energy(self.model, plan.assignment)
        bound_j = self.bound_j(plan.relaxed, iteration_time_s)
        return replace(
            plan,
            relaxed=replace(plan.relaxed, lower_bound_j=bound_j),
            iteration_time_s=iteration_time_s,
            energy_j=energy_j,
        )

    def _annealed(self, relaxed: RelaxedOptimum, num_steps: int) -> RoundedPlans:
        """Return the best of some attempts; none is made where the plan is as good as the bound."""
        rounding = self._rounding
        begun = rounding.round_down(self._finish_s([relaxed]), np.array([relaxed.deadline_s]))
        if begun.cost_j[0] <= relaxed.lower_bound_j * (1 + AS_GOOD_AS_THE_BOUND):
            return begun
        plans = begun.some([0] * self._num_attempts)
        deadlines_s = np.full(self._num_attempts, relaxed.deadline_s)
        num_rounds = TINY_ROUNDS if self.num_instructions <= TINY_INSTRUCTIONS else 1
        num_idle, best_j = 0, plans.cost_j.min()
        for number in range(num_rounds):
            plans = rounding.improve(
                plans,
                deadlines_s,
                math.ceil(num_steps / num_rounds),
                is_hot=number % 2 == 0,
                seed=SEED + number,
            )
            is_idle = plans.cost_j.min() >= best_j * (1 - LEAST_IMPROVEMENT)
            num_idle, best_j = num_idle + 1 if is_idle else 0, plans.cost_j.min()
            if num_idle == MAX_IDLE_ROUNDS:
                break
        return plans.some([int(plans.cost_j.argmin())])

    def _finish_s(self, optima: Sequence[RelaxedOptimum]) -> FloatArray:
        """Per optimum and node, when the optimum finishes it, s; (num_optima, num_nodes)."""
        event_time_s = np.array([relaxed.event_time_s for relaxed in optima])
        finish_s: FloatArray = event_time_s[:, self._network.head[: self.num_instructions]]
        return finish_s


def _busy_energy_j(model: PipelineModel) -> float:
    """Return what computing takes at least, J; a bound on every plan, since waiting takes energy.

    Where energies are far below blocking power times time, the rounding errors of the relaxed
    problem's bound are larger than that.
    """
    groups, group_of_node = model.groups
    least_j = [min(point.energy_j for point in points) for _, points in groups]
    return math.fsum(map(least_j.__getitem__, group_of_node)) * (1 - AS_GOOD_AS_THE_BOUND)


def choose_relaxation(network: EventNetwork) -> Relaxation:
    """A general solver for small networks, interior point for large ones."""
    if network.num_instructions > MAX_HIGHS_INSTRUCTIONS:
        return _interior_point(network)
    return HighsRelaxation(network)


def _interior_point(network: EventNetwork) -> Relaxation:
    # scipy is loaded for large pipelines alone: it takes as long as a small one's whole plan.
    from flyball_server.planning.frontier.interior_point import (  # noqa: PLC0415
        InteriorPointRelaxation,
    )

    return InteriorPointRelaxation(network)
