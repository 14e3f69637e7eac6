"""Making a job's plan for the paces that are in force: its slow ranks, its drifted stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flyball_profiles.stage_profile import InstructionKind
from flyball_server.jobs.control import InForce
from flyball_server.jobs.inspection import newest_plan, require_job
from flyball_server.jobs.job_state import JobInput
from flyball_server.jobs.records import JobRecord, RankRecord
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.solve import solve
from flyball_server.planning.paced_pipelines import Pace, PacedRequest, make_paced_plan
from flyball_server.planning.plan import DataParallelPlan, FrequencyPlan
from flyball_server.planning.planner import PlanRequest
from flyball_server.planning.probe_plan import ProbePlan
from flyball_server.planning.schedule_choice import is_auto


def paced_plan(
    services: JobServices,
    job: JobRecord,
    request: PlanRequest,
    in_force: InForce,
    ranks: Sequence[RankRecord],
) -> FrequencyPlan | DataParallelPlan:
    """The plan for a request, with what is in force of paces.

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
    if not paces:
        return solve(services, job, services.planner, request)
    num_pipelines = 1 + max((rank.dp_rank for rank in ranks), default=0)
    paced = PacedRequest(request=request, paces=paces, num_pipelines=num_pipelines)
    return solve(services, job, make_paced_plan, paced)


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
