"""Runs of one class of instructions within a step, between two readings of the energy counter.

Whole steps do not tell how energy is divided between forwards and backwards; a run of one of
them does. A reading is late by up to the counter's period, so both ends of a run are read when
instructions of the class have run for at least that long: then both are late by the same energy
on average, and it cancels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from flyball_server.planning.probe_plan import CounterRun, ProbePlan
from flyball_server.planning.schedules._base import Instruction, Schedule
from flyball_server.profiling.findings import StageFindings
from flyball_server.profiling.observations import InstructionClass, RunReading

# NVML's energy counter moves about so often, s.
COUNTER_PERIOD_S = 0.1
# A shorter run tells less than the readings' lateness hides.
_SHORTEST_RUN = 2


def counter_runs(
    schedule: Schedule, findings: Sequence[StageFindings]
) -> tuple[tuple[CounterRun, ...], ...]:
    """Per stage, the longest run of each class that is long enough to be read."""
    return tuple(_runs_of(schedule.stages[of_stage.stage], of_stage) for of_stage in findings)


def _runs_of(
    instructions: Sequence[Instruction], findings: StageFindings
) -> tuple[CounterRun, ...]:
    longest: dict[InstructionClass, CounterRun] = {}
    begin = 0
    for position in range(1, len(instructions) + 1):
        before = _class(instructions[begin])
        if position < len(instructions) and _class(instructions[position]) == before:
            continue
        index = findings.points.classes.index(before)
        time_s = float(findings.times.mean_s[findings.points.number(index, 0)])
        first = begin + math.ceil(COUNTER_PERIOD_S / time_s)
        known = longest.get(before)
        if position - first >= max(_SHORTEST_RUN, known.last - known.first + 1 if known else 0):
            longest[before] = CounterRun(first=first, last=position)
        begin = position
    return tuple(sorted(longest.values()))


def _class(instruction: Instruction) -> InstructionClass:
    return InstructionClass(instruction.kind, instruction.chunk)


def run_readings(
    plan: ProbePlan,
    stage: int,
    clocks_mhz: Sequence[int],
    readings: Sequence[tuple[float, float]],
) -> tuple[RunReading, ...]:
    """Return what a stage's readings within a step say of runs at one clock.

    Args:
        plan: that the step ran.
        stage: whose readings they are.
        clocks_mhz: that the stage's instructions ran at in this step.
        readings: at the positions of `plan.reading_positions(stage)`, each the time (s) and the
            energy (J) since the step began.
    """
    at = dict(zip(plan.reading_positions(stage), readings, strict=True))
    instructions = plan.stages[stage]
    found: list[RunReading] = []
    for first, last in plan.counter_runs[stage] if plan.counter_runs else ():
        of_class = _class(instructions[last - 1])
        begin = first
        while begin and _class(instructions[begin - 1]) == of_class:
            begin -= 1
        if len(set(clocks_mhz[begin:last])) == 1:
            of_run = [at[position] for position in range(first, last + 1)]
            found.append(run_reading(of_class, clocks_mhz[begin], of_run))
    return tuple(found)


def run_reading(
    of_class: InstructionClass, sm_clock_mhz: int, readings: Sequence[tuple[float, float]]
) -> RunReading:
    """Readings just after consecutive instructions, as their least-squares line.

    Args:
        of_class: of the instructions.
        sm_clock_mhz: that all of them ran at.
        readings: time (s) and energy (J), at least two.
    """
    middle = (len(readings) - 1) / 2
    weight = math.fsum((index - middle) ** 2 for index in range(len(readings)))

    def slope(which: int) -> float:
        return (
            math.fsum((index - middle) * each[which] for index, each in enumerate(readings))
            / weight
        )

    # The line through two readings that are c apart has an error of sqrt(2) / c times theirs,
    # this one of 1 / sqrt(weight).
    count = math.sqrt(2 * weight)
    return RunReading(
        kind=of_class.kind,
        chunk=of_class.chunk,
        sm_clock_mhz=sm_clock_mhz,
        count=count,
        time_s=count * slope(0),
        energy_j=count * slope(1),
    )
