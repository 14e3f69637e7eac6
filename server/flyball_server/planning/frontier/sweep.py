"""The whole frontier: deployable plans from the fastest to the least-energy one.

Deadlines are placed by the sandwich rule: the bound is convex, so between two deadlines it lies
below their chord and above their tangents; the next deadline goes where the triangle between
them is highest, so the points are dense where the frontier bends.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections.abc import Callable, Iterable
from itertools import pairwise

from flyball_server.planning.frontier.relaxation import RelaxedOptimum
from flyball_server.planning.frontier.solver import DeadlinePlan, DeadlineSolver

# Of an interval's claim to the next point, how much its width counts beside its error: where
# the bound is straight there are plans to choose from as well.
WIDTH_WEIGHT = 0.2
# So many points are placed before the others are, by the errors that these leave.
NUM_FIRST = 10
ROUNDS = 4  # of filling up after plans that another one beats were dropped


def sweep_frontier(
    solver: DeadlineSolver,
    num_points: int,
    num_moves: int,
    report: Callable[[int], None] = lambda _: None,
) -> list[DeadlinePlan]:
    """Plans in rising time and falling energy, none beaten by another.

    Args:
        solver: of the pipeline.
        num_points: at least 2; fewer come only where the profile does not allow so many.
        num_moves: of annealing, a plan.
        report: told how many plans have been made so far.
    """
    placement = _Placement(solver)
    plans: list[DeadlinePlan] = []  # by deadline
    frontier: list[DeadlinePlan] = []
    for _ in range(ROUNDS):
        for relaxed in placement.add(num_points - len(frontier)):
            place = bisect.bisect(plans, relaxed.deadline_s, key=_deadline_s)
            neighbour = plans[place - 1] if place else None
            plans.insert(place, solver.plan(relaxed, num_moves, neighbour))
            report(len(plans))
        frontier = undominated(plans)
        if len(frontier) >= num_points:
            break
    return frontier


def undominated(plans: Iterable[DeadlinePlan]) -> list[DeadlinePlan]:
    """The plans that no other one beats in both time and energy, in rising time."""
    kept: list[DeadlinePlan] = []
    for plan in sorted(plans, key=lambda plan: (plan.iteration_time_s, plan.energy_j)):
        if not kept or plan.energy_j < kept[-1].energy_j:
            kept.append(plan)
    return kept


def _deadline_s(plan: DeadlinePlan) -> float:
    return plan.relaxed.deadline_s


class _Placement:
    """Placement of the next deadlines.

    They are placed in a few rounds, each shared out among the intervals that the rounds before
    left. Within a round they are solved in rising or falling order, from where the last round
    ended: a simplex that goes from deadline to deadline passes each basis but once a round.
    """

    def __init__(self, solver: DeadlineSolver) -> None:
        self._solver = solver
        fastest_s, slowest_s = solver.fastest_time_s, solver.least_energy_time_s()
        self._optima = [solver.relax(fastest_s)]
        if slowest_s > fastest_s:
            self._optima.append(solver.relax(slowest_s))
        self._unused = list(self._optima)
        self._is_rising = True

    def add(self, num_points: int) -> list[RelaxedOptimum]:
        """The relaxed optimum at so many new deadlines, in rising order."""
        if len(self._optima) > 1:
            for num_known in (NUM_FIRST, math.inf):
                num_wanted = num_points - len(self._unused)
                self._solve(self._shared_out(min(num_wanted, num_known - len(self._optima))))
        added = sorted(self._unused, key=lambda relaxed: relaxed.deadline_s)
        self._unused = []
        return added

    def _solve(self, deadlines_s: list[float]) -> None:
        if not deadlines_s:
            return
        in_order_s = deadlines_s if self._is_rising else deadlines_s[::-1]
        self._is_rising = not self._is_rising
        solved = [self._solver.relax(deadline_s) for deadline_s in in_order_s]
        self._unused += solved
        self._optima = sorted([*self._optima, *solved], key=lambda relaxed: relaxed.deadline_s)

    def _claims(self) -> list[tuple[float, RelaxedOptimum, RelaxedOptimum]]:
        """Each interval's claim to the next point: how much error is left in it, and its width."""
        fastest, slowest = self._optima[0], self._optima[-1]
        energy_j = max(fastest.lower_bound_j - slowest.lower_bound_j, 1e-12)
        time_s = slowest.deadline_s - fastest.deadline_s
        return [
            (
                _sandwich_error_j(left, right) / energy_j
                + WIDTH_WEIGHT * ((right.deadline_s - left.deadline_s) / time_s) ** 2,
                left,
                right,
            )
            for left, right in pairwise(self._optima)
        ]

    def _shared_out(self, num_points: float) -> list[float]:
        """Deadlines within the intervals, evenly in each; an error falls as its width squared."""
        claims = self._claims()
        shares = [0] * len(claims)
        heap = [(-claim, index) for index, (claim, _, _) in enumerate(claims)]
        heapq.heapify(heap)
        for _ in range(max(0, int(num_points))):
            _, index = heapq.heappop(heap)
            shares[index] += 1
            heapq.heappush(heap, (-claims[index][0] / (shares[index] + 1) ** 2, index))
        return [
            left.deadline_s + (right.deadline_s - left.deadline_s) * part / (share + 1)
            for share, (_, left, right) in zip(shares, claims, strict=True)
            for part in range(1, share + 1)
        ]


def _sandwich_error_j(left: RelaxedOptimum, right: RelaxedOptimum) -> float:
    """Height of the triangle between the chord and the tangents, J."""
    width_s = right.deadline_s - left.deadline_s
    bend = right.bound_slope_w - left.bound_slope_w
    if bend <= 0:
        return 0.0
    chord_w = (right.lower_bound_j - left.lower_bound_j) / width_s
    share = min(1.0, max(0.0, (right.bound_slope_w - chord_w) / bend))
    return max(0.0, (chord_w - left.bound_slope_w) * share * width_s)
