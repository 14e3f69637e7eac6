"""Policies without a clock change: `constant`, one clock per stage, and `global`, one for all.

They are what a user sets without Flyball, by `nvidia-smi --lock-gpu-clocks`, and so what a plan
must beat.

`global` tries every clock. `constant` starts from that result and searches: it changes the clock
of one stage, or of two stages in opposite directions, as long as this helps. The time of an
iteration is the longest of the pipeline's paths. The paths found so far bound the time of all
choices from below; where a choice takes longer than they say, its own path joins them.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flyball_profiles.stage_profile import OperatingPoint
from flyball_server.planning.cancellation import cancellation_point
from flyball_server.planning.errors import TargetUnreachableError
from flyball_server.planning.frontier.targets import Target, deadline_of, parse_target
from flyball_server.planning.model.finish_times import earliest_finish_s
from flyball_server.planning.model.pipeline_model import Assignment, PipelineModel
from flyball_server.planning.model.simulator import RELATIVE_TIME_TOLERANCE, critical_path
from flyball_server.planning.policies._base import PolicyChoice, PolicyRequest
from flyball_server.planning.request_options import rounded_up
from flyball_wire.closed_loop import ComparedPlan
from flyball_wire.plan_options import PlanOptions, Policy

FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.int64]

# A change of two stages moves each by at most this many of its clocks. The number of such changes
# and of paths grow with the stages: in pipelines with more of them only single stages are changed.
_PAIR_STEPS, _MAX_PAIRED_STAGES = 3, 64
# Comparing takes 0.6 s with as many stages, where the plan takes 20 times as long, and minutes with
# hundreds, as data-parallel pipelines side by side have.
MAX_COMPARED_STAGES = 64
# A change must be better by this share: sums in another order differ by less.
_LEAST_GAIN = 1e-9
# Of two plans of the same time, the one of less energy: a relative weight.
_TIE = 1e-6


@dataclass(frozen=True, kw_only=True)
class SingleClockPlan:
    """Clocks that do not change during an iteration, with their prediction.

    Attributes:
        assignment: per node of the DAG, an index into its operating points.
        iteration_time_s: time of one iteration in s.
        energy_j: energy of one iteration in J.
    """

    assignment: Assignment
    iteration_time_s: float
    energy_j: float


def constant(request: PolicyRequest) -> PolicyChoice:
    """Choose one clock for each stage, the best ones found for the target.

    Raises:
        PlanningError: the target cannot be read.
        TargetUnreachableError: no such plan meets the target.
    """
    return _choose(request, SingleClocks.constant)


def global_clock(request: PolicyRequest) -> PolicyChoice:
    """Choose one clock for all stages, the best one for the target.

    Raises:
        PlanningError, TargetUnreachableError: as for `constant`.
    """
    return _choose(request, SingleClocks.same_for_all)


def _choose(
    request: PolicyRequest, search: Callable[[SingleClocks, Target], SingleClockPlan]
) -> PolicyChoice:
    target = parse_target(request.options.target)
    return PolicyChoice(assignment=search(SingleClocks(request.model), target).assignment)


def single_clock_plans(model: PipelineModel, options: PlanOptions) -> tuple[ComparedPlan, ...]:
    """Return what `constant` and `global` would give for the target of a plan of `frontier`.

    Other policies have nothing to compare: empty, as for more than `MAX_COMPARED_STAGES` stages. A
    policy that misses the target is left out.
    """
    if options.policy != Policy.FRONTIER or len(model.num_ranks) > MAX_COMPARED_STAGES:
        return ()
    clocks, target = SingleClocks(model), parse_target(options.target)
    plans: list[ComparedPlan] = []
    for policy, search in (
        (Policy.CONSTANT, clocks.constant),
        (Policy.GLOBAL, clocks.same_for_all),
    ):
        with contextlib.suppress(TargetUnreachableError):
            plans.append(_compared(policy, search(target)))
    return tuple(plans)


def single_clock_curves(
    model: PipelineModel, deadlines_s: Sequence[float]
) -> tuple[tuple[ComparedPlan, ...], tuple[ComparedPlan, ...]]:
    """Return the frontiers of `constant` and `global`, each in rising time and falling energy.

    Both are empty for more than `MAX_COMPARED_STAGES` stages.

    Args:
        model: the pipeline.
        deadlines_s: iteration times in s that are allowed to the plans of the curves.
    """
    if len(model.num_ranks) > MAX_COMPARED_STAGES:
        return (), ()
    clocks = SingleClocks(model)
    curves: list[tuple[ComparedPlan, ...]] = []
    for policy, search in (
        (Policy.CONSTANT, clocks.constant),
        (Policy.GLOBAL, clocks.same_for_all),
    ):
        curve: list[ComparedPlan] = []
        for deadline_s in sorted(deadlines_s):
            with contextlib.suppress(TargetUnreachableError):
                plan = _compared(policy, search(Target(kind="deadline", value=deadline_s)))
                if not curve or plan.energy_j < curve[-1].energy_j:
                    curve.append(plan)
        curves.append(tuple(curve))
    return curves[0], curves[1]


def _compared(policy: Policy, plan: SingleClockPlan) -> ComparedPlan:
    return ComparedPlan(name=policy, iteration_time_s=plan.iteration_time_s, energy_j=plan.energy_j)


@dataclass(frozen=True, kw_only=True)
class _Aim:
    """A target as two figures of a plan: how far it is from meeting it, and its cost.

    Attributes:
        deadline_s: latest end of an iteration in s.
        budget_w: highest average power in W; with it, the cost is time, else energy.
        usual_power_w: average power of the baseline in W; scales a tie.
    """

    deadline_s: float = math.inf
    budget_w: float = math.inf
    usual_power_w: float

    def score(self, time_s: FloatArray, energy_j: FloatArray) -> FloatArray:
        """Return a score per plan, lower for a better one, above 0 where it misses the target."""
        if math.isfinite(self.budget_w):
            excess = energy_j - self.budget_w * time_s * (1 + RELATIVE_TIME_TOLERANCE)
            cost = time_s + _TIE * energy_j / self.usual_power_w
        else:
            excess = time_s - self.deadline_s * (1 + RELATIVE_TIME_TOLERANCE)
            cost = energy_j
        return np.where(excess > 0, excess, -1 / cost)


class SingleClocks:
    """All plans of a pipeline in which no stage changes its clock.

    A choice has one level per stage: 0 is the stage's highest clock, 1 the next lower one. A kind
    of instruction that lacks a clock runs at its next higher one, or at its highest.

    Args:
        model: the pipeline; of joined pipelines each has stages of its own.
    """

    def __init__(self, model: PipelineModel) -> None:
        self._model = model
        alike, of_node = model.dag.alike
        self._alike_of_node = np.array(of_node)
        points = dict(zip(of_node, model.points, strict=True))
        counts = np.bincount(self._alike_of_node)
        power_w = model.stage_blocking_power_w
        self._waiting_power_w = sum(power_w)
        self._clocks_mhz: list[list[int]] = []
        for stage in range(len(power_w)):
            of_stage = [points[row] for row, key in enumerate(alike) if key[0] == stage]
            clocks = {point.frequency_mhz for options in of_stage for point in options}
            self._clocks_mhz.append(sorted(clocks, reverse=True))
        self._num_levels = np.array([len(clocks) for clocks in self._clocks_mhz])
        # Columns: the levels of stage 0, then those of stage 1, ...
        self._first_column = np.cumsum(self._num_levels) - self._num_levels
        shape = (len(alike), int(self._num_levels.sum()))
        self._point_of = np.zeros(shape, dtype=np.int64)  # of alike nodes, at a stage's level
        self._duration_s = np.zeros(shape)
        self._busy_j = np.zeros(shape[1])  # of a stage's level, beyond its blocking power
        for row, (stage, _, _) in enumerate(alike):
            for level, clock_mhz in enumerate(self._clocks_mhz[stage]):
                column = self._first_column[stage] + level
                index = _lowest_from(points[row], clock_mhz)
                point = points[row][index]
                self._point_of[row, column] = index
                self._duration_s[row, column] = point.time_s
                extra_j = point.energy_j - power_w[stage] * point.time_s
                self._busy_j[column] += counts[row] * extra_j
        self._paths_s: list[FloatArray] = []  # per path and column, its instructions' time
        self._highest = np.zeros(len(power_w), dtype=np.int64)
        self._baseline_s = self._exact_time_s(self._highest)
        self._usual_power_w = float(self._energy_j(self._highest, self._baseline_s))
        self._usual_power_w /= self._baseline_s

    def constant(self, target: Target) -> SingleClockPlan:
        """Return the best plan found with one clock per stage.

        Raises:
            TargetUnreachableError: none meets the target; the message says what can be met.
        """
        aim = self._aim(target)
        return self._checked(self._improved(self._best_common(aim), aim), aim, target)

    def same_for_all(self, target: Target) -> SingleClockPlan:
        """Return the best plan with one clock for all stages.

        Raises:
            TargetUnreachableError: none meets the target; the message says what can be met.
        """
        aim = self._aim(target)
        return self._checked(self._best_common(aim), aim, target)

    def _aim(self, target: Target) -> _Aim:
        if target.kind == "power":
            return _Aim(budget_w=target.value, usual_power_w=self._usual_power_w)
        deadline_s = deadline_of(target, self._baseline_s)
        return _Aim(deadline_s=deadline_s, usual_power_w=self._usual_power_w)

    def _checked(self, levels: IndexArray, aim: _Aim, target: Target) -> SingleClockPlan:
        columns = self._first_column + levels
        time_s = self._exact_time_s(levels)
        energy_j = float(self._energy_j(levels, time_s))
        if aim.score(np.array([time_s]), np.array([energy_j]))[0] > 0:
            if target.kind == "power":
                found = f"the least found is {rounded_up(energy_j / time_s)} W"
                wanted = f"draws {target.value:g} W on average"
            else:
                found = f"the fastest takes {rounded_up(time_s)} s"
                wanted = f"takes {aim.deadline_s:g} s"
            raise TargetUnreachableError(
                f"no plan without a clock change {wanted}; {found}", field="target"
            )
        point_of_alike = self._point_of[:, columns].max(axis=1)  # one column each; 0 elsewhere
        return SingleClockPlan(
            assignment=point_of_alike[self._alike_of_node].tolist(),
            iteration_time_s=time_s,
            energy_j=energy_j,
        )

    def _energy_j(self, levels: IndexArray, time_s: float) -> float:
        busy_j = self._busy_j[self._first_column + levels].sum()
        return float(busy_j + self._waiting_power_w * time_s)

    def _exact_time_s(self, levels: IndexArray) -> float:
        """Return the iteration time in s; its longest path joins the paths if it is a new one."""
        dag = self._model.dag
        of_alike_s = self._duration_s[:, self._first_column + levels].sum(axis=1)
        durations_s = of_alike_s[self._alike_of_node].tolist()
        finish_s = earliest_finish_s(dag, durations_s)
        time_s = max(finish_s)
        if not self._paths_s or self._path_time_s(levels) < time_s * (1 - RELATIVE_TIME_TOLERANCE):
            nodes = self._alike_of_node[critical_path(dag, durations_s, finish_s)]
            counts = np.bincount(nodes, minlength=len(of_alike_s))
            self._paths_s.append(counts @ self._duration_s)
        return time_s

    def _path_time_s(self, levels: IndexArray) -> float:
        columns = self._first_column + levels
        return max(float(path_s[columns].sum()) for path_s in self._paths_s)

    def _best_common(self, aim: _Aim) -> IndexArray:
        """Return the levels of the best clock that all stages have in common."""
        best, best_score = self._highest, math.inf
        for clock_mhz in sorted({mhz for clocks in self._clocks_mhz for mhz in clocks})[::-1]:
            cancellation_point()
            reached = [sum(mhz >= clock_mhz for mhz in clocks) for clocks in self._clocks_mhz]
            levels = np.maximum(0, np.array(reached) - 1)
            time_s = self._exact_time_s(levels)
            score = aim.score(np.array([time_s]), np.array([self._energy_j(levels, time_s)]))[0]
            if score < best_score:
                best, best_score = levels, float(score)
        return best

    def _improved(self, levels: IndexArray, aim: _Aim) -> IndexArray:
        """Return the levels after all changes that help."""
        while True:
            cancellation_point()
            changed = self._better(levels, aim)
            if changed is None:
                return levels
            num_paths = len(self._paths_s)
            self._exact_time_s(changed)
            if len(self._paths_s) == num_paths:  # else it takes longer than the paths said
                levels = changed

    def _better(self, levels: IndexArray, aim: _Aim) -> IndexArray | None:
        """Return the best choice near this one, by the paths found so far; None: this one is."""
        paths_s = np.array(self._paths_s)
        columns = self._first_column + levels
        paths_now_s, busy_j = paths_s[:, columns].sum(axis=1), self._busy_j[columns].sum()
        stage = np.repeat(np.arange(len(levels)), self._num_levels)
        steps = np.arange(len(stage)) - columns[stage]
        longer_s = paths_s - paths_s[:, columns[stage]]
        more_j = self._busy_j - self._busy_j[columns[stage]]

        def scores(added_s: FloatArray, added_j: FloatArray) -> FloatArray:
            time_s = (paths_now_s[:, None] + added_s).max(axis=0)
            return aim.score(time_s, busy_j + added_j + self._waiting_power_w * time_s)

        def changed(*moves: int) -> IndexArray:
            moved = levels.copy()
            for move in moves:
                moved[stage[move]] += steps[move]
            return moved

        of_one = scores(longer_s, more_j)
        now = float(of_one[columns[0]])  # no step
        enough = now - _LEAST_GAIN * abs(now)
        best = int(np.argmin(of_one))
        if of_one[best] < enough:
            return changed(best)
        if len(levels) > _MAX_PAIRED_STAGES:
            return None
        near = abs(steps) <= _PAIR_STEPS
        faster, slower = np.flatnonzero(near & (steps < 0)), np.flatnonzero(near & (steps > 0))
        pair: tuple[int, int] | None = None
        for one in faster:
            others = slower[stage[slower] != stage[one]]
            if not len(others):
                continue
            of_two = scores(longer_s[:, [one]] + longer_s[:, others], more_j[one] + more_j[others])
            best = int(np.argmin(of_two))
            if of_two[best] < enough:
                enough, pair = float(of_two[best]), (int(one), int(others[best]))
        return None if pair is None else changed(*pair)


def _lowest_from(points: tuple[OperatingPoint, ...], clock_mhz: int) -> int:
    """Return the index of the lowest clock that is at least this, else of the highest."""
    return max(0, sum(point.frequency_mhz >= clock_mhz for point in points) - 1)
