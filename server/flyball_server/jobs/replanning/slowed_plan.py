"""Plan of a job for the slowdown factors in force: of its slow ranks and its drifted stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flyball_profiles.stage_profile import InstructionKind
from flyball_server.jobs.job_state import JobInput
from flyball_server.jobs.loop_state import PlanningInputs
from flyball_server.jobs.records import JobRecord, RankRecord
from flyball_server.jobs.registry.inspection import newest_plan, require_job, require_plan
from flyball_server.jobs.replanning.solve import solve
from flyball_server.jobs.services import JobServices
from flyball_server.planning.plan import DataParallelPlan, FrequencyPlan
from flyball_server.planning.planner import PlanRequest
from flyball_server.planning.probe_plan import ProbePlan
from flyball_server.planning.request_digest import request_digest
from flyball_server.planning.request_options import Effort
from flyball_server.planning.schedule_choice import is_auto
from flyball_server.planning.stragglers.first_plans import make_plan_at_once
from flyball_server.planning.stragglers.running_clocks import running_clocks
from flyball_server.planning.stragglers.slowed_pipelines import (
    Slowdown,
    SlowedRequest,
    make_slowed_plan,
)


@dataclass(frozen=True, kw_only=True)
class SlowedPlan:
    """A plan, and how it was come by.

    Attributes:
        digest: of the request with the job's own effort and the order that was planned.
        made_as: the version that was made for the same before; None: it was made now.
        has_own_effort: whether the job's own effort has made it; else a better one may follow.
    """

    plan: FrequencyPlan | DataParallelPlan
    digest: str
    made_as: int | None = None
    has_own_effort: bool = True


def slowed_plan(
    services: JobServices,
    job: JobRecord,
    request: PlanRequest,
    in_force: PlanningInputs,
    ranks: Sequence[RankRecord],
) -> SlowedPlan:
    """The plan for a request, with what is in force of slowdown factors.

    What was planned for just that before, in this run of the job, is taken again.

    Args:
        services: the seams; their planner makes a plan without slowdown factors.
        job: whose plan it is, as it stands.
        request: of the job.
        in_force: of its control.
        ranks: of the job, as registered so far.

    Raises:
        PlanningError: the planner refused.
        SupersededError, UnknownJobError, PlanningStoppedError: as for `solve`.
    """
    slowdowns = planned_slowdowns(in_force, ranks)
    if is_auto(request.schedule):
        kept = _schedule(services, job.job_id, has_slowdowns=bool(slowdowns))
        request = replace(request, schedule=kept or request.schedule)
    num_pipelines = 1 + max((rank.dp_rank for rank in ranks), default=0)
    slowed = SlowedRequest(request=request, slowdowns=slowdowns, num_pipelines=num_pipelines)
    own = _digest(job, slowed, request.schedule)
    made = _made_before(services, job, own)
    if made is not None:
        return made
    plan = _solved(services, job, slowed, is_at_once=in_force.effort is not None)
    return SlowedPlan(
        plan=plan,
        digest=_digest(job, slowed, plan.schedule),
        has_own_effort=in_force.effort is None,
    )


def _solved(
    services: JobServices, job: JobRecord, slowed: SlowedRequest, *, is_at_once: bool
) -> FrequencyPlan | DataParallelPlan:
    if not slowed.slowdowns:
        return solve(services, job, services.planner, slowed.request)
    if not is_at_once:
        return solve(services, job, make_slowed_plan, slowed)
    with services.store.reading() as reader:
        newest = newest_plan(reader, job.job_id)
    running = None
    if newest is not None and not isinstance(newest.plan, ProbePlan):
        running = running_clocks(newest.plan)
    return solve(services, job, make_plan_at_once, slowed, running)


def _digest(job: JobRecord, slowed: SlowedRequest, schedule: str) -> str:
    effort = Effort(job.in_force.effort)
    own = replace(slowed.request, effort=effort, schedule=schedule)
    return request_digest(replace(slowed, request=own))


def _made_before(services: JobServices, job: JobRecord, digest: str) -> SlowedPlan | None:
    """The plan that was made for the same; whoever puts a profile or target has it made anew."""
    if job.changed_input is not JobInput.CONTROL:
        return None
    with services.store.reading() as reader:
        for made in reader.find_loop_state(job.job_id).made:
            if made.digest != digest:
                continue
            plan = require_plan(reader, job.job_id, made.version).plan
            if not isinstance(plan, ProbePlan):
                return SlowedPlan(plan=plan, digest=digest, made_as=made.version)
    return None


def planned_slowdowns(
    in_force: PlanningInputs, ranks: Sequence[RankRecord]
) -> tuple[Slowdown, ...]:
    """Paces as the planner takes them; of ranks that run a stage together the slowest counts."""
    place = {rank.rank: (rank.stage, rank.dp_rank) for rank in ranks}
    slowdowns: dict[tuple[int, int], float] = {}
    for slowed in in_force.rank_slowdowns:
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
            for slowed in in_force.stage_slowdowns
        ),
    )


def _schedule(services: JobServices, job_id: str, *, has_slowdowns: bool) -> str | None:
    """The order that the job runs, where it is to stay. None: it may be chosen anew.

    What changes while a job runs, a slow GPU that comes or goes or a target by the time of day, is
    no reason to choose anew; a new profile or target is one.
    """
    with services.store.reading() as reader:
        job = require_job(reader, job_id)
        if not has_slowdowns and job.changed_input is not JobInput.CONTROL:
            return None
        newest = newest_plan(reader, job_id)
    if newest is None or isinstance(newest.plan, ProbePlan):
        return None
    return newest.plan.schedule
