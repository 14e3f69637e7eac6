"""Targets on the frontier: the deadline of a target, and plans within an average power.

With c = E - r P t of each instruction (J), P the blocking power of all ranks and T the iteration
time, a plan draws P + sum(c) / T. Up to the deadline at which every instruction has its least c,
the least sum(c) falls as the deadline grows: the fastest plan within the budget lies at the first
deadline whose plan does. Beyond, only slower clocks on a longest path draw less: they cost c, and
T grows by all of what they take longer.

Deadlines are those of a fixed grid, searched by bisection, so that of two budgets the larger one
never gets a slower plan. In a tiny pipeline single clocks matter: there the clocks themselves are
annealed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from flyball_pipeline.paths import earliest_finish_s
from flyball_server.planning.cancellation import cancellation_point
from flyball_server.planning.errors import TargetUnreachableError
from flyball_server.planning.frontier.rounding import TINY_INSTRUCTIONS
from flyball_server.planning.frontier.solver import SEED, DeadlinePlan, DeadlineSolver
from flyball_server.planning.model.array_dag import FloatArray, IndexArray
from flyball_server.planning.model.pipeline_model import Assignment, PipelineModel
from flyball_server.planning.model.simulator import (
    RELATIVE_TIME_TOLERANCE,
    critical_path,
    time_and_energy,
)
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
    if wanted_s * (1 + RELATIVE_TIME_TOLERANCE) < solver.fastest_time_s:
        fastest = rounded_up(solver.fastest_time_s)
        raise TargetUnreachableError(
            f"no plan takes {wanted_s:g} s; the fastest takes {fastest} s",
            field="target",
            nearest_target=f"deadline:{fastest}",
        )
    # The sums of the same times in another order differ by their rounding.
    return solver.plan_within(max(wanted_s, solver.fastest_time_s), num_steps)


# Ratio of neighbouring deadlines of the grid, less 1.
DEADLINE_STEP = 5e-4
# Steps of Dinkelbach's method, which doubles the right digits with each.
MAX_RATIO_STEPS = 50
# Annealing of a tiny pipeline's clocks: moves of an attempt, attempts, and the temperatures as a
# share of the iteration time. A second of missing budget counts as several of the iteration.
CLOCK_MOVES, CLOCK_ATTEMPTS = 20_000, 4
HOT, COLD = 0.2, 1e-5
MOST_CHANGED = 3  # clocks in a move
EXCESS_WEIGHT, TIE_WEIGHT = 3.0, 1e-6


def plan_for_power(
    solver: DeadlineSolver, budget_w: float, baseline_time_s: float, num_steps: int
) -> DeadlinePlan:
    """Return the fastest plan found, not faster than the baseline, within an average power.

    Raises:
        TargetUnreachableError: no plan draws as little; the message names the least power.
    """
    plan = solver.plan_within(baseline_time_s, num_steps)
    if plan.energy_j / plan.iteration_time_s <= budget_w:
        return plan
    search = _PowerSearch(solver, budget_w, num_steps)
    least = search.least_power()
    if not search.is_within(least):
        time_s, energy_j = time_and_energy(solver.model, least)
        raise TargetUnreachableError(
            f"no plan draws {budget_w:g} W on average; the least is"
            f" {rounded_up(energy_j / time_s)} W, at {time_s:.6g} s",
            field="target",
        )
    if solver.num_instructions <= TINY_INSTRUCTIONS:
        found = search.annealed(least, baseline_time_s)
    else:
        found = search.at_deadline(baseline_time_s) or search.slowed_paths(least)
    return solver.certified(found)


class _PowerSearch:
    """Search for plans of one pipeline within one budget."""

    def __init__(self, solver: DeadlineSolver, budget_w: float, num_steps: int) -> None:
        self._solver = solver
        self._model = solver.model
        self._budget_w = budget_w
        self._num_steps = num_steps
        self._tables = clock_tables(self._model)
        self._waiting_w = sum(self._model.stage_blocking_power_w)
        cheapest = self._tables.costs_j.argmin(axis=1)
        self._cheapest: Assignment = cheapest[self._tables.group_of_node].tolist()

    def is_within(self, assignment: Assignment) -> bool:
        """Return whether the plan draws at most the budget."""
        time_s, energy_j = time_and_energy(self._solver.model, assignment)
        return energy_j / time_s <= self._budget_w

    def least_power(self) -> Assignment:
        """Return the plan of least average power (Dinkelbach's method for a ratio's least value).

        For a price v of time, the least sum(c) - v T is that of one path: on it every instruction
        has its least c - v t, elsewhere its least c. Which path it is, is a longest path again.
        """
        best = self._cheapest
        for _ in range(MAX_RATIO_STEPS):
            time_s, cost_j = self._time_and_cost(best)
            price_w = cost_j / time_s
            if price_w <= 0:  # computing draws less than waiting: the bound of such is not known
                return best
            priced_j = self._tables.costs_j - price_w * self._tables.times_s
            gains_j = self._tables.costs_j.min(axis=1) - priced_j.min(axis=1)
            slowed = priced_j.argmin(axis=1)[self._tables.group_of_node].tolist()
            gain_of_node_j: list[float] = gains_j[self._tables.group_of_node].tolist()
            tried = list(self._cheapest)
            for node in self._longest_path(gain_of_node_j):
                tried[node] = slowed[node]
            tried_s, tried_j = self._time_and_cost(tried)
            if tried_j / tried_s >= price_w:
                break
            best = tried
        return best

    def at_deadline(self, baseline_time_s: float) -> Assignment | None:
        """Return the plan of the first deadline whose plan is within the budget, if any."""
        free = self._solver.without_waiting
        span = math.log(free.slowest_time_s / baseline_time_s)
        last = max(1, math.ceil(span / DEADLINE_STEP))

        def tried(number: int) -> Assignment | None:
            deadline_s = baseline_time_s * math.exp(span * number / last)
            return self._plan_within(free, max(deadline_s, free.fastest_time_s))

        return _first_found(tried, last)

    def slowed_paths(self, least: Assignment) -> Assignment:
        """Return the fastest plan found with slower clocks than the cheapest on one path.

        Args:
            least: the plan of least power, which is within the budget.
        """
        found = [least]
        for assignment in (self._cheapest, least):
            path = self._longest_path(self._model.durations_s(assignment))
            slowed = _SlowedPath(self._tables, self._cheapest, path)

            def tried(number: int, slowed: _SlowedPath = slowed) -> Assignment | None:
                candidate = slowed.assignment(number)
                return candidate if self.is_within(candidate) else None

            last = slowed.least_power_step(*self._time_and_cost(self._cheapest))
            first = _first_found(tried, last)
            if first is not None:
                found.append(first)
        return min(found, key=lambda assignment: time_and_energy(self._model, assignment)[0])

    def annealed(self, least: Assignment, baseline_time_s: float) -> Assignment:
        """Return the fastest plan found by annealing the clocks, from a plan within the budget."""
        dag, above_waiting_w = self._model.dag, self._budget_w - self._waiting_w

        def score_of(durations_s: list[float], cost_j: float) -> tuple[float, bool]:
            time_s = max(earliest_finish_s(dag, durations_s))
            excess_s = (cost_j - above_waiting_w * time_s) / self._budget_w
            weight = EXCESS_WEIGHT if excess_s > 0 else TIE_WEIGHT
            return max(time_s, baseline_time_s) + weight * excess_s, excess_s <= 0

        found = [least]
        for seed in range(SEED, SEED + CLOCK_ATTEMPTS):
            cancellation_point()
            found.append(_annealed_clocks(least, self._tables, score_of, random.Random(seed)))
        within = [assignment for assignment in found if self.is_within(assignment)]

        def rank(assignment: Assignment) -> tuple[float, float]:
            time_s, energy_j = time_and_energy(self._model, assignment)
            return max(time_s, baseline_time_s), energy_j

        return min(within, key=rank)

    def _plan_within(self, free: DeadlineSolver, deadline_s: float) -> Assignment | None:
        """Return a plan for a deadline, rounded or annealed, that is within the budget, if any."""
        relaxed = free.relax(deadline_s)
        allowed_j = (self._budget_w - self._waiting_w) * deadline_s
        if relaxed.lower_bound_j > max(0.0, allowed_j):
            return None
        for num_steps in (0, self._num_steps):
            assignment = free.plan(relaxed, num_steps).assignment
            if self.is_within(assignment):
                return assignment
        return None

    def _time_and_cost(self, assignment: Assignment) -> tuple[float, float]:
        time_s, energy_j = time_and_energy(self._model, assignment)
        return time_s, energy_j - self._waiting_w * time_s

    def _longest_path(self, weights: Sequence[float]) -> list[int]:
        dag = self._model.dag
        return critical_path(dag, weights, earliest_finish_s(dag, weights))


def _first_found(tried: Callable[[int], Assignment | None], last: int) -> Assignment | None:
    """Bisect to the first number up to `last` that finds something; None: not even `last` does.

    The numbers tried depend on earlier finds alone: a search that finds something at every number
    where another does ends at the same number or a smaller one.
    """
    found = tried(last)
    if found is None:
        return None
    below, first = 0, last
    while first - below > 1:
        middle = (below + first) // 2
        better = tried(middle)
        if better is None:
            below = middle
        else:
            first, found = middle, better
    return found


class ClockTables(NamedTuple):
    """All operating points of a pipeline as arrays.

    Attributes:
        group_of_node: per node a row of the tables below; shape (num_nodes,).
        num_points: per row, how many of its entries count.
        times_s: per row and operating point, s.
        costs_j: likewise E - r P t, J; infinite past the last.
    """

    group_of_node: IndexArray
    num_points: IndexArray
    times_s: FloatArray
    costs_j: FloatArray


def clock_tables(model: PipelineModel) -> ClockTables:
    """Return the operating points of a pipeline."""
    power_w = model.stage_blocking_power_w
    groups, group_of_node = model.groups
    nums = [len(points) for _, points in groups]
    times_s, costs_j = np.zeros((len(nums), max(nums))), np.full((len(nums), max(nums)), np.inf)
    for row, (stage, points) in enumerate(groups):
        times_s[row, : len(points)] = [point.time_s for point in points]
        costs_j[row, : len(points)] = [
            point.energy_j - power_w[stage] * point.time_s for point in points
        ]
    return ClockTables(
        group_of_node=np.array(group_of_node, dtype=np.int64),
        num_points=np.array(nums, dtype=np.int64),
        times_s=times_s,
        costs_j=costs_j,
    )


class _SlowedPath:
    """One path's instructions at slower and slower clocks, the cheapest seconds first.

    Args:
        tables: the pipeline's operating points.
        cheapest: every instruction at its least c.
        path: nodes of the path.
    """

    def __init__(self, tables: ClockTables, cheapest: Assignment, path: Sequence[int]) -> None:
        self._cheapest = cheapest
        slower = {
            group: _slower_corners(tables, group, cheapest[node])
            for node, group in zip(path, tables.group_of_node[path].tolist(), strict=True)
        }
        self._steps = sorted(
            ((*step, node) for node in path for step in slower[int(tables.group_of_node[node])]),
            key=lambda step: step[0],
        )
        self._path_s = sum(
            float(tables.times_s[tables.group_of_node[node], cheapest[node]]) for node in path
        )

    def assignment(self, num_steps: int) -> Assignment:
        """Return the clocks after the first steps."""
        choices = list(self._cheapest)
        for _, _, _, choice, node in self._steps[:num_steps]:
            choices[node] = choice
        return choices

    def least_power_step(self, time_s: float, cost_j: float) -> int:
        """Return the number of steps whose plan draws the least power, at least 1.

        Args:
            time_s: iteration time with every instruction at its least c, s.
            cost_j: sum of these, J.
        """
        path_s, best, best_w = self._path_s, 1, math.inf
        for number, (_, added_s, added_j, _, _) in enumerate(self._steps, start=1):
            path_s += added_s
            cost_j += added_j
            drawn_w = cost_j / max(time_s, path_s)
            if drawn_w < best_w:
                best, best_w = number, drawn_w
        return best


def _slower_corners(
    tables: ClockTables, group: int, cheapest: int
) -> list[tuple[float, float, float, int]]:
    """Return the steps along the lower hull from the least c on: W, s, J, and where each ends."""
    times_s, costs_j = tables.times_s[group].tolist(), tables.costs_j[group].tolist()
    steps: list[tuple[float, float, float, int]] = []
    at = cheapest
    while True:
        slower = [
            (
                (costs_j[other] - costs_j[at]) / (times_s[other] - times_s[at]),
                -times_s[other],
                other,
            )
            for other in range(int(tables.num_points[group]))
            if times_s[other] > times_s[at]
        ]
        if not slower:
            return steps
        slope_w, _, other = min(slower)
        steps.append((slope_w, times_s[other] - times_s[at], costs_j[other] - costs_j[at], other))
        at = other


def _annealed_clocks(
    start: Assignment,
    tables: ClockTables,
    score_of: Callable[[list[float], float], tuple[float, bool]],
    chance: random.Random,
) -> Assignment:
    """Return the plan of the least score within the budget that is seen.

    Args:
        start: a plan within the budget.
        tables: the pipeline.
        score_of: of a plan's durations, s, and sum of c, J: its score, s, and whether it is
            within the budget.
        chance: draws the moves.
    """
    group_of_node: list[int] = tables.group_of_node.tolist()
    num_points: list[int] = tables.num_points.tolist()
    times_s: list[list[float]] = tables.times_s.tolist()
    costs_j: list[list[float]] = tables.costs_j.tolist()
    choices = best = start
    durations_s = [
        times_s[group][choice] for group, choice in zip(group_of_node, start, strict=True)
    ]
    cost_j = sum(costs_j[group][choice] for group, choice in zip(group_of_node, start, strict=True))
    score_s, _ = score_of(durations_s, cost_j)
    best_s = score_s
    temperature_s, cooling = HOT * score_s, (COLD / HOT) ** (1 / CLOCK_MOVES)
    for _ in range(CLOCK_MOVES):
        temperature_s *= cooling
        tried, tried_s, tried_j = choices.copy(), durations_s.copy(), cost_j
        for _ in range(1 + int(MOST_CHANGED * chance.random())):
            node = int(len(tried) * chance.random())
            group = group_of_node[node]
            choice = int(num_points[group] * chance.random())
            tried_j += costs_j[group][choice] - costs_j[group][tried[node]]
            tried[node], tried_s[node] = choice, times_s[group][choice]
        tried_score_s, is_within = score_of(tried_s, tried_j)
        worse_s = tried_score_s - score_s
        if worse_s <= 0 or chance.random() < math.exp(-worse_s / temperature_s):
            choices, durations_s, cost_j, score_s = tried, tried_s, tried_j, tried_score_s
            if is_within and score_s < best_s:
                best, best_s = choices, score_s
    return best
