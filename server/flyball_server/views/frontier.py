"""Use case: the time-energy frontier of a job, from which an operator chooses a target."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from flyball_pipeline.errors import PipelineError
from flyball_server.jobs.errors import InvalidFieldError, MissingProfileError
from flyball_server.jobs.measurements.step_reading import gpus_over_profile
from flyball_server.jobs.reconcile.solve import SupersededError, solve
from flyball_server.jobs.records import JobRecord
from flyball_server.jobs.services import JobServices, frontier_lock
from flyball_server.jobs.versions.planning import read_planning
from flyball_server.jobs.wanted.request import plan_to_solve
from flyball_server.jobs.wanted.wanted import planning_inputs, with_slowdowns
from flyball_server.kit.lru import Lru
from flyball_server.planning.stragglers.slowed_pipelines import SlowedRequest, make_slowed_frontier
from flyball_wire.closed_loop import ComparedPlan
from flyball_wire.plan_options import DEFAULT_TARGET, Policy
from flyball_wire.read_models import Frontier, JobFrontier

MAX_REMEMBERED = 64


class FrontierMemory:
    """Cache of the newest frontier of each job; the jobs requested longest ago are dropped."""

    def __init__(self) -> None:
        self._solved = Lru[str, tuple[object, JobFrontier]](MAX_REMEMBERED)

    def find(self, request: SlowedRequest, num_points: int, job: JobRecord) -> JobFrontier | None:
        """Return the frontier of exactly this request; None: not in memory."""
        known = self._solved.get(job.job_id)
        inputs = (request, num_points, job.spec.num_expected_ranks)
        return known[1] if known is not None and known[0] == inputs else None

    def keep(
        self, request: SlowedRequest, num_points: int, job: JobRecord, frontier: JobFrontier
    ) -> None:
        """Store the job's newest frontier."""
        inputs = (request, num_points, job.spec.num_expected_ranks)
        self._solved.put(job.job_id, (inputs, frontier))


def known_frontier(
    services: JobServices, memory: FrontierMemory, job_id: str, num_points: int
) -> JobFrontier | None:
    """Return the job's frontier if it is cached for the current inputs.

    Raises:
        UnknownJobError, MissingProfileError, InvalidFieldError: see `get_frontier`.
    """
    job, request = _request(services, job_id)
    return memory.find(request, num_points, job)


def get_frontier(
    services: JobServices, memory: FrontierMemory, job_id: str, num_points: int
) -> JobFrontier:
    """Return the job's frontier for its current profile, stragglers and drift.

    Raises:
        UnknownJobError: the job does not exist.
        MissingProfileError: the job has no profile yet.
        InvalidFieldError: the job cannot be planned; `field` names the reason.
        PlanningStoppedError: the planner shuts down.
    """
    with services.store.lock(frontier_lock(job_id)):
        while True:
            job, request = _request(services, job_id)
            known = memory.find(request, num_points, job)
            if known is not None:
                return known
            try:
                return _solved(services, memory, job, request, num_points)
            except SupersededError:
                continue


def _request(services: JobServices, job_id: str) -> tuple[JobRecord, SlowedRequest]:
    """Return the current job and the request of its frontier."""
    with services.store.reading() as reader:
        job = reader.require_job(job_id)
        profile, planning = reader.find_profile(job_id), read_planning(reader, job)
    if profile is None or planning.profile is None:
        raise MissingProfileError(job_id=job_id)
    # The frontier covers all targets, for one policy and the job's own effort, whatever the current
    # ones are.
    findings = planning.findings
    inputs = planning_inputs(findings, services.now())
    plan = plan_to_solve(job.spec, planning.profile, services.gpu_window, findings, inputs)
    plan = with_slowdowns(plan, inputs, planning.ranks)
    options = replace(
        plan.options, policy=Policy.FRONTIER, target=DEFAULT_TARGET, effort=job.spec.effort
    )
    return job, replace(plan, options=options).of_profile(profile)


def _solved(
    services: JobServices,
    memory: FrontierMemory,
    job: JobRecord,
    request: SlowedRequest,
    num_points: int,
) -> JobFrontier:
    started_s = time.perf_counter()
    try:
        curve = solve(services, job, make_slowed_frontier, request, num_points)
    except PipelineError as error:
        raise InvalidFieldError(error.field, error.message) from error
    solve_s = time.perf_counter() - started_s
    scale = gpus_over_profile(request.request.profile, job.spec.num_expected_ranks)
    curve = _scaled(curve, scale)
    solved = JobFrontier(**vars(curve), job_id=job.job_id, solve_s=solve_s)
    memory.keep(request, num_points, job, solved)
    return solved


def _scaled(curve: Frontier, scale: float) -> Frontier:
    """Return the frontier with its energies multiplied."""

    def compared(plans: Sequence[ComparedPlan]) -> tuple[ComparedPlan, ...]:
        return tuple(replace(plan, energy_j=scale * plan.energy_j) for plan in plans)

    points = (
        replace(point, energy_j=scale * point.energy_j, lower_bound_j=scale * point.lower_bound_j)
        for point in curve.points
    )
    return replace(
        curve,
        points=tuple(points),
        baseline=compared([curve.baseline])[0],
        envpipe=compared(curve.envpipe),
        constant=compared(curve.constant),
        global_clock=compared(curve.global_clock),
    )
