"""The part of a plan version that is one rank's: its instructions, their clocks and times."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flyball_profiles.stage_profile import InstructionKind, OperatingPoint, StageProfile
from flyball_server.jobs.control import InForce
from flyball_server.jobs.records import AnyPlan, PlanRecord, RankRecord
from flyball_server.planning.documents.planned_instructions import PlannedInstruction
from flyball_server.planning.plan import DataParallelPlan
from flyball_server.planning.probe_plan import ProbePlan


def rank_instructions(plan: AnyPlan, rank: RankRecord) -> tuple[PlannedInstruction, ...]:
    """What the rank runs, in the order of execution; of its own pipeline where each has one.

    Of a probe plan each instruction has the highest clock that it has in the cycle.
    """
    if isinstance(plan, ProbePlan):
        highest_mhz = map(max, zip(*(row[rank.stage] for row in plan.cycle_mhz), strict=True))
        return tuple(
            PlannedInstruction(kind=kind, microbatch=microbatch, frequency_mhz=mhz, chunk=chunk)
            for (kind, microbatch, chunk), mhz in zip(
                plan.stages[rank.stage], highest_mhz, strict=True
            )
        )
    if not isinstance(plan, DataParallelPlan):
        return plan.stages[rank.stage]
    for pipeline in plan.pipelines:
        if rank.dp_rank in (pipeline.dp_ranks or (pipeline.dp_rank,)):
            return pipeline.stages[rank.stage]
    # A rank that came after the plan was made: what the first pipeline does is safe for it too.
    return plan.pipelines[0].stages[rank.stage]


def rank_cycle_mhz(
    record: PlanRecord,
    stage: int,
    instructions: Sequence[PlannedInstruction],
    profile: StageProfile | None,
) -> tuple[tuple[int, ...], ...] | None:
    """Per step of the version's cycle the clock of each instruction; None: there is no cycle."""
    if isinstance(record.plan, ProbePlan):
        return tuple(row[stage] for row in record.plan.cycle_mhz)
    if not record.baseline_cycle or profile is None:
        return None
    planned_mhz = tuple(instruction.frequency_mhz for instruction in instructions)
    highest_mhz = tuple(
        points[0].frequency_mhz if points else planned
        for points, planned in zip(
            (_points(profile, stage, instruction) for instruction in instructions),
            planned_mhz,
            strict=True,
        )
    )
    return tuple(highest_mhz if is_base else planned_mhz for is_base in record.baseline_cycle)


def rank_counter_reads(plan: AnyPlan, stage: int) -> tuple[int, ...] | None:
    """After how many of its instructions a rank's counter is read; None: nowhere."""
    positions = plan.reading_positions(stage) if isinstance(plan, ProbePlan) else ()
    return positions or None


def intended_times_s(
    rank: RankRecord,
    instructions: Sequence[PlannedInstruction],
    profile: StageProfile | None,
    planned_for: InForce,
) -> tuple[float, ...] | None:
    """How long each instruction is meant to take on this rank, s; None where it is not known.

    That is the profile's time at its clock, times the slowdown that the rank is planned with.
    """
    if profile is None:
        return None
    slowdown = math.prod(pace.slowdown for pace in planned_for.rank_paces if pace.rank == rank.rank)
    drifts = {
        pace.kind: pace.slowdown for pace in planned_for.stage_paces if pace.stage == rank.stage
    }
    # Instructions are many, kinds and clocks few.
    alikes = [(kind, chunk, clock_mhz) for kind, _microbatch, clock_mhz, chunk in instructions]
    of_alike: dict[tuple[InstructionKind, int, int], float] = {}
    for alike, instruction in dict(zip(alikes, instructions, strict=True)).items():
        points = _points(profile, rank.stage, instruction)
        time_s = _time_s(points, instruction.frequency_mhz)
        if time_s is None:
            return None
        of_alike[alike] = time_s * slowdown * drifts.get(str(instruction.kind), 1.0)
    return tuple(map(of_alike.__getitem__, alikes))


def _points(
    profile: StageProfile, stage: int, instruction: PlannedInstruction
) -> tuple[OperatingPoint, ...]:
    chunks = profile.chunks or (profile,)
    of_chunk = chunks[instruction.chunk] if instruction.chunk < len(chunks) else profile
    return of_chunk.points.get((stage, InstructionKind(instruction.kind)), ())


def _time_s(points: Sequence[OperatingPoint], frequency_mhz: int) -> float | None:
    for point in points:
        if point.frequency_mhz == frequency_mhz:
            return point.time_s
    return None
