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
from flyball_server.jobs.loop_state import BROKEN, Attempt, JobLoopState
from flyball_server.jobs.reconcile.solve import (
    OBSOLETE,
    PLANNING_FIELD,
    SLOT_RETRY_S,
    SlottedReconciler,
    SupersededError,
    solve,
)
from flyball_server.jobs.records import JobRecord, PlanRecord
from flyball_server.jobs.savings.comparisons import comparison_cycle
from flyball_server.jobs.services import JobServices, Solve
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.jobs.store.sql.job_writer import JobWriter
from flyball_server.jobs.versions.plan_versions import add_again, add_version
from flyball_server.jobs.versions.planning import PlanningSnapshot, read_planning
from flyball_server.jobs.versions.rank_plans import check_parts_fit
from flyball_server.jobs.wanted.request import PlanToSolve
from flyball_server.jobs.wanted.wanted import Standing, Wanted
from flyball_server.planning.errors import TargetUnreachableError
from flyball_server.planning.stragglers.slowed_pipelines import SlowedRequest, make_slowed_plan
from flyball_wire.closed_loop import MissedTarget
from flyball_wire.plans.plan import Plan
from flyball_wire.targets import LIMIT_TARGET

_LOG = logging.getLogger(__name__)

# Targets that are tried after one that cannot be met; a search may miss the time that it named.
_NUM_NEARER = 2
# Pause after a solver was lost, s; twice as long after each further time, up to the longest.
LOST_PAUSE_S, LONGEST_LOST_PAUSE_S = 10.0, 3600.0


class PlanReconciler(SlottedReconciler):
    """Reconciler that plans a job whose newest version is not what it should run."""

    runs_after_posts = None  # posts change findings, whose reconcilers run before this one

    def __call__(self, services: JobServices, job_id: str) -> float | None:
        """Plan the job if needed; return the time until what it should run may change, s."""
        with services.store.reading() as reader:
            snapshot = read_planning(reader, reader.require_job(job_id))
        if snapshot.job.state in OVER:
            return None
        target = snapshot.wanted(services)
        stands = snapshot.standing(services, target)
        planning = _Planning(services=services, snapshot=snapshot, target=target)
        if stands.is_due:
            with self.slot() as is_free:
                if not is_free:
                    return SLOT_RETRY_S
                try:
                    planning.store(planning.solved())
                except SupersededError:
                    _LOG.info("job %s: its inputs have changed; planned next from them", job_id)
                    return 0.0
                except UnknownJobError:  # deleted meanwhile
                    services.notify_pollers(job_id)
                    raise
        elif not stands.is_settled(snapshot.job):
            planning.store(None)
        waits_s = [] if target.changes_in_s is None else [target.changes_in_s]
        if stands.failure is not None and stands.failure.again_unix_s is not None:
            waits_s.append(stands.failure.again_unix_s - services.now().timestamp())
        return min(waits_s, default=None)


@dataclass(frozen=True, kw_only=True)
class _Solved:
    """Outcome of a solve: a plan, or a failed attempt."""

    attempt: Attempt
    plan: Plan | None = None
    solve_s: float = 0.0


_Made = tuple[PlanRecord, str]
"""Version that is to run, and what to log of it."""


