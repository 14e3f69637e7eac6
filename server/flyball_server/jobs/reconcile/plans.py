"""Reconciler of plans: a job's newest version becomes what it should run."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from flyball_pipeline.errors import PipelineError
from flyball_server.jobs.errors import InvalidFieldError, UnknownJobError
from flyball_server.jobs.job_state import OVER
from flyball_server.jobs.loop_state import Attempt
from flyball_server.jobs.reconcile.slots import PLENTY, SLOT_RETRY_S, PlanningSlots
from flyball_server.jobs.reconcile.solve import OBSOLETE, PLANNING_FIELD, SupersededError, solve
from flyball_server.jobs.records import JobRecord, PlanRecord
from flyball_server.jobs.registry.inspection import newest_plan, require_job, require_plan
from flyball_server.jobs.services import JobServices, Solve
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.jobs.store.sql.job_writer import JobWriter
from flyball_server.jobs.versions.plan_versions import add_version
from flyball_server.jobs.versions.planning import PlanningSnapshot, read_planning
from flyball_server.jobs.versions.rank_plans import check_parts_fit
from flyball_server.jobs.wanted.request import PlanToSolve
from flyball_server.jobs.wanted.wanted import Wanted
from flyball_server.planning.errors import TargetUnreachableError
from flyball_server.planning.stragglers.slowed_pipelines import SlowedRequest, make_slowed_plan
from flyball_wire.closed_loop import MissedTarget
from flyball_wire.plan_options import Effort
from flyball_wire.plans.plan import Plan

_LOG = logging.getLogger(__name__)

# Predicted share of energy or time below which a new version is not worth distributing.
LEAST_GAIN = 0.001
# Targets that are tried after one that cannot be met; a search may miss the time that it named.
_NUM_NEARER = 2
# Pause after a solver was lost, s; twice as long after each further time, up to the longest.
LOST_PAUSE_S, LONGEST_LOST_PAUSE_S = 10.0, 3600.0
_BROKEN = "unexpected error in the planner; see its log"


@dataclass(frozen=True, kw_only=True)
class _Solved:
    """Outcome of a solve: a plan, or why there is none."""

    plan: Plan | None = None
    attempt: Attempt
    solve_s: float = 0.0


class PlanReconciler:
    """Reconciler that plans a job whose newest version is not what it should run.

    Args:
        slots: slots for the plannings that the reconcile loop waits for.
    """

    order = 57

    def __init__(self, slots: PlanningSlots = PLENTY) -> None:
        self._slots = slots

    def runs_after_posts(self, reader: JobReader, job: JobRecord) -> bool:
        """Return False: posts change findings, whose reconcilers run before this one."""
        del reader, job
        return False

    def __call__(self, services: JobServices, job_id: str) -> float | None:
        """Plan the job if needed; return the time until what it should run may change, s."""
        with services.store.reading() as reader:
            snapshot = read_planning(reader, require_job(reader, job_id))
        if snapshot.job.state in OVER:
            return None
        target = snapshot.wanted(services)
        stands = snapshot.standing(services, target)
        again_s = target.changes_in_s
        if stands.again_unix_s is not None:
            retry_s = stands.again_unix_s - services.now().timestamp()
            again_s = retry_s if again_s is None else min(again_s, retry_s)
        if stands.is_settled(snapshot.job):
            return again_s
        if not stands.is_due:
            _store(services, snapshot, target, None)
            return again_s
        with self._slots.taken() as is_free:
            if not is_free:
                return SLOT_RETRY_S
            try:
                solved = _solve(services, snapshot, target)
            except SupersededError:
                _LOG.info("job %s: its inputs have changed; planned next from them", job_id)
                return 0.0
            except UnknownJobError:  # deleted meanwhile
                services.notify_pollers(job_id)
                raise
        _store(services, snapshot, target, solved)
        return again_s


def _solve(services: JobServices, snapshot: PlanningSnapshot, target: Wanted) -> _Solved:
    """Solve what is wanted; failures are outcomes.

    Raises:
        SupersededError, UnknownJobError, PlanningStoppedError: see `solve`.
    """
    plan, digest = target.plan, target.digest
    assert plan is not None and digest is not None  # noqa: S101 - it is due
    before = snapshot.findings.attempt(digest)
    started_s = time.perf_counter()
    try:
        with _observed(services, plan.options.policy):
            found = _nearest(services, snapshot, target, _request(services, snapshot, target, plan))
            check_parts_fit(found)
    except OBSOLETE:
        raise
    except (PipelineError, InvalidFieldError) as error:
        problem = error.problem if isinstance(error, InvalidFieldError) else error.message
        nearest = error.nearest_target if isinstance(error, TargetUnreachableError) else None
        attempt = Attempt(digest=digest, field=error.field, problem=problem, nearest=nearest)
    except Exception:
        _LOG.exception("job %s: the planner failed", snapshot.job.job_id)
        attempt = Attempt(digest=digest, field=PLANNING_FIELD, problem=_BROKEN)
    else:
        solve_s = time.perf_counter() - started_s
        return _Solved(plan=found, attempt=Attempt(digest=digest), solve_s=solve_s)
    if attempt.field == PLANNING_FIELD:
        num_lost = 0 if before is None else before.num_lost
        pause_s = max(LOST_PAUSE_S, time.perf_counter() - started_s) * 2**num_lost
        again_unix_s = services.now().timestamp() + min(pause_s, LONGEST_LOST_PAUSE_S)
        attempt = replace(attempt, again_unix_s=again_unix_s, num_lost=num_lost + 1)
    return _Solved(attempt=attempt)


def _request(
    services: JobServices, snapshot: PlanningSnapshot, target: Wanted, plan: PlanToSolve
) -> SlowedRequest:
    """Return the request with its profile; a quick one keeps the running plan's reserve.

    Choosing a reserve takes as long as a bound of a plan does.
    """
    job_id = snapshot.job.job_id
    with services.store.reading() as reader:
        profile = reader.find_profile(job_id)
        is_current = profile is not None and reader.profile_digest(job_id) == plan.profile
        running = None if target.unhurried is None else newest_plan(reader, job_id)
    if profile is None or not is_current:
        raise SupersededError
    slowed = plan.of_profile(profile)
    if running is None or running.plan.is_probe or plan.options.reserve is not None:
        return slowed
    share = running.plan.reserve.share
    return replace(slowed, request=slowed.request.with_options(reserve=share))


def _nearest(
    services: JobServices, snapshot: PlanningSnapshot, target: Wanted, slowed: SlowedRequest
) -> Plan:
    """Return the plan for the target, or for the nearest one if it may be missed."""
    for _ in range(_NUM_NEARER):
        try:
            return _planned(services, snapshot, target, slowed)
        except TargetUnreachableError as error:
            if not target.may_miss or error.nearest_target is None:
                raise
            request = slowed.request.with_options(target=error.nearest_target)
            slowed = replace(slowed, request=request)
    return _planned(services, snapshot, target, slowed)


def _planned(
    services: JobServices, snapshot: PlanningSnapshot, target: Wanted, slowed: SlowedRequest
) -> Plan:
    def is_wanted(reader: JobReader, job: JobRecord) -> bool:
        return _is_same(services, reader, job, snapshot, target)

    if slowed.slowdowns:
        return solve(services, snapshot.job, make_slowed_plan, slowed, is_wanted=is_wanted)
    return solve(services, snapshot.job, services.planner, slowed.request, is_wanted=is_wanted)


def _is_same(
    services: JobServices,
    reader: JobReader,
    job: JobRecord,
    snapshot: PlanningSnapshot,
    target: Wanted,
) -> bool:
    """Return whether the job, of the same run, is still to run this."""
    if job.created_at != snapshot.job.created_at:
        return False
    return read_planning(reader, job).wanted(services).digest == target.digest


@contextmanager
def _observed(services: JobServices, policy: str) -> Generator[None]:
    """Report the outcome of the block, which makes a plan, to `services.observe_solve`."""
    started_s = time.perf_counter()

    def observe(outcome: str) -> None:
        seconds = time.perf_counter() - started_s
        services.observe_solve(Solve(policy=policy, outcome=outcome, seconds=seconds))

    try:
        yield
    except OBSOLETE:
        observe("superseded")
        raise
    except Exception:
        observe("failed")
        raise
    observe("planned")


def _store(
    services: JobServices, snapshot: PlanningSnapshot, target: Wanted, solved: _Solved | None
) -> None:
    """Store the outcome, and the job's state, in one transaction, unless they are obsolete.

    Args:
        services: services of the use cases.
        snapshot: facts that the outcome was made from.
        target: what the job should run.
        solved: outcome of a solve; None: nothing was solved.
    """
    job_id = snapshot.job.job_id
    with services.store.writing(job_id) as writer:
        job = require_job(writer, job_id)
        now = read_planning(writer, job)
        made = None
        if _is_same(services, writer, job, snapshot, target):
            made = _write(services, writer, now, target, solved)
    services.notify_pollers(job_id)
    services.enqueue_reconcile(job_id)
    if made is not None:
        record, said = made
        about_version = {"version": record.version}
        _LOG.info("job %s: plan %d %s", job_id, record.version, said, extra=about_version)


def _write(
    services: JobServices,
    writer: JobWriter,
    now: PlanningSnapshot,
    target: Wanted,
    solved: _Solved | None,
) -> tuple[PlanRecord, str] | None:
    """Write a version, where one is needed, the attempt and the job's state.

    Returns:
        The version that is to run, if that is news, and what to log of it.
    """
    stands = now.standing(services, target)
    if stands.is_idle or (stands.is_due and solved is None):
        return None
    findings, made = now.findings, None
    if solved is not None and stands.is_due:
        if solved.plan is None:
            version = None if now.newest is None else now.newest.version
            failed = replace(solved.attempt, version=version)
            stands = replace(stands, is_due=False, failure=failed)
            findings = findings.with_attempt(failed)
        else:
            made = _solved_version(services, writer, now, target, solved)
            findings = findings.with_attempt(replace(solved.attempt, version=made[0].version))
    elif stands.reuse is not None:
        made = _known_version(services, writer, now, target, stands.reuse)
        findings = findings.with_attempt(stands.reuse)
    elif stands.failure is not None and now.newest is not None:
        known = replace(stands.failure, version=now.newest.version)
        findings = findings.with_attempt(known) if target.problem is None else findings
    if made is not None:
        findings = findings.evolve(missed=_missed(now.job, target, made[0]))
    if stands.failure is None:
        findings = findings.evolve(planned_inputs=target.inputs)
    is_lost = stands.failure is not None and stands.failure.again_unix_s is not None
    if target.inputs.target is None and target.problem is None and not is_lost:
        findings = findings.evolve(tried_target=now.job.spec.target)
    if findings != now.findings:
        writer.save_loop_state(findings)
    state, problem = stands.state
    writer.save_job(now.job.moved(state, problem=problem))
    _warn(now, findings.missed, problem)
    return made


def _solved_version(
    services: JobServices,
    writer: JobWriter,
    now: PlanningSnapshot,
    target: Wanted,
    solved: _Solved,
) -> tuple[PlanRecord, str]:
    """Return the version that answers the request, and a log line.

    The quick plan for the same request stays if the one that follows is no better.
    """
    plan, wanted_plan = solved.plan, target.plan
    assert plan is not None and wanted_plan is not None  # noqa: S101 - it was solved
    quick = wanted_plan.with_options(effort=Effort.LOW)
    if now.newest is not None and now.newest.digest == quick.digest and target.unhurried is None:
        first = require_plan(writer, now.job.job_id, now.newest.version)
        if not _is_better(plan, first.plan):
            return first, "stays; no other plan is better by enough"
    record = add_version(
        services,
        writer,
        now.job.job_id,
        plan,
        solve_s=solved.solve_s,
        measurement_detail=wanted_plan.measurement_detail,
        digest=solved.attempt.digest,
    )
    how = "" if target.unhurried is None else ", at once; a better one may follow"
    return record, f"made in {record.solve_s:.3f} s{how}"


def _known_version(
    services: JobServices,
    writer: JobWriter,
    now: PlanningSnapshot,
    target: Wanted,
    attempt: Attempt,
) -> tuple[PlanRecord, str]:
    """Return a new version with the plan of an earlier attempt."""
    assert attempt.version is not None and target.plan is not None  # noqa: S101 - answered
    known = require_plan(writer, now.job.job_id, attempt.version)
    record = add_version(
        services,
        writer,
        now.job.job_id,
        known.plan,
        solve_s=known.solve_s,
        measurement_detail=target.plan.measurement_detail,
        digest=attempt.digest,
    )
    return record, f"is the same as plan {attempt.version}"


def _is_better(refined: Plan, first: Plan) -> bool:
    """Return whether it needs less energy or time by LEAST_GAIN."""
    return (
        refined.predicted.energy_j < (1 - LEAST_GAIN) * first.predicted.energy_j
        or refined.iteration_time_s < (1 - LEAST_GAIN) * first.iteration_time_s
    )


def _missed(job: JobRecord, target: Wanted, record: PlanRecord) -> MissedTarget | None:
    """Return the target if the plan is for the nearest one instead; None: it meets the target."""
    asked, nearest = target.inputs.target or job.spec.target, record.plan.target
    planned = target.plan
    is_met = nearest == asked or (planned is not None and nearest == planned.options.target)
    return None if is_met else MissedTarget(target=asked, nearest=nearest)


def _warn(now: PlanningSnapshot, missed: MissedTarget | None, problem: str | None) -> None:
    if problem is not None and problem != now.job.problem:
        _LOG.warning("job %s: planning failed: %s", now.job.job_id, problem)
    if missed is not None and missed != now.findings.missed:
        _LOG.warning("job %s: %s", now.job.job_id, missed.text)
