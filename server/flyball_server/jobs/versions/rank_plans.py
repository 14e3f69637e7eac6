"""Ranks' parts of plans: requested by thousands at once, so a version is read and split once.

A version never changes except for its first step; the caches are bounded and may be dropped at
any time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from flyball_pipeline.errors import PipelineError
from flyball_pipeline.instruction import InstructionKind
from flyball_pipeline.retiming import StepReserve
from flyball_pipeline.step_curves import ClockPoint
from flyball_profiles.stage_profile import OperatingPoint, StageProfile
from flyball_server.jobs.conditions.changes import keeps_plan
from flyball_server.jobs.errors import (
    InvalidFieldError,
    JobsError,
    OtherStartError,
    PlannerFaultError,
    UnknownJobError,
    UnknownRankError,
)
from flyball_server.jobs.measurements.announced_work import (
    change_delays,
    coefficients_of,
    deadline_ratio,
    known_lengths,
    no_step_plans,
)
from flyball_server.jobs.measurements.timed_steps import is_timed, num_timed_steps
from flyball_server.jobs.planning_inputs import PlanningInputs, StepPower, WorkModel
from flyball_server.jobs.records import JobRecord, PlanRecord, RankRecord, identity_of
from flyball_server.jobs.registry.inspection import newest_version
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.kit.lru import Lru
from flyball_server.planning.documents.predicted_timeline import planned_models
from flyball_wire.messages import PlanVersion
from flyball_wire.plans.plan import PipelinePlan, Plan, PlannedInstruction
from flyball_wire.plans.rank_pipeline import packed_pipeline
from flyball_wire.plans.rank_plan import (
    MAX_INSTRUCTIONS,
    MAX_PART_BYTES,
    RankPipeline,
    RankPlan,
    most_bytes,
    rank_plan,
)

# Of the largest part, what pipelines with everything else may take.
_SHARE_OF_PART = 0.9


def rank_instructions(plan: Plan, rank: RankRecord) -> tuple[PlannedInstruction, ...]:
    """Return the rank's instructions in order of execution; of its own pipeline if they differ."""
    return plan.pipeline_of(rank.dp_rank).stages[rank.stage]


def rank_requests(plan: Plan, rank: RankRecord) -> tuple[tuple[int, int, float], ...]:
    """Return the early requests of the rank's clocks: `[position, after_position, offset_s]`."""
    return tuple(
        (position, after_position, offset_s)
        for stage, position, after_position, offset_s in plan.pipeline_of(rank.dp_rank).requests
        if stage == rank.stage
    )


def rank_cycle_mhz(
    record: PlanRecord,
    stage: int,
    instructions: Sequence[PlannedInstruction],
    profile: StageProfile | None,
) -> tuple[tuple[int, ...], ...]:
    """Return each instruction's clock per step of the version's cycle; empty: there is no cycle."""
    if record.plan.cycle_mhz:
        return tuple(row[stage] for row in record.plan.cycle_mhz)
    if not record.baseline_cycle or profile is None:
        return ()
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


def pipeline_part(
    plan: Plan,
    rank: RankRecord,
    profile: StageProfile,
    work: WorkModel,
    step_power: StepPower | None = None,
) -> RankPipeline | None:
    """Return a rank's pipeline, from which the clocks of single steps are chosen.

    `step_power` corrects the deadlines of steps; None: no correction was measured.

    Returns:
        None where its steps get no plans of their own: it never flushes, the profile is not the
        plan's, or ranks do not take a part as large.
    """
    pipeline = plan.pipeline_of(rank.dp_rank)
    part = _packed(plan, pipeline, profile, work, step_power)
    if part is None:
        return None
    num_bytes = part.most_bytes + _most_bytes(plan, pipeline, rank.stage, 0)
    return part if num_bytes <= MAX_PART_BYTES else None


def large_parts(plan: Plan, profile: StageProfile, work: WorkModel) -> str | None:
    """Return that ranks do not take pipelines as large, in one line; None: they do.

    Later plans of the job may have more requests of clocks; a tenth is left for them.
    """
    for pipeline in plan.pipelines:
        part = _packed(plan, pipeline, profile, work)
        if part is None:
            continue
        most_of_stages = max(
            _most_bytes(plan, pipeline, stage, 0) for stage in range(len(pipeline.stages))
        )
        num_bytes = part.most_bytes + most_of_stages
        if num_bytes > _SHARE_OF_PART * MAX_PART_BYTES:
            return (
                f"a rank's part with its pipeline takes up to {num_bytes} bytes, and at most"
                f" {int(_SHARE_OF_PART * MAX_PART_BYTES)} are sent; fewer microbatches or chunks"
                " need less"
            )
    return None


