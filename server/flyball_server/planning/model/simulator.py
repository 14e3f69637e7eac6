"""Simulator of one iteration: start and end of each instruction, time and energy.

Every instruction starts as soon as its predecessors have finished. Iteration energy is the sum
over instructions of `E(f) - r_s P_s t(f)`, plus `T` times the sum over stages of `r_s P_s`:
busy energy, and the blocking power over whatever of T is not busy. Where clock changes take time,
t and E of an instruction depend on the clocks before it (`late_clocks.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flyball_pipeline.dag import NONE
from flyball_pipeline.paths import earliest_finish_s, latest_finish_s
from flyball_server.planning.model.array_dag import ArrayDag
from flyball_server.planning.model.joint_model import join_pipelines
from flyball_server.planning.model.late_clocks import LateClockSimulator
from flyball_server.planning.model.pipeline_model import Assignment, PipelineModel

# Of the iteration time: sums of the same durations in another order differ by rounding alone.
RELATIVE_TIME_TOLERANCE = 1e-9


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """One iteration of a plan, predicted.

    Attributes:
        start_s, finish_s: per node of the DAG, s from the iteration's begin.
        busy_s, busy_j: per node, its duration in s and its energy without waiting in J.
        late_s: per node, how long it runs at other clocks than its own, s.
        in_force: per stage, where clocks change late: from when on, s, which clock is in force,
            MHz, in order of time; the last ones may come after the end. Else empty.
        wait_s: per node, how long its stage was idle before it, s.
        float_s: per node, possible delay of its end without a longer iteration, s.
        critical_path: nodes of one longest path, in the order of time.
        iteration_time_s: T, s.
        energy_j: energy of one iteration over all stages, J.
        bubble_fraction: idle share of `num_stages * T`, the tail left out of T.
        peak_activations: per stage, the most microbatches (of a chunk) held for backward.
    """

    start_s: tuple[float, ...]
    finish_s: tuple[float, ...]
    busy_s: tuple[float, ...]
    busy_j: tuple[float, ...]
    late_s: tuple[float, ...]
    wait_s: tuple[float, ...]
    float_s: tuple[float, ...]
    critical_path: tuple[int, ...]
    iteration_time_s: float
    energy_j: float
    bubble_fraction: float
    peak_activations: tuple[int, ...]
    in_force: tuple[tuple[tuple[float, int], ...], ...] = ()


@dataclass(frozen=True, kw_only=True)
class JointSimulation:
    """One iteration of data-parallel pipelines, predicted.

    Attributes:
        whole: simulation of all pipelines as one model.
        pipelines: by `dp_rank`; `iteration_time_s`, floats and critical path are the
            pipeline's own, energy and bubbles count its waiting for the slowest one.
    """

    whole: Simulation
    pipelines: tuple[Simulation, ...]


def simulate(model: PipelineModel, assignment: Sequence[int]) -> Simulation:
    """Run one iteration of `assignment` on paper."""
    dag, busy = model.dag, _busy(model, assignment)
    durations_s = busy.duration_s
    finish_s = earliest_finish_s(dag, durations_s)
    # Not finish less duration: its rounding would show as a wait below zero.
    start_s = [
        max(
            finish_s[before] if before != NONE else dag.tail_s,
            finish_s[source] + delay_s if source != NONE else dag.tail_s,
        )
        for before, source, delay_s in zip(
            dag.order_predecessor, dag.data_predecessor, dag.input_delay_s, strict=True
        )
    ]
    iteration_time_s = max(finish_s)
    latest_s = latest_finish_s(dag, durations_s, iteration_time_s)
    return Simulation(
        start_s=tuple(start - dag.tail_s for start in start_s),
        finish_s=tuple(finish - dag.tail_s for finish in finish_s),
        busy_s=tuple(durations_s),
        busy_j=tuple(busy.energy_j),
        late_s=tuple(busy.late_s),
        wait_s=tuple(
            start - (finish_s[before] if before != NONE else dag.tail_s)
            for start, before in zip(start_s, dag.order_predecessor, strict=True)
        ),
        float_s=tuple(
            max(0.0, latest - finish) for latest, finish in zip(latest_s, finish_s, strict=True)
        ),
        critical_path=tuple(critical_path(dag, durations_s, finish_s)),
        iteration_time_s=iteration_time_s,
        energy_j=_energy_j(model, busy, iteration_time_s),
        bubble_fraction=1
        - sum(durations_s) / (model.schedule.num_stages * (iteration_time_s - dag.tail_s)),
        peak_activations=model.schedule.peak_activations,
        in_force=busy.in_force,
    )


def simulate_jointly(
    models: Sequence[PipelineModel],
    assignments: Sequence[Assignment],
    joint: PipelineModel | None = None,
) -> JointSimulation:
    """Run one iteration of all pipelines on paper, each with its own assignment.

    Args:
        models: models of the pipelines.
        assignments: assignment of each model.
        joint: `join_pipelines` of these, where it is at hand.
    """
    whole = simulate(joint or join_pipelines(models), list(itertools.chain(*assignments)))
    if len(models) == 1:
        return JointSimulation(whole=whole, pipelines=(whole,))
    return JointSimulation(
        whole=whole,
        pipelines=tuple(
            _simulate_until(whole.iteration_time_s, model, assignment)
            for model, assignment in zip(models, assignments, strict=True)
        ),
    )


def _simulate_until(end_s: float, model: PipelineModel, assignment: Assignment) -> Simulation:
    own, tail_s = simulate(model, assignment), model.dag.tail_s
    return replace(
        own,
        energy_j=iteration_energy_j(model, assignment, end_s),
        bubble_fraction=1
        - (1 - own.bubble_fraction) * (own.iteration_time_s - tail_s) / (end_s - tail_s),
    )


def time_and_energy(model: PipelineModel, assignment: Sequence[int]) -> tuple[float, float]:
    """Iteration time, s, and energy, J, as `simulate` has them, without the rest of it."""
    busy = _busy(model, assignment)
    iteration_time_s = max(earliest_finish_s(model.dag, busy.duration_s))
    return iteration_time_s, _energy_j(model, busy, iteration_time_s)


def iteration_energy_j(
    model: PipelineModel, assignment: Sequence[int], iteration_time_s: float
) -> float:
    """Energy of one iteration that takes `iteration_time_s`, J (formula above)."""
    busy = _busy(model, assignment, least_period_s=iteration_time_s)
    return _energy_j(model, busy, iteration_time_s)


@dataclass(frozen=True, kw_only=True)
class _Busy:
    """Per node, what `Simulation` has of it."""

    duration_s: list[float]
    energy_j: list[float]
    late_s: list[float]
    in_force: tuple[tuple[tuple[float, int], ...], ...] = ()


def _busy(model: PipelineModel, assignment: Sequence[int], *, least_period_s: float = 0.0) -> _Busy:
    """Return what each node takes.

    Args:
        model: the pipeline.
        assignment: per node, an index into its operating points.
        least_period_s: the next iteration begins no sooner after this iteration's begin, s.
    """
    num = model.dag.num_nodes
    if model.transitions is None:
        chosen = [points[choice] for points, choice in zip(model.points, assignment, strict=True)]
        return _Busy(
            duration_s=[point.time_s for point in chosen],
            energy_j=[point.energy_j for point in chosen],
            late_s=[0.0] * num,
        )
    clocked = model.clocked
    run = LateClockSimulator(model).trace(assignment, least_period_s=least_period_s)
    sums = [[0.0] * num for _ in range(3)]
    for of_nodes, of_instructions in zip(
        sums, (run.duration_s, run.energy_j, run.late_s), strict=True
    ):
        for node, value in zip(clocked.node, of_instructions.tolist(), strict=True):
            of_nodes[node] += value
    duration_s, energy_j, late_s = sums
    return _Busy(
        duration_s=duration_s,
        energy_j=energy_j,
        late_s=late_s,
        in_force=tuple(
            tuple((from_s, clocks_mhz[clock]) for from_s, clock in of_stage)
            for of_stage, clocks_mhz in zip(run.in_force, clocked.clocks_mhz, strict=True)
        ),
    )


def _energy_j(model: PipelineModel, busy: _Busy, iteration_time_s: float) -> float:
    power_w = model.stage_blocking_power_w
    busy_j = 0.0
    for stage, duration_s, energy_j in zip(
        model.dag.stage, busy.duration_s, busy.energy_j, strict=True
    ):
        busy_j += energy_j - power_w[stage] * duration_s
    return busy_j + iteration_time_s * sum(power_w)


def critical_path(
    dag: ArrayDag, durations_s: Sequence[float], finish_s: Sequence[float]
) -> list[int]:
    """Nodes of one longest path in the order of time, walked back from the last finish.

    As EnvPipe does: a node that did not wait follows the one before it on its stage, one that
    waited follows the neighbour whose output it waited for. Of equal ends the lowest stage's.
    """
    node = max(dag.last_of_stages, key=lambda index: (finish_s[index], -dag.stage[index]))
    tolerance_s = RELATIVE_TIME_TOLERANCE * finish_s[node]
    path = [node]
    while True:
        before, source = dag.order_predecessor[node], dag.data_predecessor[node]
        start_s = finish_s[node] - durations_s[node]
        if before != NONE and start_s - finish_s[before] <= tolerance_s:
            node = before
        elif source != NONE:
            node = source
        else:
            return path[::-1]
        path.append(node)
