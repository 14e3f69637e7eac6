"""Making a job's plan for the paces that are in force: its slow ranks, its drifted stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flyball_profiles.stage_profile import InstructionKind
from flyball_server.jobs.control import InForce
from flyball_server.jobs.job_state import JobInput
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
from flyball_server.planning.stragglers.slowed_pipelines import Pace, PacedRequest, make_paced_plan


@dataclass(frozen=True, kw_only=True)
class PacedPlan:
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


def paced_plan(
    services: JobServices,
    job: JobRecord,
    request: PlanRequest,
    in_force: InForce,
    ranks: Sequence[RankRecord],
) -> PacedPlan:
    """The plan for a request, with what is in force of paces.

    What was planned for just that before, in this run of the job, is taken again.

    Args:
        services: the seams; their planner makes a plan without paces.
        job: whose plan it is, as it stands.
        request: of the job.
        in_force: of its control.
        ranks: of the job, as registered so far.

    Raises:
        PlanningError: the planner refused.
        SupersededError, UnknownJobError, PlanningStoppedError: as for `solve`.
    """
    paces = planned_paces(in_force, ranks)
    if is_auto(request.schedule):
        kept = _schedule(services, job.job_id, has_paces=bool(paces))
        request = replace(request, schedule=kept or request.schedule)
    num_pipelines = 1 + max((rank.dp_rank for rank in ranks), default=0)
    paced = PacedRequest(request=request, paces=paces, num_pipelines=num_pipelines)
    own = _digest(job, paced, request.schedule)
    made = _made_before(services, job, own)
    if made is not None:
        return made
    plan = _solved(services, job, paced, is_at_once=in_force.effort is not None)
    return PacedPlan(
        plan=plan,
        digest=_digest(job, paced, plan.schedule),
        has_own_effort=in_force.effort is None,
    )


def _solved(
    services: JobServices, job: JobRecord, paced: PacedRequest, *, is_at_once: bool
) -> FrequencyPlan | DataParallelPlan:
    if not paced.paces:
        return solve(services, job, services.planner, paced.request)
    if not is_at_once:
        return solve(services, job, make_paced_plan, paced)
    with services.store.reading() as reader:
        newest = newest_plan(reader, job.job_id)
    running = None
    if newest is not None and not isinstance(newest.plan, ProbePlan):
        running = running_clocks(newest.plan)
    return solve(services, job, make_plan_at_once, paced, running)


def _digest(job: JobRecord, paced: PacedRequest, schedule: str) -> str:
    effort = Effort(job.in_force.effort)
    own = replace(paced.request, effort=effort, schedule=schedule)
    return request_digest(replace(paced, request=own))


def _made_before(services: JobServices, job: JobRecord, digest: str) -> PacedPlan | None:
    """The plan that was made for the same; whoever puts a profile or target has it made anew."""
    if job.changed_input is not JobInput.CONTROL:
        return None
    with services.store.reading() as reader:
        for made in reader.find_control(job.job_id).made:
            if made.digest != digest:
                continue
            plan = require_plan(reader, job.job_id, made.version).plan
            if not isinstance(plan, ProbePlan):
                return PacedPlan(plan=plan, digest=digest, made_as=made.version)
    return None


def planned_paces(in_force: InForce, ranks: Sequence[RankRecord]) -> tuple[Pace, ...]:
    """Paces as the planner takes them; of ranks that run a stage together the slowest counts."""
    place = {rank.rank: (rank.stage, rank.dp_rank) for rank in ranks}
    slowdowns: dict[tuple[int, int], float] = {}
    for pace in in_force.rank_paces:
        if pace.rank in place and pace.slowdown != 1:
            where = place[pace.rank]
            slowdowns[where] = max(pace.slowdown, slowdowns.get(where, 0.0))
    return (
        *(
            Pace(stage=stage, dp_rank=dp_rank, slowdown=slowdown)
            for (stage, dp_rank), slowdown in sorted(slowdowns.items())
        ),
        *(
            Pace(stage=pace.stage, kind=InstructionKind(pace.kind), slowdown=pace.slowdown)
            for pace in in_force.stage_paces
        ),
    )


def _schedule(services: JobServices, job_id: str, *, has_paces: bool) -> str | None:
    """The order that the job runs, where it is to stay. None: it may be chosen anew.

    What changes while a job runs, a slow GPU that comes or goes or a target by the time of day, is
    no reason to choose anew; a new profile or target is one.
    """
    with services.store.reading() as reader:
        job = require_job(reader, job_id)
        if not has_paces and job.changed_input is not JobInput.CONTROL:
            return None
        newest = newest_plan(reader, job_id)
    if newest is None or isinstance(newest.plan, ProbePlan):
        return None
    return newest.plan.schedule
