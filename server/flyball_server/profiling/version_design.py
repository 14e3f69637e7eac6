"""A probe plan's steps: for each of them, which instructions run at which lower clock."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flyball_server.planning.model.dag import DependencyDag, step_dag
from flyball_server.planning.model.finish_times import (
    earliest_finish_s,
    earliest_finishes_s,
    forward_pass,
    latest_finish_s,
)
from flyball_server.planning.probe_plan import ProbePlan
from flyball_server.planning.schedules._base import one_chunk_each
from flyball_server.profiling.findings import StageFindings
from flyball_server.profiling.iterations import Baseline
from flyball_server.profiling.mixed_model import FloatArray
from flyball_server.profiling.observations import InstructionClass, ProbeSetup
from flyball_server.profiling.walk import Arm

BoolArray = NDArray[np.bool_]
IndexArray = NDArray[np.int64]

# Extra times that differ by less than this factor are served alike.
_ABOUT_EQUAL = 1.3
# Turns in which stages are served; where there are more stages, some share a turn.
_MOST_TURNS = 8


def slow_nodes(
    dag: DependencyDag, durations_s: FloatArray, slower_s: FloatArray, deadline_s: float
) -> BoolArray:
    """Slow as many wanted nodes as the deadline bears; return which, shape (num_nodes,).

    Args:
        dag: DAG of the step.
        durations_s: durations of the nodes at the highest clocks, s; shape (num_nodes,).
        slower_s: per node, its time at the clock wanted for it, s; 0 where none is wanted.
        deadline_s: for the iteration, not before its end at the highest clocks, s.
    """
    stage = np.array(dag.stage)
    is_slow = np.zeros(len(durations_s), dtype=np.bool_)
    finish_s = np.array(earliest_finish_s(dag, durations_s.tolist()))
    for stages in _turns(dag, durations_s, slower_s, finish_s):
        wanted_s = np.where(np.isin(stage, stages), slower_s, 0.0)
        limits_s = _limits_s(dag, durations_s, wanted_s, finish_s, deadline_s)
        finish_s, slowed = _slowed(dag, durations_s, wanted_s, limits_s)
        is_slow |= slowed
        durations_s = np.where(slowed, wanted_s, durations_s)
    return is_slow


def _turns(
    dag: DependencyDag, durations_s: FloatArray, slower_s: FloatArray, finish_s: FloatArray
) -> list[list[int]]:
    """Return the stages with wanted nodes, in the order in which they are served."""
    stage, num_stages = np.array(dag.stage), dag.stage[-1] + 1
    latest_s = np.array(latest_finish_s(dag, durations_s.tolist(), float(finish_s.max())))
    extra_s = np.zeros(num_stages)
    np.maximum.at(extra_s, stage, np.where(slower_s > 0, slower_s - durations_s, 0.0))
    floats_s = np.bincount(stage, latest_s - finish_s, num_stages)

    def rank(one: int) -> tuple[float, float]:
        return (-round(math.log(extra_s[one]) / math.log(_ABOUT_EQUAL)), floats_s[one])

    ranked = sorted(np.flatnonzero(extra_s > 0).tolist(), key=rank)
    size = max(1, math.ceil(len(ranked) / _MOST_TURNS))
    return [ranked[first : first + size] for first in range(0, len(ranked), size)]


def _limits_s(
    dag: DependencyDag,
    durations_s: FloatArray,
    wanted_s: FloatArray,
    finish_s: FloatArray,
    deadline_s: float,
) -> FloatArray:
    """By when each node has to finish, s: a stair for about each slow node of a stage."""
    end_s = float(finish_s.max())
    allowance_s = max(0.0, deadline_s - end_s)
    stair_s = float((wanted_s - durations_s).max())
    num_stairs = max(1, int(allowance_s / stair_s)) if stair_s > 0 else 1
    stair = np.floor(finish_s / end_s * num_stairs + 0.5) / num_stairs
    latest_s = np.array(latest_finish_s(dag, durations_s.tolist(), end_s))
    limits_s: FloatArray = latest_s + allowance_s * np.minimum(stair, 1.0)
    return limits_s


def _slowed(
    dag: DependencyDag, durations_s: FloatArray, wanted_s: FloatArray, limits_s: FloatArray
) -> tuple[FloatArray, BoolArray]:
    """Per node, its finish, s, and whether it is slow: where that still meets its limit."""
    durations: list[float] = durations_s.tolist()
    limits: list[float] = limits_s.tolist()
    slower: list[float] = np.where(wanted_s > 0, wanted_s, np.inf).tolist()
    is_slow = [False] * dag.num_nodes

    def finish_of(node: int, start_s: float) -> float:
        slow_s = start_s + slower[node]
        if slow_s <= limits[node]:
            is_slow[node] = True
            return slow_s
        return start_s + durations[node]

    return np.array(forward_pass(dag, finish_of)), np.array(is_slow)


_NUM_DRAWS = 16
# Standard deviations above its mean at which a step must still keep the cap.
_DEVIATIONS = 4.0


class NoisyPipeline:
    """A pipeline whose steps at the highest clocks take what was measured.

    Args:
        dag: DAG of a step.
        durations_s: per node, mean at the highest clocks, s; shape (num_nodes,).
        scatter: per node, standard deviation of a single one, as a share; same shape.
        baseline: the measured steps.

    Attributes:
        dag, durations_s: as given.
        quickest_s: longest path at the highest clocks, without noise, s.
        at_highest_s: the longest that a step at the highest clocks should ever take, s.
    """

    def __init__(
        self, dag: DependencyDag, durations_s: FloatArray, scatter: FloatArray, baseline: Baseline
    ) -> None:
        self.dag, self.durations_s = dag, durations_s
        draws = np.random.default_rng(0).standard_normal((_NUM_DRAWS, len(durations_s)))
        self._factors = 1 + scatter * draws
        self._beyond_s = baseline.iteration_time_s - float(self._sample_s(durations_s).mean())
        self._scatter_s = baseline.scatter * baseline.iteration_time_s
        self.quickest_s = max(earliest_finish_s(dag, durations_s.tolist()))
        self.at_highest_s = self.predicted_s(durations_s)

    def predicted_s(self, durations_s: FloatArray) -> float:
        """Return the longest that a step with these mean times should ever take, s."""
        sample_s = self._sample_s(durations_s)
        spread_s = max(float(sample_s.std(ddof=1)), self._scatter_s)
        return float(sample_s.mean()) + self._beyond_s + _DEVIATIONS * spread_s

    def _sample_s(self, durations_s: FloatArray) -> FloatArray:
        sample_s: FloatArray = earliest_finishes_s(self.dag, (self._factors * durations_s).T).max(
            axis=0
        )
        return sample_s


# How often a step that noise could take beyond the cap is designed again, for a shorter time.
_MAX_ATTEMPTS = 6


def baseline_plan(setup: ProbeSetup) -> ProbePlan:
    """Every instruction at its stage's highest clock."""
    row = tuple(
        (clocks[0],) * len(instructions)
        for clocks, instructions in zip(setup.clocks_mhz, setup.schedule.stages, strict=True)
    )
    return _plan(setup, (row,), iteration_time_s=1.0)


