"""Plan of a job with the slowdown factors of its slow ranks and drifted stages."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from flyball_pipeline.instruction import InstructionKind
from flyball_profiles.stage_profile import StageProfile
from flyball_server.jobs.job_state import JobInput
from flyball_server.jobs.loop_state import JobLoopState, PlanningInputs
from flyball_server.jobs.records import JobRecord, RankRecord
from flyball_server.jobs.registry.inspection import newest_plan, require_job, require_plan
from flyball_server.jobs.replanning.solve import solve
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.planning.errors import TargetUnreachableError
from flyball_server.planning.planner import PlanRequest
from flyball_server.planning.stragglers.slowed_pipelines import SlowedRequest, make_slowed_plan
from flyball_wire.plans.plan import Plan, Slowdown

# Targets that are tried after one that cannot be met; a search may miss the time that it named.
_NUM_NEARER = 2


def request_digest(slowed: SlowedRequest) -> str:
    """Return the digest of all inputs of a plan for these slowdown factors."""
    request = slowed.request
    rest = [
        (field.name, getattr(request, field.name))
        for field in fields(request)
        if field.name != "profile"
    ]
    slowdowns = sorted(map(repr, slowed.slowdowns))
    rest_text = repr((rest, slowdowns, slowed.num_pipelines if slowdowns else 1))
    return hashlib.sha256(rest_text.encode() + _profile_digest(request.profile)).hexdigest()


def _profile_digest(profile: StageProfile) -> bytes:
    """Return a digest of a profile's content."""
    digest = hashlib.sha256(repr(profile.num_ranks_per_stage).encode())
    for key, points in profile.points.items():
        digest.update(repr(key).encode())
        figures = [
            figure
            for point in points
            for figure in (
                *(point.frequency_mhz, point.time_s, point.energy_j, point.rank_waiting_s),
                *(point.time_error_s, point.jitter),
            )
        ]
        digest.update(array("d", figures).tobytes())
        digest.update(repr([point.held_by for point in points]).encode())
    for chunk in profile.chunks:
        digest.update(_profile_digest(chunk))
    return digest.digest()


@dataclass(frozen=True, kw_only=True)
class SlowedPlan:
    """A plan and its origin.

    Attributes:
        digest: digest of the request with the job's own effort.
        made_as: earlier version for the same request; None: newly solved.
        has_own_effort: true if solved with the job's own effort; false: a better one may follow.
    """

    plan: Plan
    digest: str
    made_as: int | None = None
    has_own_effort: bool = True


@dataclass(frozen=True, kw_only=True)
class PlanningSnapshot:
    """Inputs of one planning of a job, read in one transaction.

    Attributes:
        profile: profile of the job; None: not uploaded or measured yet.
        ranks: ranks registered so far.
        running_reserve: reserve of the newest version, a share; None: no such plan.
        planned_target: target that the newest version was planned for; None: no such plan.
    """

    job: JobRecord
    profile: StageProfile | None
    loop_state: JobLoopState
    ranks: tuple[RankRecord, ...]
    running_reserve: float | None
    planned_target: str | None


def read_snapshot(reader: JobReader, job_id: str) -> PlanningSnapshot:
    """Return the current inputs of a job's planning.

    Raises:
        UnknownJobError: the job does not exist.
    """
    job, loop_state = require_job(reader, job_id), reader.find_loop_state(job_id)
    newest = newest_plan(reader, job_id)
    plan = None if newest is None or newest.plan.is_probe else newest.plan
    planned_target = None if plan is None else plan.target
    if loop_state.missed is not None:
        planned_target = loop_state.missed.target
    return PlanningSnapshot(
        job=job,
        profile=reader.find_profile(job_id),
        loop_state=loop_state,
        ranks=reader.list_ranks(job_id),
        running_reserve=None if plan is None else plan.reserve.share,
        planned_target=planned_target,
    )