@dataclass(frozen=True, kw_only=True)
class _Planning:
    """One planning of a job: the facts that it was begun with, and what the job should run."""

    services: JobServices
    snapshot: PlanningSnapshot
    target: Wanted

    def solved(self) -> _Solved:
        """Solve what is wanted; failures are outcomes.

        Raises:
            SupersededError, UnknownJobError, PlanningStoppedError: see `solve`.
        """
        plan, digest = self.target.plan, self.target.digest
        assert plan is not None and digest is not None  # noqa: S101 - it is due
        started_s = time.perf_counter()
        try:
            with self._observed(plan.options.policy):
                found = self._nearest(self._request(plan))
                check_parts_fit(found)
        except OBSOLETE:
            raise
        except (PipelineError, InvalidFieldError) as error:
            problem = error.problem if isinstance(error, InvalidFieldError) else error.message
            nearest = error.nearest_target if isinstance(error, TargetUnreachableError) else None
            failed = Attempt(digest=digest, field=error.field, problem=problem, nearest=nearest)
        except Exception:
            _LOG.exception("job %s: the planner failed", self.snapshot.job.job_id)
            failed = Attempt(digest=digest, field=PLANNING_FIELD, problem=BROKEN)
        else:
            solve_s = time.perf_counter() - started_s
            return _Solved(plan=found, attempt=Attempt(digest=digest), solve_s=solve_s)
        if failed.field == PLANNING_FIELD:
            before = self.snapshot.findings.attempt(digest)
            num_lost = 0 if before is None else before.num_lost
            pause_s = max(LOST_PAUSE_S, time.perf_counter() - started_s) * 2**num_lost
            again_unix_s = self.services.now().timestamp() + min(pause_s, LONGEST_LOST_PAUSE_S)
            failed = replace(failed, again_unix_s=again_unix_s, num_lost=num_lost + 1)
        return _Solved(attempt=failed)

    def _request(self, plan: PlanToSolve) -> SlowedRequest:
        """Return the request with its profile."""
        job_id = self.snapshot.job.job_id
        with self.services.store.reading() as reader:
            profile = reader.find_profile(job_id)
            is_current = profile is not None and reader.profile_digest(job_id) == plan.profile
        if profile is None or not is_current:
            raise SupersededError
        return plan.of_profile(profile)

    def _nearest(self, slowed: SlowedRequest) -> Plan:
        """Return the plan for the target, or for the nearest target if it may be missed."""
        for _ in range(_NUM_NEARER):
            try:
                return self._planned(slowed)
            except TargetUnreachableError as error:
                if not self.target.may_miss or error.nearest_target is None:
                    raise
                request = slowed.request.with_options(target=error.nearest_target)
                slowed = replace(slowed, request=request)
        return self._planned(slowed)

    def _planned(self, slowed: SlowedRequest) -> Plan:
        services, job, is_wanted = self.services, self.snapshot.job, self._is_wanted
        if slowed.slowdowns:
            return solve(services, job, make_slowed_plan, slowed, is_wanted=is_wanted)
        return solve(services, job, services.planner, slowed.request, is_wanted=is_wanted)

    def _is_wanted(self, reader: JobReader, job: JobRecord) -> bool:
        """Return whether the job, of the same run, is still to run this."""
        if job.created_at != self.snapshot.job.created_at:
            return False
        return read_planning(reader, job).wanted(self.services).digest == self.target.digest

    @contextmanager
    def _observed(self, policy: str) -> Generator[None]:
        """Report the outcome of the block, which makes a plan, to `services.observe_solve`."""
        started_s, outcome = time.perf_counter(), "failed"
        try:
            yield
            outcome = "planned"
        except OBSOLETE:
            outcome = "superseded"
            raise
        finally:
            seconds = time.perf_counter() - started_s
            self.services.observe_solve(Solve(policy=policy, outcome=outcome, seconds=seconds))

    def store(self, solved: _Solved | None) -> None:
        """Store the outcome, and the job's state, in one transaction, unless they are obsolete.

        Args:
            solved: outcome of a solve; None: nothing was solved.
        """
        job_id, made = self.snapshot.job.job_id, None
        with self.services.store.writing(job_id) as writer:
            job = writer.require_job(job_id)
            now = read_planning(writer, job)
            stands = now.standing(self.services, self.target)
            is_obsolete = stands.is_idle or (stands.is_due and solved is None)
            if not is_obsolete and self._is_wanted(writer, job):
                made = self._write(writer, now, stands, solved)
        self.services.notify_pollers(job_id)
        self.services.enqueue_reconcile(job_id)
        if made is not None:
            record, said = made
            about_version = {"version": record.version}
            _LOG.info("job %s: plan %d %s", job_id, record.version, said, extra=about_version)

    def _write(
        self, writer: JobWriter, now: PlanningSnapshot, stands: Standing, solved: _Solved | None
    ) -> _Made | None:
        """Write a version, where one is needed, the attempt and the job's state."""
        findings, made = now.findings, None
        if stands.is_due and solved is not None:
            attempt = solved.attempt
            if solved.plan is None:
                stands = Standing(failure=attempt)
            else:
                made = self._solved_version(writer, now, solved, solved.plan)
                findings = findings.with_attempt(replace(attempt, version=made[0].version))
        elif stands.reuse is not None and stands.reuse.version is not None:
            known = writer.require_plan(now.job.job_id, stands.reuse.version)
            again = known.evolve(baseline_cycle=(), digest=stands.reuse.digest)
            made = add_again(self.services, writer, again), f"is the same as plan {known.version}"
            findings = findings.with_attempt(stands.reuse)
        elif stands.is_compared is not None:
            findings, made = self._compared(writer, findings, is_compared=stands.is_compared)
        failure = stands.failure
        if failure is not None and self.target.problem is None:
            version = None if now.newest is None else now.newest.version
            findings = findings.with_attempt(replace(failure, version=version))
        if failure is None:
            findings = findings.evolve(planned_inputs=self.target.inputs)
        if made is not None:
            findings = findings.evolve(missed=self._missed(made[0].plan))
        is_lost = failure is not None and failure.again_unix_s is not None
        if self.target.inputs.target is None and self.target.problem is None and not is_lost:
            findings = findings.evolve(tried_target=now.job.spec.target)
        if findings != now.findings:
            writer.save_loop_state(findings)
        state, problem = stands.state
        writer.save_job(now.job.moved(state, problem=problem))
        if problem is not None and problem != now.job.problem:
            _LOG.warning("job %s: planning failed: %s", now.job.job_id, problem)
        if findings.missed is not None and findings.missed != now.findings.missed:
            _LOG.warning("job %s: %s", now.job.job_id, findings.missed.text)
        return made

    def _solved_version(
        self, writer: JobWriter, now: PlanningSnapshot, solved: _Solved, plan: Plan
    ) -> _Made:
        """Add the solved plan."""
        asked = self.target.plan
        assert asked is not None  # noqa: S101 - it was solved
        record = add_version(
            self.services,
            writer,
            now.job.job_id,
            plan,
            solve_s=solved.solve_s,
            measurement_detail=asked.measurement_detail,
            digest=solved.attempt.digest,
        )
        return record, f"made in {record.solve_s:.3f} s"

    def _compared(
        self, writer: JobWriter, findings: JobLoopState, *, is_compared: bool
    ) -> tuple[JobLoopState, _Made]:
        """Add the newest plan with steps at the highest clocks among its own, or without."""
        newest, comparison = writer.newest_plan(findings.job_id), findings.open_comparison
        assert newest is not None  # noqa: S101 - it is what the job should run
        if not is_compared or comparison is None:
            plain = add_again(self.services, writer, newest.evolve(baseline_cycle=()))
            return findings, (plain, "is not compared with the highest clocks any more")
        cycle = comparison_cycle(comparison.num_pairs, newest.plan.iteration_time_s)
        record = add_again(self.services, writer, newest.evolve(baseline_cycle=cycle))
        begun = replace(comparison, version=record.version)
        said = f"compares plan {newest.version} with the highest clocks"
        return findings.evolve(comparison=begun), (record, said)

    def _missed(self, plan: Plan) -> MissedTarget | None:
        """Return the target if the plan is for the nearest target; None: it meets its target."""
        asked = self.target.inputs.target or self.snapshot.job.spec.target
        met = {asked} if self.target.plan is None else {asked, self.target.plan.options.target}
        is_met = plan.target in met or asked == LIMIT_TARGET
        return None if is_met else MissedTarget(target=asked, nearest=plan.target)
