"""Policies without a clock change: `constant`, one clock per stage, and `global`, one for all.

They are what a user sets without Flyball, by `nvidia-smi --lock-gpu-clocks`, and so what a plan
must beat.

`global` tries every clock. `constant` starts from that result and searches: it changes the clock
of one stage, or of two stages in opposite directions, as long as this helps. The time of an
iteration is the longest of the pipeline's paths. The paths found so far bound the time of all
choices from below; where a choice takes longer than they say, its own path joins them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from flyball_server.planning.cancellation import cancellation_point
from flyball_server.planning.errors import TargetUnreachableError
from flyball_server.planning.frontier.targets import deadline_of
from flyball_server.planning.model.array_dag import (
    BoolArray,
    FloatArray,
    IndexArray,
    earliest_finishes_s,
)
from flyball_server.planning.model.pipeline_model import Assignment, PipelineModel
from flyball_server.planning.model.simulator import (
    RELATIVE_TIME_TOLERANCE,
    critical_path,
    time_and_energy,
)
from flyball_server.planning.policies._base import PolicyChoice, PolicyRequest
from flyball_server.planning.request_options import rounded_up
from flyball_wire.closed_loop import ComparedPlan
from flyball_wire.plan_options import PlanOptions, Policy
from flyball_wire.targets import Target, parse_target

# A change of two stages moves each by at most this many of its clocks. The number of such changes
# and of paths grow with the stages: in pipelines with more of them only single stages are changed.
_PAIR_STEPS, _MAX_PAIRED_STAGES = 3, 64
# Comparing takes 0.6 s with as many stages, where the plan takes 20 times as long, and minutes with
# hundreds, as data-parallel pipelines side by side have.
MAX_COMPARED_STAGES = 64
# A change must be better by this share: sums in another order differ by less.
_LEAST_GAIN = 1e-9
# Of two plans of the same time, that of less energy: a relative weight.
_TIE = 1e-6


@dataclass(frozen=True, kw_only=True)
class SingleClockPlan:
    """Clocks that do not change during an iteration, with their prediction.

    Attributes:
        assignment: per node of the DAG, an index into its operating points.
        iteration_time_s: time of one iteration in s.
        energy_j: energy of one iteration in J.
        meets_target: false for what comes nearest to a target that no such plan found meets.
    """

    assignment: Assignment
    iteration_time_s: float
    energy_j: float
    meets_target: bool


_Search = Callable[["SingleClocks", Sequence[Target]], list[SingleClockPlan]]


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


def _choose(request: PolicyRequest, search: _Search) -> PolicyChoice:
    target = parse_target(request.options.target)
    clocks = SingleClocks(request.model)
    (plan,) = search(clocks, [target])
    if plan.meets_target:
        return PolicyChoice(assignment=plan.assignment)
    if target.kind == "power":
        found = f"the least found is {rounded_up(plan.energy_j / plan.iteration_time_s)} W"
        wanted = f"draws {target.value:g} W on average"
    else:
        found = f"the fastest takes {rounded_up(plan.iteration_time_s)} s"
        wanted = f"takes {deadline_of(target, clocks.baseline_time_s):g} s"
    raise TargetUnreachableError(
        f"no plan without a clock change {wanted}; {found}", field="target"
    )


def single_clock_plans(model: PipelineModel, options: PlanOptions) -> tuple[ComparedPlan, ...]:
    """Return what `constant` and `global` would give for the target of a plan of `frontier`.

    Other policies have nothing to compare: empty, as for more than `MAX_COMPARED_STAGES` stages. A
    policy that misses the target is left out.
    """
    if options.policy != Policy.FRONTIER or len(model.num_ranks) > MAX_COMPARED_STAGES:
        return ()
    clocks, targets = SingleClocks(model), [parse_target(options.target)]
    return (
        *_curve(Policy.CONSTANT, clocks.constant(targets)),
        *_curve(Policy.GLOBAL, clocks.same_for_all(targets)),
    )


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
    targets = [Target(kind="deadline", value=deadline_s) for deadline_s in sorted(deadlines_s)]
    return (
        _curve(Policy.CONSTANT, clocks.constant(targets)),
        _curve(Policy.GLOBAL, clocks.same_for_all(targets)),
    )


def _curve(policy: Policy, plans: Sequence[SingleClockPlan]) -> tuple[ComparedPlan, ...]:
    """Return those that meet their targets, each of less energy than the plan before."""
    curve: list[ComparedPlan] = []
    for plan in plans:
        if plan.meets_target and (not curve or plan.energy_j < curve[-1].energy_j):
            time_s, energy_j = plan.iteration_time_s, plan.energy_j
            curve.append(
                ComparedPlan(name=policy.value, iteration_time_s=time_s, energy_j=energy_j)
            )
    return tuple(curve)


@dataclass(frozen=True, kw_only=True)
class _Aims:
    """Targets of one kind, each as two figures of a plan: its distance from the target, its cost.

    Attributes:
        limits: per target, latest end of an iteration in s, or highest average power in W; shape
            (num_targets,).
        is_power: true for power, where the cost is time; else it is energy.
        usual_power_w: average power of the baseline in W; scales a tie.
    """

    limits: FloatArray
    is_power: bool
    usual_power_w: float

    def some(self, targets: IndexArray) -> _Aims:
        """Return the targets of these indices."""
        return replace(self, limits=self.limits[targets])

    def score(self, time_s: FloatArray, energy_j: FloatArray) -> FloatArray:
        """Return a score per plan, lower for a better one, above 0 where it misses the target.

        Args:
            time_s: iteration time of each plan in s; shape (num_targets, any ...).
            energy_j: energy of an iteration of each plan in J, of the same shape.
        """
        limits = self.limits.reshape((-1,) + (1,) * (time_s.ndim - 1))
        if self.is_power:
            excess = energy_j - limits * time_s * (1 + RELATIVE_TIME_TOLERANCE)
            cost = time_s + _TIE * energy_j / self.usual_power_w
        else:
            excess, cost = time_s - limits * (1 + RELATIVE_TIME_TOLERANCE), energy_j
        return np.where(excess > 0, excess, -1 / cost)


class SingleClocks:
    """All plans of a pipeline in which no stage changes its clock.

    A choice has one level per stage: 0 is the stage's highest clock, 1 the next lower clock. A kind
    of instruction that lacks a clock runs at its next higher clock, or at its highest.

    Args:
        model: the pipeline; of joined pipelines each has stages of its own.

    Attributes:
        baseline_time_s: iteration time at the highest clocks in s, with late changes.
    """

    def __init__(self, model: PipelineModel) -> None:
        self._model = model
        groups, of_node = model.groups
        self._group_of_node = np.array(of_node)
        counts = np.bincount(self._group_of_node)
        power_w = model.stage_blocking_power_w
        self._blocking_power_w = sum(power_w)
        self._clocks_mhz: list[IndexArray] = []  # per stage, falling
        for stage in range(len(power_w)):
            of_stage = [points for one, points in groups if one == stage]
            clocks = {point.frequency_mhz for points in of_stage for point in points}
            self._clocks_mhz.append(np.array(sorted(clocks, reverse=True)))
        self._num_levels = np.array([len(clocks) for clocks in self._clocks_mhz])
        # Columns: the levels of stage 0, then those of stage 1, ...
        self._first_column = np.cumsum(self._num_levels) - self._num_levels
        # Where a kind lacks a stage's clock, the clock changes all the same, and late.
        self._changes_late = False
        shape = (len(groups), int(self._num_levels.sum()))
        self._point_of = np.zeros(shape, dtype=np.int64)  # of a group, at a stage's level
        self._duration_s = np.zeros(shape)
        self._busy_j = np.zeros(shape[1])  # of a stage's level, beyond waiting
        for row, (stage, points) in enumerate(groups):
            first = self._first_column[stage]
            columns = slice(first, first + self._num_levels[stage])
            clocks_mhz = np.array([point.frequency_mhz for point in points])
            self._changes_late |= bool(model.transitions) and len(clocks_mhz) < len(
                self._clocks_mhz[stage]
            )
            index = _lowest_from(clocks_mhz, self._clocks_mhz[stage])
            time_s = np.array([point.time_s for point in points])[index]
            energy_j = np.array([point.energy_j for point in points])[index]
            self._point_of[row, columns] = index
            self._duration_s[row, columns] = time_s
            self._busy_j[columns] += counts[row] * (energy_j - power_w[stage] * time_s)
        self._paths_s = np.zeros((0, shape[1]))  # per path and column, its instructions' time
        highest = np.zeros((1, len(power_w)), dtype=np.int64)
        times_s, energies_j = self._figures(highest)
        self.baseline_time_s = float(times_s[0])
        self._usual_power_w = float(energies_j[0]) / self.baseline_time_s

    def constant(self, targets: Sequence[Target]) -> list[SingleClockPlan]:
        """Return per target the best plan found with one clock per stage; all of one kind."""
        aims = self._aims(targets)
        common = self._best_common(aims)
        levels = self._improved(common, aims)
        if self._changes_late:  # the search takes changes to be at once
            is_better = aims.score(*self._figures(levels)) < aims.score(*self._figures(common))
            levels = np.where(is_better[:, None], levels, common)
        return self._plans(levels, aims)

    def same_for_all(self, targets: Sequence[Target]) -> list[SingleClockPlan]:
        """Return per target the best plan with one clock for all stages; all of one kind."""
        aims = self._aims(targets)
        return self._plans(self._best_common(aims), aims)

    def _aims(self, targets: Sequence[Target]) -> _Aims:
        (is_power,) = {target.kind == "power" for target in targets}
        limits = [
            target.value if is_power else deadline_of(target, self.baseline_time_s)
            for target in targets
        ]
        return _Aims(limits=np.array(limits), is_power=is_power, usual_power_w=self._usual_power_w)

    def _plans(self, levels: IndexArray, aims: _Aims) -> list[SingleClockPlan]:
        times_s, energies_j = self._figures(levels)
        return [
            SingleClockPlan(
                assignment=assignment,
                iteration_time_s=time_s,
                energy_j=energy_j,
                meets_target=meets,
            )
            for assignment, time_s, energy_j, meets in zip(
                self._assignments(levels),
                times_s.tolist(),
                energies_j.tolist(),
                (aims.score(times_s, energies_j) <= 0).tolist(),
                strict=True,
            )
        ]

    def _assignments(self, levels: IndexArray) -> list[Assignment]:
        # One column of a stage's levels each; 0 in those of the other stages.
        point_of_group = self._point_of[:, self._first_column + levels].max(axis=2)
        assignments: list[Assignment] = point_of_group[self._group_of_node].T.tolist()
        return assignments

    def _figures(self, levels: IndexArray) -> tuple[FloatArray, FloatArray]:
        """Return iteration times, s, and energies, J, with late changes."""
        if self._changes_late:
            assignments = self._assignments(levels)
            figures = [time_and_energy(self._model, assignment) for assignment in assignments]
            times_s, energies_j = np.array(figures).T
            return times_s, energies_j
        times_s = self._exact_times_s(levels)
        return times_s, self._energies_j(levels, times_s)

    def _energies_j(self, levels: IndexArray, times_s: FloatArray) -> FloatArray:
        columns = self._first_column + levels
        busy_j = self._busy_j[columns].sum(axis=1)
        energies_j: FloatArray = busy_j + self._blocking_power_w * times_s
        return energies_j

    def _exact_times_s(self, levels: IndexArray) -> FloatArray:
        """Return the iteration times in s; longest paths that are new join the paths.

        Args:
            levels: per choice and stage; shape (num_choices, num_stages).
        """
        dag = self._model.dag
        of_group_s = self._duration_s[:, self._first_column + levels].sum(axis=2)
        durations_s = of_group_s[self._group_of_node]
        finish_s = earliest_finishes_s(dag, durations_s)
        times_s: FloatArray = finish_s.max(axis=0)
        least_s = times_s * (1 - RELATIVE_TIME_TOLERANCE)
        for choice in np.flatnonzero(self._path_times_s(levels) < least_s):
            if self._path_times_s(levels[choice : choice + 1])[0] < least_s[choice]:
                path = critical_path(
                    dag, durations_s[:, choice].tolist(), finish_s[:, choice].tolist()
                )
                counts = np.bincount(self._group_of_node[path], minlength=len(of_group_s))
                path_s = counts @ self._duration_s
                if dag.tail_s or dag.transfer_s:  # whatever the clocks: stage 0 has it
                    delays_s = times_s[choice] - durations_s[path, choice].sum()
                    path_s[: self._num_levels[0]] += delays_s
                self._paths_s = np.vstack([self._paths_s, path_s])
        return times_s

    def _path_times_s(self, levels: IndexArray) -> FloatArray:
        paths_s = self._paths_s[:, self._first_column + levels].sum(axis=2)
        times_s: FloatArray = paths_s.max(axis=0, initial=0.0)
        return times_s

    def _best_common(self, aims: _Aims) -> IndexArray:
        """Return per target the levels of the best clock that all stages have in common."""
        levels, times_s, energies_j = self._common
        shape = (len(aims.limits), len(times_s))
        scores = aims.score(np.broadcast_to(times_s, shape), np.broadcast_to(energies_j, shape))
        best: IndexArray = levels[scores.argmin(axis=1)]
        return best

    @functools.cached_property
    def _common(self) -> tuple[IndexArray, FloatArray, FloatArray]:
        """Per clock, from the highest on: the stages' levels, iteration time, s, and energy, J."""
        cancellation_point()
        distinct = {mhz for clocks in self._clocks_mhz for mhz in clocks.tolist()}
        clocks_mhz = np.array(sorted(distinct, reverse=True))
        levels = np.column_stack([_lowest_from(own, clocks_mhz) for own in self._clocks_mhz])
        times_s = self._exact_times_s(levels)
        return levels, times_s, self._energies_j(levels, times_s)

    def _improved(self, levels: IndexArray, aims: _Aims) -> IndexArray:
        """Return per target the levels after all changes that help."""
        levels = levels.copy()
        targets = np.arange(len(levels))  # those that a change may still help
        while len(targets):
            cancellation_point()
            changed, is_better = self._better(levels[targets], aims.some(targets))
            targets, changed = targets[is_better], changed[is_better]
            said_s = self._path_times_s(changed)
            is_true = self._exact_times_s(changed) * (1 - RELATIVE_TIME_TOLERANCE) <= said_s
            levels[targets[is_true]] = changed[is_true]
        return levels

    def _better(self, levels: IndexArray, aims: _Aims) -> tuple[IndexArray, BoolArray]:
        """Return the best choices near these, by the paths found so far, and whether they help."""
        paths_s, stage = (
            self._paths_s,
            np.repeat(np.arange(len(self._num_levels)), self._num_levels),
        )
        columns = self._first_column + levels
        paths_now_s = paths_s[:, columns].sum(axis=2)[:, :, None]  # paths, targets, changes
        busy_j = self._busy_j[columns].sum(axis=1)[:, None]
        own = columns[:, stage]
        steps = np.arange(len(stage)) - own
        longer_s = paths_s[:, None, :] - paths_s[:, own]
        more_j = self._busy_j - self._busy_j[own]
        time_s = (paths_now_s + longer_s).max(axis=0)
        of_one = aims.score(time_s, busy_j + more_j + self._blocking_power_w * time_s)
        rows = np.arange(len(levels))
        now = of_one[rows, columns[:, 0]]  # no step
        enough = now - _LEAST_GAIN * abs(now)
        best = of_one.argmin(axis=1)
        is_better = of_one[rows, best] < enough
        changed = levels.copy()
        changed[rows, stage[best]] += steps[rows, best]
        changed[~is_better] = levels[~is_better]
        stuck = np.flatnonzero(~is_better)
        if len(stuck) and levels.shape[1] <= _MAX_PAIRED_STAGES:
            changed[stuck], is_better[stuck] = self._better_pairs(
                levels[stuck], aims.some(stuck), enough[stuck]
            )
        return changed, is_better

    def _better_pairs(
        self, levels: IndexArray, aims: _Aims, enough: FloatArray
    ) -> tuple[IndexArray, BoolArray]:
        """Likewise, of changes of two stages in opposite directions."""
        num_targets, num_stages = len(levels), len(self._num_levels)
        columns = self._first_column + levels
        stages: IndexArray = np.arange(num_stages)
        stage = np.repeat(stages, _PAIR_STEPS)
        up = np.tile(np.arange(-_PAIR_STEPS, 0), num_stages)
        down = np.tile(np.arange(1, _PAIR_STEPS + 1), num_stages)
        own = columns[:, stage]
        can_go_up = levels[:, stage] + up >= 0
        can_go_down = levels[:, stage] + down < self._num_levels[stage]
        faster, slower = np.where(can_go_up, own + up, own), np.where(can_go_down, own + down, own)
        time_s = np.zeros((num_targets, len(stage), len(stage)))
        for path_s in self._paths_s:
            now_s = path_s[columns].sum(axis=1)[:, None, None]
            less_s, more_s = path_s[faster] - path_s[own], path_s[slower] - path_s[own]
            np.maximum(time_s, now_s + (less_s[:, :, None] + more_s[:, None, :]), out=time_s)
        energy_j = self._blocking_power_w * time_s
        energy_j += self._busy_j[columns].sum(axis=1)[:, None, None]
        energy_j += (self._busy_j[faster] - self._busy_j[own])[:, :, None]
        energy_j += (self._busy_j[slower] - self._busy_j[own])[:, None, :]
        score = aims.score(time_s, energy_j)
        is_pair = can_go_up[:, :, None] & can_go_down[:, None, :] & (stage[:, None] != stage)
        score[~is_pair] = np.inf
        best = score.reshape(num_targets, -1).argmin(axis=1)
        rows: IndexArray = np.arange(num_targets)
        one, other = best // len(stage), best % len(stage)
        is_better = score[rows, one, other] < enough
        changed = levels.copy()
        changed[rows[is_better], stage[one[is_better]]] += up[one[is_better]]
        changed[rows[is_better], stage[other[is_better]]] += down[other[is_better]]
        return changed, is_better


def _lowest_from(clocks_mhz: IndexArray, wanted_mhz: IndexArray) -> IndexArray:
    """Per wanted clock, the index of the lowest of falling clocks at least as high, or of all."""
    reached: IndexArray = np.searchsorted(-clocks_mhz, -wanted_mhz, side="right")
    return np.maximum(0, reached - 1)