def slowed_plan(
    services: JobServices, snapshot: PlanningSnapshot, request: PlanRequest
) -> SlowedPlan:
    """Return the plan for a request, with the slowdown factors of the job's planning inputs.

    A plan made for the same inputs earlier in this run of the job is reused. If the newest plan was
    made for the same target and no plan meets it any more, the result is the nearest plan, with
    the target that this one meets.

    Args:
        services: services of the use cases; their planner makes a plan without slowdown factors.
        snapshot: snapshot of the job.
        request: request of the job.

    Raises:
        PlanningError: the planner refused.
        SupersededError, UnknownJobError, PlanningStoppedError: see `solve`.
    """
    job, inputs = snapshot.job, snapshot.loop_state.inputs
    slowdowns = planned_slowdowns(inputs, snapshot.ranks)
    num_pipelines = 1 + max((rank.dp_rank for rank in snapshot.ranks), default=0)
    slowed = SlowedRequest(request=request, slowdowns=slowdowns, num_pipelines=num_pipelines)
    digest = _digest(job, slowed)
    made = _made_before(services, snapshot, digest)
    if made is not None:
        return made
    plan = _nearest(services, snapshot, _with_kept_reserve(snapshot, slowed))
    return SlowedPlan(plan=plan, digest=digest, has_own_effort=inputs.effort is None)


def _nearest(services: JobServices, snapshot: PlanningSnapshot, slowed: SlowedRequest) -> Plan:
    """Return the plan for the target, or for the nearest one if it was met and cannot be."""
    is_kept = slowed.request.options.target == snapshot.planned_target
    for _ in range(_NUM_NEARER):
        try:
            return _solved(services, snapshot.job, slowed)
        except TargetUnreachableError as error:
            if not is_kept or error.nearest_target is None:
                raise
            request = slowed.request.with_options(target=error.nearest_target)
            slowed = replace(slowed, request=request)
    return _solved(services, snapshot.job, slowed)


def _solved(services: JobServices, job: JobRecord, slowed: SlowedRequest) -> Plan:
    if not slowed.slowdowns:
        return solve(services, job, services.planner, slowed.request)
    return solve(services, job, make_slowed_plan, slowed)


def _digest(job: JobRecord, slowed: SlowedRequest) -> str:
    own = slowed.request.with_options(effort=job.spec.effort)
    return request_digest(replace(slowed, request=own))


def _made_before(
    services: JobServices, snapshot: PlanningSnapshot, digest: str
) -> SlowedPlan | None:
    """Return the earlier plan for the same inputs; a new profile or target requires a new plan."""
    if snapshot.job.changed_input != JobInput.CONTROL:
        return None
    version = next((one.version for one in snapshot.loop_state.made if one.digest == digest), None)
    if version is None:
        return None
    with services.store.reading() as reader:  # versions never change
        plan = require_plan(reader, snapshot.job.job_id, version).plan
    if plan.is_probe:
        return None
    return SlowedPlan(plan=plan, digest=digest, made_as=version)


def planned_slowdowns(inputs: PlanningInputs, ranks: Sequence[RankRecord]) -> tuple[Slowdown, ...]:
    """Return the slowdowns for the planner; of ranks that share a stage the slowest counts."""
    place = {rank.rank: (rank.stage, rank.dp_rank) for rank in ranks}
    slowdowns: dict[tuple[int, int], float] = {}
    for slowed in inputs.rank_slowdowns:
        if slowed.rank in place and slowed.slowdown != 1:
            where = place[slowed.rank]
            slowdowns[where] = max(slowed.slowdown, slowdowns.get(where, 0.0))
    return (
        *(
            Slowdown(stage=stage, dp_rank=dp_rank, slowdown=slowdown)
            for (stage, dp_rank), slowdown in sorted(slowdowns.items())
        ),
        *(
            Slowdown(
                stage=slowed.stage, kind=InstructionKind(slowed.kind), slowdown=slowed.slowdown
            )
            for slowed in inputs.stage_slowdowns
        ),
    )


def _with_kept_reserve(snapshot: PlanningSnapshot, slowed: SlowedRequest) -> SlowedRequest:
    """Return the request with the running plan's reserve, where the answer is to be quick.

    Choosing one takes as long as a bound of a plan does.
    """
    options, is_quick = slowed.request.options, snapshot.loop_state.inputs.effort is not None
    if options.reserve is not None or not is_quick or snapshot.running_reserve is None:
        return slowed
    return replace(slowed, request=slowed.request.with_options(reserve=snapshot.running_reserve))
