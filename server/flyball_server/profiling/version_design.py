"""A probe plan's steps: for each of them, which instructions run at which lower clock."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flyball_pipeline.dag import step_dag
from flyball_pipeline.paths import earliest_finish_s, forward_pass, latest_finish_s
from flyball_server.planning.model.array_dag import (
    ArrayDag,
    BoolArray,
    FloatArray,
    array_dag,
    earliest_finishes_s,
)
from flyball_server.profiling.arms import Arm
from flyball_server.profiling.observations import InstructionClass, ProbeSetup
from flyball_server.profiling.stage_estimates import StageFindings
from flyball_wire.plans.plan import Plan, probe_of

# Extra times that differ by less than this factor are served alike.
_ABOUT_EQUAL = 1.3
# Turns in which stages are served; where there are more stages, some share a turn.
_MOST_TURNS = 8
# Draws of a step, and standard deviations above its mean at which it must still keep the cap.
_NUM_DRAWS, _DEVIATIONS = 16, 4.0
# How often a step that noise could take beyond the cap is designed again, for a shorter time.
_MAX_ATTEMPTS = 6


@dataclass(frozen=True, kw_only=True)
class ProbedBaseline:
    """Steps at the highest clocks, measured.

    Attributes:
        iteration_time_s: mean, s.
        deviation_s: standard deviation of a single step, s.
        energy_j: mean, J; None where it is not known.
    """

    iteration_time_s: float
    deviation_s: float
    energy_j: float | None


def baseline_plan(setup: ProbeSetup) -> Plan:
    """Return the plan with every instruction at its stage's highest clock."""
    row = tuple(
        (clocks[0],) * len(instructions)
        for clocks, instructions in zip(setup.clocks_mhz, setup.schedule.stages, strict=True)
    )
    return probe_of(setup.schedule, (row,), 1.0)


def probe_plan(
    setup: ProbeSetup,
    findings: Sequence[StageFindings],
    arms: Sequence[Sequence[Arm | None]],
    *,
    block: int,
    baseline: ProbedBaseline,
    margin: float,
) -> Plan:
    """Return a plan of blocks of steps in which each stage probes its arms in turn.

    Stages take their arms in turns that are shifted against each other, so that what one does
    is not what all do.

    Args:
        setup: with the cap.
        findings: findings of all stages.
        arms: per stage, in each block; None: the stage stays at its highest clock.
        block: number of steps, at least 1.
        baseline: steps at the highest clocks, measured.
        margin: share of the iteration time to keep free beside what noise needs.
    """
    classes = [
        np.array(
            [finding.points.classes.index(InstructionClass(kind, chunk)) for kind, _, chunk in of]
        )
        for finding, of in zip(findings, setup.schedule.stages, strict=True)
    ]
    ends = np.cumsum([len(of_stage) for of_stage in classes])[:-1]
    per_stage = list(zip(findings, classes, strict=True))
    pipeline = NoisyPipeline(
        array_dag(step_dag(setup.schedule)),
        np.concatenate(
            [finding.times.mean_s[finding.points.highest()][of] for finding, of in per_stage]
        ),
        np.concatenate([finding.times.scatter[of] for finding, of in per_stage]),
        baseline,
    )
    longest_s = (1 + setup.slowdown_cap - margin) * baseline.iteration_time_s
    cycle_mhz: list[tuple[tuple[int, ...], ...]] = []
    predicted_s = pipeline.at_highest_s
    for turn in range(len(arms[0])):
        in_turn = [of_stage[(turn + place) % len(of_stage)] for place, of_stage in enumerate(arms)]
        slower_s = [
            np.zeros(len(of))
            if arm is None
            else np.where(of == arm.class_index, finding.time_bound_s(*arm), 0.0)
            for arm, (finding, of) in zip(in_turn, per_stage, strict=True)
        ]
        is_slow, step_s = pipeline.slowed(np.concatenate(slower_s), longest_s)
        predicted_s = max(predicted_s, step_s)
        row = tuple(
            tuple(np.where(slow, clocks[arm.clock_index if arm else 0], clocks[0]).tolist())
            for arm, slow, clocks in zip(
                in_turn, np.split(is_slow, ends), setup.clocks_mhz, strict=True
            )
        )
        cycle_mhz += [row] * block
    return probe_of(setup.schedule, tuple(cycle_mhz), predicted_s)