def _packed(
    plan: Plan,
    pipeline: PipelinePlan,
    profile: StageProfile,
    work: WorkModel,
    step_power: StepPower | None = None,
) -> RankPipeline | None:
    if plan.is_probe or no_step_plans(plan) is not None:
        return None
    try:
        model = planned_models(profile, plan)[plan.pipelines.index(pipeline)][0]
    except PipelineError:
        return None
    places, place_of_node = model.dag.alike
    coefficients = coefficients_of(work)
    points_of = dict(zip(place_of_node, model.points, strict=True))
    return packed_pipeline(
        model.schedule,
        pipeline.clocks_mhz,
        {
            place: [
                ClockPoint(point.frequency_mhz, point.time_s, point.energy_j)
                for point in points_of[number]
            ]
            for number, place in enumerate(places)
        },
        waiting_power_w=model.stage_blocking_power_w,
        tail_s=plan.tail_s,
        transfer_s=plan.transfer_s,
        coefficients=coefficients if coefficients.keys() >= set(places) else None,
        lengths_range=known_lengths(work),
        deadline_ratio=deadline_ratio(plan, step_power),
        reserve=StepReserve(*work.reserve),
        delays=change_delays(plan, work),
    )


def check_parts_fit(plan: Plan, *, cycle_length: int = 0) -> None:
    """Check that ranks can take their parts of a plan.

    `cycle_length` is the number of steps of a comparison's cycle; 0: it is not compared.

    Raises:
        InvalidFieldError: A part is too large.
    """
    for pipeline in plan.pipelines:
        for stage, instructions in enumerate(pipeline.stages):
            num = len(instructions)
            num_bytes = _most_bytes(plan, pipeline, stage, cycle_length)
            if num > MAX_INSTRUCTIONS or num_bytes > MAX_PART_BYTES:
                raise InvalidFieldError(
                    "num_microbatches",
                    f"the plan of stage {stage} has {num} instructions and takes up to {num_bytes}"
                    f" bytes; ranks take {MAX_INSTRUCTIONS} and {MAX_PART_BYTES}",
                )


def _most_bytes(plan: Plan, pipeline: PipelinePlan, stage: int, cycle_length: int) -> int:
    rows = {row[stage] for row in plan.cycle_mhz}
    alike = {(kind, clock_mhz, chunk) for kind, _, clock_mhz, chunk in pipeline.stages[stage]}
    return most_bytes(
        len(pipeline.stages[stage]),
        # A comparison adds the highest clock of each kind.
        num_clocks=len(set[int]().union(*rows)) if rows else 2 * len(alike),
        num_requests=sum(1 for of_stage, *_ in pipeline.requests if of_stage == stage),
        num_rows=len(rows) or (2 if cycle_length else 0),
        cycle_length=len(plan.cycle_mhz) or cycle_length,
    )


def _at_highest(
    stage: int, instructions: Sequence[PlannedInstruction], profile: StageProfile
) -> tuple[PlannedInstruction, ...]:
    """Return the instructions at their highest clocks."""
    return tuple(
        instruction._replace(frequency_mhz=points[0].frequency_mhz) if points else instruction
        for instruction in instructions
        for points in [_points(profile, stage, instruction)]
    )


def _points(
    profile: StageProfile, stage: int, instruction: PlannedInstruction
) -> tuple[OperatingPoint, ...]:
    chunks = profile.chunks or (profile,)
    of_chunk = chunks[instruction.chunk] if instruction.chunk < len(chunks) else profile
    return of_chunk.points.get((stage, InstructionKind(instruction.kind)), ())


_LOG = logging.getLogger(__name__)

# All ranks of a job request its newest version only. Parsed, one of 64 stages and 256
# microbatches takes some 10 MB.
KEPT_JOBS = 32


@dataclass(frozen=True, kw_only=True)
class PlanQuestion:
    """Request of a rank that holds a version (0: none) for a newer one.

    Attributes:
        plan_id: identity of the plan that it holds; None: not reported. If the newest version is
            another plan, it is news whatever its number: the store may have been restored to an
            older state.
        start_id: start of the job that the rank belongs to; None: not reported.
    """

    rank: int
    after_version: int
    plan_id: str | None = None
    start_id: str | None = None


