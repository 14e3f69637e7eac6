"""Independent answers to hold the planning core against.

Two ways to time a pipeline that do not use the planning core's DAG: they know the rules of
pipeline parallelism only. Every plan of a tiny pipeline. The lower bound by a textbook program.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.optimize import linprog

from flyball_pipeline.instruction import Instruction, InstructionKind
from flyball_pipeline.paths import earliest_finish_s
from flyball_pipeline.schedule import Schedule
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.model.simulator import iteration_energy_j

# What a neighbour's backward is called when its gradient is ready to be sent.
_SENDS_GRADIENT = {InstructionKind.BACKWARD, InstructionKind.BACKWARD_INPUT}

_Message = tuple[str, int, int]
"""Kind of a message, its microbatch, and the virtual stage where it has arrived."""


def event_driven_finish_s(schedule: Schedule, durations_s: Sequence[float]) -> list[float]:
    """Return when each instruction finishes, by a clock that jumps from event to event.

    Args:
        schedule: per stage, what it runs.
        durations_s: of each instruction, stage after stage, s.

    Returns:
        Finish times in the order of `durations_s`, s.
    """
    order = schedule.stages
    first = [sum(len(stage) for stage in order[:index]) for index in range(len(order))]
    finish_s = [-1.0] * len(durations_s)
    arrived: set[_Message] = set()
    position = [0] * len(order)
    busy = [False] * len(order)
    events: list[tuple[float, int]] = []
    now_s = 0.0
    while True:
        for stage, instructions in enumerate(order):
            if busy[stage] or position[stage] == len(instructions):
                continue
            if _has_input(schedule, stage, instructions[position[stage]], arrived):
                heapq.heappush(events, (now_s + durations_s[first[stage] + position[stage]], stage))
                busy[stage] = True
        if not events:
            return finish_s
        now_s, stage = heapq.heappop(events)
        finish_s[first[stage] + position[stage]] = now_s
        _send(schedule, stage, order[stage][position[stage]], arrived)
        position[stage] += 1
        busy[stage] = False


def _has_input(schedule: Schedule, stage: int, unit: Instruction, arrived: set[_Message]) -> bool:
    kind, microbatch, chunk = unit
    virtual = schedule.virtual_stages[stage][chunk]
    last = schedule.num_stages * schedule.num_chunks - 1
    # Of a period, what it needs was made in an earlier one; a whole step needs nothing.
    if schedule.is_periodic or kind == InstructionKind.STEP:
        return True
    if kind == InstructionKind.FORWARD:
        return virtual == 0 or ("activation", microbatch, virtual) in arrived
    if kind == InstructionKind.BACKWARD_WEIGHT:
        return ("own gradient", microbatch, virtual) in arrived
    if kind == InstructionKind.RECOMPUTE or virtual == last:
        return ("activation", microbatch, virtual + 1) in arrived  # its own forward's
    return ("gradient", microbatch, virtual) in arrived


def _send(schedule: Schedule, stage: int, unit: Instruction, arrived: set[_Message]) -> None:
    kind, microbatch, chunk = unit
    virtual = schedule.virtual_stages[stage][chunk]
    if kind == InstructionKind.FORWARD:
        arrived.add(("activation", microbatch, virtual + 1))
    elif kind in _SENDS_GRADIENT:
        arrived.add(("gradient", microbatch, virtual - 1))
        arrived.add(("own gradient", microbatch, virtual))


def every_plan(model: PipelineModel) -> list[tuple[float, float]]:
    """(iteration time in s, energy in J) of every assignment there is."""
    plans: list[tuple[float, float]] = []
    for assignment in itertools.product(*(range(len(points)) for points in model.points)):
        time_s = max(earliest_finish_s(model.dag, model.durations_s(assignment)))
        plans.append((time_s, iteration_energy_j(model, assignment, time_s)))
    return plans


def least_energy_j(plans: Sequence[tuple[float, float]], deadline_s: float) -> float:
    """The least energy among the plans that take at most `deadline_s`, J."""
    return min(energy_j for time_s, energy_j in plans if time_s <= deadline_s)


def plain_program_bound_j(model: PipelineModel, deadline_s: float) -> float:
    """The frontier's lower bound as a textbook linear program, J.

    A start per instruction, a share per operating point, an end of the iteration; one constraint
    per dependency. No hull, no events, no units: every point is a column of its own.
    """
    num_nodes = model.dag.num_nodes
    power_w = model.stage_blocking_power_w
    first_share = [num_nodes + 1]
    for points in model.points:
        first_share.append(first_share[-1] + len(points))
    end = num_nodes
    cost = np.zeros(first_share[-1])
    cost[end] = sum(power_w)
    no_more_than = np.zeros((0, len(cost)))
    limits_s: list[float] = []
    shares_are_1 = np.zeros((num_nodes, len(cost)))
    for node, points in enumerate(model.points):
        shares = slice(first_share[node], first_share[node + 1])
        times_s = np.array([point.time_s for point in points])
        energies_j = np.array([point.energy_j for point in points])
        cost[shares] = energies_j - power_w[model.dag.stage[node]] * times_s
        shares_are_1[node, shares] = 1
        followers = [
            later for later in range(num_nodes) if node in model.dag.predecessors(later)
        ] or [end]
        for later in followers:
            row = np.zeros((1, len(cost)))
            row[0, node], row[0, later], row[0, shares] = 1, -1, times_s
            no_more_than = np.concatenate([no_more_than, row])
            if later == end:
                limits_s.append(-model.dag.tail_s)
            else:
                is_sent = model.dag.data_predecessor[later] == node
                limits_s.append(-model.dag.input_delay_s[later] if is_sent else 0.0)
    bounds = [(0, None)] * num_nodes + [(0, deadline_s)] + [(0, 1)] * (len(cost) - num_nodes - 1)
    solved = linprog(
        cost,
        A_ub=no_more_than,
        b_ub=limits_s,
        A_eq=shares_are_1,
        b_eq=np.ones(num_nodes),
        bounds=bounds,
    )
    assert solved.status == 0, solved.message
    return float(solved.fun)


def planned_schedule(model: PipelineModel) -> Schedule:
    """The schedule whose instructions the model's nodes are: of a period, each kind once."""
    if not model.schedule.is_periodic:
        return model.schedule
    nodes = list(zip(model.dag.stage, model.dag.instruction, strict=True))
    return replace(
        model.schedule,
        num_microbatches=1,
        stages=tuple(
            tuple(instruction for of_stage, instruction in nodes if of_stage == stage)
            for stage in range(model.schedule.num_stages)
        ),
    )
