"""A probe plan's steps: for each of them, which instructions run at which lower clock."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flyball_server.planning.frontier.compilation import compiled_function
from flyball_server.planning.model.dag import NONE, build_dag
from flyball_server.planning.model.finish_times import earliest_of, latest_of
from flyball_server.planning.probe_plan import ProbePlan
from flyball_server.planning.schedules._base import Schedule, one_chunk_each
from flyball_server.profiling.findings import StageFindings
from flyball_server.profiling.iterations import Baseline
from flyball_server.profiling.mixed_model import FloatArray
from flyball_server.profiling.observations import InstructionClass, ProbeSetup
from flyball_server.profiling.walk import Arm

# Inside compiled code a subscript is one number; numpy's types cannot say so.
# pyright: reportReturnType=false, reportArgumentType=false


IndexArray = NDArray[np.int64]

# Extra times that differ by less than this factor are served alike.
_ABOUT_EQUAL = 1.3


@dataclass(frozen=True, kw_only=True)
class StepGraph:
    """Instructions of an iteration as nodes, stage after stage, each stage in its order.

    Attributes:
        stage: per node; shape (num_nodes,).
        order: nodes, each after its predecessors; same shape.
        predecessors: NONE where there are fewer; shape (2, num_nodes).
    """

    stage: IndexArray
    order: IndexArray
    predecessors: IndexArray

    @classmethod
    def of_schedule(cls, schedule: Schedule) -> StepGraph:
        """The nodes of a schedule; of a steady-state period, a chain for each stage.

        The period lasts as long as its slowest stage, whatever the others wait for
        (`schedules/pipedream.py`).
        """
        lengths = [len(stage) for stage in schedule.stages]
        stage = np.repeat(np.arange(len(lengths)), lengths)
        if not schedule.is_periodic:
            dag = build_dag(schedule)
            return cls(
                stage=stage,
                order=np.array(dag.topological_order, dtype=np.int64),
                predecessors=np.array(
                    [dag.order_predecessor, dag.data_predecessor], dtype=np.int64
                ),
            )
        nodes = np.arange(len(stage))
        before = nodes - 1
        before[np.append(True, stage[1:] != stage[:-1])] = NONE
        return cls(
            stage=stage,
            order=nodes,
            predecessors=np.array([before, np.full(len(stage), NONE)]),
        )

    def finish_s(self, durations_s: FloatArray) -> FloatArray:
        """Per node, when it finishes if all start as early as they can, s."""
        return earliest_of(self.order, self.predecessors, durations_s)


@dataclass(frozen=True, kw_only=True)
class SlowedStep:
    """One step's design.

    Attributes:
        is_slow: which of the wanted nodes run slower; shape (num_nodes,).
        iteration_time_s: with their slower times, s.
    """

    is_slow: NDArray[np.bool_]
    iteration_time_s: float


def slow_nodes(
    graph: StepGraph, durations_s: FloatArray, slower_s: FloatArray, deadline_s: float
) -> SlowedStep:
    """Slow as many wanted nodes as the deadline bears.

    Args:
        graph: the nodes.
        durations_s: durations of the nodes at the highest clocks, s; shape (num_nodes,).
        slower_s: per node, its time at the clock wanted for it, s; 0 where none is wanted.
        deadline_s: for the iteration, not before its end at the highest clocks, s.
    """
    durations_s = durations_s.copy()
    is_slow = np.zeros(len(durations_s), dtype=np.bool_)
    finish_s = graph.finish_s(durations_s)
    for stage in _stages_in_turn(graph, durations_s, slower_s, finish_s):
        nodes = np.flatnonzero(graph.stage == stage)
        wanted_s = np.zeros(len(durations_s))
        wanted_s[nodes] = slower_s[nodes]
        slowed, finish_s = _slowed(
            graph.order,
            graph.predecessors,
            durations_s,
            wanted_s,
            _limits_s(graph, durations_s, wanted_s, finish_s, deadline_s),
        )
        is_slow |= slowed
        durations_s = np.where(slowed, wanted_s, durations_s)
    return SlowedStep(is_slow=is_slow, iteration_time_s=float(finish_s.max()))


def _stages_in_turn(
    graph: StepGraph, durations_s: FloatArray, slower_s: FloatArray, finish_s: FloatArray
) -> list[int]:
    """The stages with wanted nodes, in the order in which they are served."""
    latest_s = latest_of(graph.order, graph.predecessors, durations_s, float(finish_s.max()))
    num_stages = int(graph.stage[-1]) + 1
    extra_s = np.zeros(num_stages)
    np.maximum.at(extra_s, graph.stage, np.where(slower_s > 0, slower_s - durations_s, 0.0))
    floats_s = np.bincount(graph.stage, latest_s - finish_s, num_stages)

    def turn(stage: int) -> tuple[float, float]:
        return (-round(math.log(extra_s[stage]) / math.log(_ABOUT_EQUAL)), floats_s[stage])

    return sorted(np.flatnonzero(extra_s > 0).tolist(), key=turn)


def _limits_s(
    graph: StepGraph,
    durations_s: FloatArray,
    wanted_s: FloatArray,
    finish_s: FloatArray,
    deadline_s: float,
) -> FloatArray:
    """By when each node has to finish, s: a stair for about each slow node of the stage."""
    end_s = float(finish_s.max())
    allowance_s = max(0.0, deadline_s - end_s)
    stair_s = float((wanted_s - durations_s).max())
    num_stairs = max(1, int(allowance_s / stair_s)) if stair_s > 0 else 1
    stair = np.floor(finish_s / end_s * num_stairs + 0.5) / num_stairs
    latest_s = latest_of(graph.order, graph.predecessors, durations_s, end_s)
    limits_s: FloatArray = latest_s + allowance_s * np.minimum(stair, 1.0)
    return limits_s


@compiled_function
def _slowed(
    order: IndexArray,
    predecessors: IndexArray,
    durations_s: FloatArray,
    slower_s: FloatArray,
    limit_s: FloatArray,
) -> tuple[NDArray[np.bool_], FloatArray]:
    finish_s = np.zeros(len(durations_s) + 1)
    is_slow = np.zeros(len(durations_s), np.bool_)
    for node in order:
        before, source = finish_s[predecessors[0, node]], finish_s[predecessors[1, node]]
        start_s = max(before, source)
        if slower_s[node] > 0 and start_s + slower_s[node] <= limit_s[node]:
            is_slow[node] = True
            finish_s[node] = start_s + slower_s[node]
        else:
            finish_s[node] = start_s + durations_s[node]
    return is_slow, finish_s[:-1]


_NUM_DRAWS = 16
# Standard deviations above its mean at which a step must still keep the cap.
_DEVIATIONS = 4.0


@dataclass(frozen=True, kw_only=True)
class NoisyPipeline:
    """An iteration's instructions with their mean times and scatter.

    Attributes:
        durations_s: at the highest clocks; shape (num_nodes,).
        factors: factors of the times in each draw; shape (num draws, num_nodes).
        beyond_s: time of measured steps at the highest clocks beyond the draws' mean, s.
        scatter_s: standard deviation of a measured step there.
    """

    graph: StepGraph
    durations_s: FloatArray
    factors: FloatArray
    beyond_s: float
    scatter_s: float

    @classmethod
    def measured(
        cls,
        graph: StepGraph,
        *,
        durations_s: FloatArray,
        scatter: FloatArray,
        baseline: Baseline,
    ) -> NoisyPipeline:
        """The pipeline whose steps at the highest clocks take what was measured.

        Args:
            graph: its instructions.
            durations_s: per node, mean at the highest clocks, s.
            scatter: per node, standard deviation of a single one, as a share.
            baseline: the measured steps.
        """
        draws = np.random.default_rng(0).standard_normal((_NUM_DRAWS, len(durations_s)))
        factors = 1 + scatter * draws
        sample_s = _sample_s(graph, factors * durations_s)
        return cls(
            graph=graph,
            durations_s=durations_s,
            factors=factors,
            beyond_s=baseline.iteration_time_s - float(sample_s.mean()),
            scatter_s=baseline.scatter * baseline.iteration_time_s,
        )

    @property
    def quickest_s(self) -> float:
        """Longest path at the highest clocks, without noise, s."""
        return float(self.graph.finish_s(self.durations_s).max())

    def predicted_s(self, durations_s: FloatArray) -> float:
        """The longest that a step with these mean times should ever take, s."""
        sample_s = _sample_s(self.graph, self.factors * durations_s)
        spread_s = max(float(sample_s.std(ddof=1)), self.scatter_s)
        return float(sample_s.mean()) + self.beyond_s + _DEVIATIONS * spread_s


def _sample_s(graph: StepGraph, drawn_s: FloatArray) -> FloatArray:
    return np.array([graph.finish_s(durations_s).max() for durations_s in drawn_s])


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
    graph = StepGraph.of_schedule(setup.schedule)
    classes = _class_of_nodes(setup, findings)
    pipeline = NoisyPipeline.measured(
        graph,
        durations_s=_per_node(
            graph, classes, [each.times.mean_s[each.points.highest()] for each in findings]
        ),
        scatter=_per_node(graph, classes, [each.times.scatter for each in findings]),
        baseline=baseline,
    )
    longest_s = (1 + setup.slowdown_cap - margin) * baseline.iteration_time_s
    rows: list[_Row] = []
    predicted_s = pipeline.predicted_s(pipeline.durations_s)
    for turn in range(max(map(len, arms))):
        in_turn = [
            of_stage[(turn + stage) % len(of_stage)] if of_stage else None
            for stage, of_stage in enumerate(arms)
        ]
        slower_s, clocks = _wanted(graph, classes, findings, in_turn)
        slowed, step_s = _within_cap(pipeline, slower_s, longest_s)
        predicted_s = max(predicted_s, step_s)
        rows += [_row(setup, graph, np.where(slowed.is_slow, clocks, 0))] * block
    return _plan(setup, tuple(rows), iteration_time_s=predicted_s)


_Row = tuple[tuple[int, ...], ...]
"""Per stage, the clock of each of its instructions, MHz."""


def _wanted(
    graph: StepGraph,
    classes: IndexArray,
    findings: Sequence[StageFindings],
    arms: Sequence[Arm | None],
) -> tuple[FloatArray, IndexArray]:
    """Per node, its time at the clock that its stage's arm wants, s, and that clock's index."""
    slower_s = np.zeros(len(classes))
    clocks = np.zeros(len(classes), dtype=np.int64)
    for of_stage, arm in zip(findings, arms, strict=True):
        if arm is not None:
            nodes = (graph.stage == of_stage.stage) & (classes == arm.class_index)
            slower_s[nodes] = of_stage.time_bound_s(arm.class_index, arm.clock_index)
            clocks[nodes] = arm.clock_index
    return slower_s, clocks


def _within_cap(
    pipeline: NoisyPipeline, slower_s: FloatArray, longest_s: float
) -> tuple[SlowedStep, float]:
    """A step whose predicted time, noise included, is at most `longest_s`; and that time, s."""
    quickest_s = pipeline.quickest_s
    at_highest_s = pipeline.predicted_s(pipeline.durations_s)
    deadline_s = quickest_s + max(0.0, longest_s - at_highest_s)
    for _ in range(_MAX_ATTEMPTS):
        slowed = slow_nodes(pipeline.graph, pipeline.durations_s, slower_s, deadline_s)
        durations_s = np.where(slowed.is_slow, slower_s, pipeline.durations_s)
        predicted_s = pipeline.predicted_s(durations_s)
        if predicted_s <= longest_s:
            return slowed, predicted_s
        deadline_s = max(quickest_s, deadline_s - 1.1 * (predicted_s - longest_s))
    none = np.zeros(len(slower_s), dtype=np.bool_)
    return SlowedStep(is_slow=none, iteration_time_s=quickest_s), at_highest_s


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
    graph: StepGraph, classes: IndexArray, of_classes: Sequence[FloatArray]
) -> FloatArray:
    """Per node, what its stage has for its class."""
    values = np.empty(len(classes))
    for stage, of_stage in enumerate(of_classes):
        nodes = graph.stage == stage
        values[nodes] = of_stage[classes[nodes]]
    return values


def _row(setup: ProbeSetup, graph: StepGraph, clocks: IndexArray) -> _Row:
    return tuple(
        tuple(np.array(clocks_mhz)[clocks[graph.stage == stage]].tolist())
        for stage, clocks_mhz in enumerate(setup.clocks_mhz)
    )