class RankPlans:
    """Cache of each job's newest version, read and rendered once for all ranks.

    Thread-safe.

    Args:
        render: function that serialises a part; its plan's `first_step` is current.
    """

    def __init__(self, render: Callable[[RankPlan], bytes]) -> None:
        self._render = render
        self._lock = threading.Lock()
        self._versions = Lru[str, _Version](KEPT_JOBS)

    def answer(
        self, services: JobServices, job_id: str, questions: Sequence[PlanQuestion]
    ) -> tuple[bytes | JobsError | None, ...]:
        """Answer requests for plans of one job in one reading transaction.

        Returns:
            For each: the rank's part of the newest version, rendered; None if that is not newer; or
            the error.
        """
        with services.store.reading() as reader:
            job = reader.find_job(job_id)
            if job is None:
                return tuple(UnknownJobError(job_id=job_id) for _ in questions)
            versions = reader.list_versions(job_id)
            newest = newest_version(versions) or 0
            called = {asked.rank for asked in questions}
            ranks = {rank.rank: rank for rank in reader.find_ranks(job_id, called)}
            newest_id = None
            if newest and any(asked.plan_id is not None for asked in questions):
                newest_id = identity_of(reader.list_plan_times(job_id)[newest])
            is_news = [_is_news(asked, newest, newest_id) for asked in questions]
            version = self._version(reader, job, versions[-1]) if any(is_news) else None
        return tuple(
            UnknownRankError(job_id=job_id, rank=asked.rank)
            if asked.rank not in ranks
            else OtherStartError(job_id=job_id)
            if asked.start_id not in (None, job.start_id)
            else self._part(job_id, version, ranks[asked.rank])
            if has_news and version is not None
            else None
            for asked, has_news in zip(questions, is_news, strict=True)
        )

    def _part(self, job_id: str, version: _Version, rank: RankRecord) -> bytes | JobsError:
        try:
            with self._lock:
                return version.rendered(rank, self._render)
        except Exception as error:
            _LOG.exception("job %s: the plan of rank %d failed", job_id, rank.rank)
            fault = PlannerFaultError(job_id=job_id)
            fault.__cause__ = error
            return fault

    def _version(self, reader: JobReader, job: JobRecord, newest: PlanVersion) -> _Version:
        planned_inputs = reader.find_loop_state(job.job_id).planned_inputs
        identity = (job.created_at, newest, job.inputs_revision, planned_inputs)
        known = self._versions.get(job.job_id)
        if known is not None and known.identity == identity:
            return known
        version = _Version(
            identity=identity,
            plan=reader.require_plan(job.job_id, newest.version),
            profile=reader.find_profile(job.job_id),
            planned_inputs=planned_inputs,
        )
        self._versions.put(job.job_id, version)
        return version


def _is_news(asked: PlanQuestion, newest: int, newest_id: str | None) -> bool:
    if asked.plan_id is not None and newest_id is not None:
        return asked.plan_id != newest_id
    return asked.after_version < newest


def part_of(
    plan: PlanRecord,
    rank: RankRecord,
    profile: StageProfile | None,
    planned_inputs: PlanningInputs,
) -> RankPlan:
    """Return this rank's part of a version.

    Args:
        plan: the version.
        rank: the rank.
        profile: the job's profile; None: none is known.
        planned_inputs: inputs that the version was planned with, announced work among them.
    """
    work = planned_inputs.step_work
    instructions = rank_instructions(plan.plan, rank)
    pipeline = None
    requests = rank_requests(plan.plan, rank)
    if work is not None and profile is not None:
        pipeline = pipeline_part(plan.plan, rank, profile, work, planned_inputs.step_power)
        if pipeline is None and not plan.plan.is_probe and not keeps_plan(plan.plan.target):
            # Steps differ, and without plans of their own the plan would make them longer.
            instructions, requests = _at_highest(rank.stage, instructions, profile), ()
    return rank_plan(
        [(str(kind), number, clock_mhz, chunk) for kind, number, clock_mhz, chunk in instructions],
        cycle_mhz=rank_cycle_mhz(plan, rank.stage, instructions, profile),
        job_id=plan.job_id,
        version=plan.version,
        stage=rank.stage,
        first_step=plan.first_step,
        predicted_iteration_time_s=plan.plan.iteration_time_s,
        measurement_detail=plan.measurement_detail,
        num_timed_steps=num_timed_steps(plan.plan, work) if is_timed(plan.plan, rank) else 0,
        plan_id=plan.plan_id,
        requests=requests,
        pipeline=pipeline,
        baseline_cycle=() if pipeline is None else plan.baseline_cycle,
    )


@dataclass(kw_only=True)
class _Version:
    """A job's newest version with its parsed inputs, and the parts rendered so far.

    Attributes:
        identity: key of all inputs of the parts.
        parts: rendered parts, by the properties that their ranks share.
    """

    identity: tuple[datetime, PlanVersion, int, PlanningInputs]
    plan: PlanRecord
    profile: StageProfile | None
    planned_inputs: PlanningInputs
    parts: dict[tuple[int, int | None, bool], bytes] = field(
        default_factory=dict[tuple[int, int | None, bool], bytes]
    )

    def rendered(self, rank: RankRecord, render: Callable[[RankPlan], bytes]) -> bytes:
        """Return the part of this rank."""
        key = (
            rank.stage,
            rank.dp_rank if self.plan.plan.is_separate else None,
            is_timed(self.plan.plan, rank),
        )
        if key not in self.parts:
            self.parts[key] = render(part_of(self.plan, rank, self.profile, self.planned_inputs))
        return self.parts[key]