def probe_plan(
    setup: ProbeSetup,
    findings: Sequence[StageFindings],
    arms: Sequence[Sequence[Arm | None]],
    *,
    block: int,
    baseline: Baseline,
    margin: float,
) -> ProbePlan:
    """Return a plan of blocks of steps in which each stage probes its arms in turn.

    Stages take their arms in turns that are shifted against each other, so that what one does
    is not what all do.

    Args:
        setup: with the cap.
        findings: findings of all stages.
        arms: per stage; None, or none at all: the stage stays at its highest clock.
        block: number of steps, at least 1.
        baseline: steps at the highest clocks, measured.
        margin: share of the iteration time to keep free beside what noise needs.
    """
    dag = step_dag(setup.schedule)
    stage = np.array(dag.stage)
    classes = _class_of_nodes(setup, findings)
    pipeline = NoisyPipeline(
        dag,
        _per_node(stage, classes, [each.times.mean_s[each.points.highest()] for each in findings]),
        _per_node(stage, classes, [each.times.scatter for each in findings]),
        baseline,
    )
    longest_s = (1 + setup.slowdown_cap - margin) * baseline.iteration_time_s
    rows: list[_Row] = []
    predicted_s = pipeline.at_highest_s
    for turn in range(max(map(len, arms))):
        in_turn = [
            of_stage[(turn + number) % len(of_stage)] if of_stage else None
            for number, of_stage in enumerate(arms)
        ]
        slower_s, clocks = _wanted(stage, classes, findings, in_turn)
        is_slow, step_s = _within_cap(pipeline, slower_s, longest_s)
        predicted_s = max(predicted_s, step_s)
        rows += [_row(setup, stage, np.where(is_slow, clocks, 0))] * block
    return _plan(setup, tuple(rows), iteration_time_s=predicted_s)