class NoisyPipeline:
    """A pipeline whose steps at the highest clocks take what was measured.

    Args:
        dag: DAG of a step.
        durations_s: per node, mean at the highest clocks, s; shape (num_nodes,).
        scatter: per node, standard deviation of a single duration, as a share; same shape.
        baseline: the measured steps.

    Attributes:
        at_highest_s: the longest that a step at the highest clocks should ever take, s.
    """

    def __init__(
        self,
        dag: ArrayDag,
        durations_s: FloatArray,
        scatter: FloatArray,
        baseline: ProbedBaseline,
    ) -> None:
        self._dag, self._durations_s, self._baseline = dag, durations_s, baseline
        draws = np.random.default_rng(0).standard_normal((len(durations_s), _NUM_DRAWS))
        self._factors = 1 + scatter[:, None] * draws
        self._beyond_s = baseline.iteration_time_s - float(self._sample_s(durations_s).mean())
        self.at_highest_s = self._predicted_s(durations_s)

    def slowed(self, slower_s: FloatArray, longest_s: float) -> tuple[BoolArray, float]:
        """Return slow nodes with which a step takes at most `longest_s`, and its time, s.

        The time is the longest that it should ever take, noise included.

        Args:
            slower_s: as in `slow_nodes`.
            longest_s: limit, s.
        """
        quickest_s = max(earliest_finish_s(self._dag, self._durations_s.tolist()))
        deadline_s = quickest_s + max(0.0, longest_s - self.at_highest_s)
        for _ in range(_MAX_ATTEMPTS):
            is_slow = slow_nodes(self._dag, self._durations_s, slower_s, deadline_s)
            predicted_s = self._predicted_s(np.where(is_slow, slower_s, self._durations_s))
            if predicted_s <= longest_s:
                return is_slow, predicted_s
            deadline_s = max(quickest_s, deadline_s - 1.1 * (predicted_s - longest_s))
        return np.zeros(len(slower_s), dtype=np.bool_), self.at_highest_s

    def _predicted_s(self, durations_s: FloatArray) -> float:
        sample_s = self._sample_s(durations_s)
        spread_s = max(float(sample_s.std(ddof=1)), self._baseline.deviation_s)
        return float(sample_s.mean()) + self._beyond_s + _DEVIATIONS * spread_s

    def _sample_s(self, durations_s: FloatArray) -> FloatArray:
        sample_s: FloatArray = earliest_finishes_s(
            self._dag, self._factors * durations_s[:, None]
        ).max(axis=0)
        return sample_s


def slow_nodes(
    dag: ArrayDag, durations_s: FloatArray, slower_s: FloatArray, deadline_s: float
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
    dag: ArrayDag, durations_s: FloatArray, slower_s: FloatArray, finish_s: FloatArray
) -> list[list[int]]:
    """Return the stages with wanted nodes, in the order in which they are served."""
    stage, num_stages = np.array(dag.stage), dag.stage[-1] + 1
    latest_s = np.array(latest_finish_s(dag, durations_s.tolist(), float(finish_s.max())))
    extra_s = np.zeros(num_stages)
    np.maximum.at(extra_s, stage, np.where(slower_s > 0, slower_s - durations_s, 0.0))
    floats_s = np.bincount(stage, latest_s - finish_s, num_stages)

    def rank(version: int) -> tuple[float, float]:
        return (-round(math.log(extra_s[version]) / math.log(_ABOUT_EQUAL)), floats_s[version])

    ranked = sorted(np.flatnonzero(extra_s > 0).tolist(), key=rank)
    size = max(1, math.ceil(len(ranked) / _MOST_TURNS))
    return [ranked[first : first + size] for first in range(0, len(ranked), size)]


def _limits_s(
    dag: ArrayDag,
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
    dag: ArrayDag, durations_s: FloatArray, wanted_s: FloatArray, limits_s: FloatArray
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