_Row = tuple[tuple[int, ...], ...]
"""Per stage, the clock of each of its instructions, MHz."""


def _wanted(
    stage: IndexArray,
    classes: IndexArray,
    findings: Sequence[StageFindings],
    arms: Sequence[Arm | None],
) -> tuple[FloatArray, IndexArray]:
    """Per node, its time at the clock that its stage's arm wants, s, and that clock's index."""
    slower_s = np.zeros(len(classes))
    clocks = np.zeros(len(classes), dtype=np.int64)
    for of_stage, arm in zip(findings, arms, strict=True):
        if arm is not None:
            nodes = (stage == of_stage.stage) & (classes == arm.class_index)
            slower_s[nodes] = of_stage.time_bound_s(arm.class_index, arm.clock_index)
            clocks[nodes] = arm.clock_index
    return slower_s, clocks


def _within_cap(
    pipeline: NoisyPipeline, slower_s: FloatArray, longest_s: float
) -> tuple[BoolArray, float]:
    """Slow nodes with which the predicted time, noise included, is at most `longest_s`; it, s."""
    deadline_s = pipeline.quickest_s + max(0.0, longest_s - pipeline.at_highest_s)
    for _ in range(_MAX_ATTEMPTS):
        is_slow = slow_nodes(pipeline.dag, pipeline.durations_s, slower_s, deadline_s)
        predicted_s = pipeline.predicted_s(np.where(is_slow, slower_s, pipeline.durations_s))
        if predicted_s <= longest_s:
            return is_slow, predicted_s
        deadline_s = max(pipeline.quickest_s, deadline_s - 1.1 * (predicted_s - longest_s))
    return np.zeros(len(slower_s), dtype=np.bool_), pipeline.at_highest_s


def _plan(
    setup: ProbeSetup,
    cycle_mhz: tuple[_Row, ...],
    *,
    iteration_time_s: float,
) -> ProbePlan:
    schedule = setup.schedule
    is_plain = schedule.virtual_stages == one_chunk_each(schedule.num_stages)
    return ProbePlan(
        schedule=schedule.name,
        num_microbatches=schedule.num_microbatches,
        stages=schedule.stages,
        cycle_mhz=cycle_mhz,
        iteration_time_s=iteration_time_s,
        virtual_stages=() if is_plain else schedule.virtual_stages,
    )


def _class_of_nodes(setup: ProbeSetup, findings: Sequence[StageFindings]) -> IndexArray:
    return np.array(
        [
            findings[stage].points.classes.index(InstructionClass(kind, chunk))
            for stage, instructions in enumerate(setup.schedule.stages)
            for kind, _, chunk in instructions
        ],
        dtype=np.int64,
    )


def _per_node(
    stage: IndexArray, classes: IndexArray, of_classes: Sequence[FloatArray]
) -> FloatArray:
    """Per node, what its stage has for its class."""
    values = np.empty(len(classes))
    for number, of_stage in enumerate(of_classes):
        nodes = stage == number
        values[nodes] = of_stage[classes[nodes]]
    return values


def _row(setup: ProbeSetup, stage: IndexArray, clocks: IndexArray) -> _Row:
    return tuple(
        tuple(np.array(clocks_mhz)[clocks[stage == number]].tolist())
        for number, clocks_mhz in enumerate(setup.clocks_mhz)
    )
