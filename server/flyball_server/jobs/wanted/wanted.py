"""Plan that a job should run now, a function without memory, and the job's standing against it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from flyball_pipeline.errors import PipelineError
from flyball_pipeline.instruction import InstructionKind
from flyball_server.jobs.errors import InvalidFieldError
from flyball_server.jobs.job_state import OVER
from flyball_server.jobs.loop_state import Attempt, JobLoopState
from flyball_server.jobs.planning_inputs import PlanningInputs, RankSlowdown
from flyball_server.jobs.records import JobRecord, NewestVersion, RankRecord
from flyball_server.jobs.wanted.request import (
    GpuTable,
    PlanToSolve,
    digest_of,
    is_of_newer_function,
    plan_to_solve,
)
from flyball_server.jobs.wanted.timetable import next_change, target_at
from flyball_wire.messages import JobState
from flyball_wire.plans.plan import Slowdown

# Time in s within which a change of the system clock is noticed.
LONGEST_PAUSE_S = 600.0


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Plan that a job should run now, as a request to solve."""

    #: Planning inputs of the request.
    inputs: PlanningInputs = field(default_factory=PlanningInputs)
    #: Request of the plan; None: there is no profile, or `problem` says why there is none.
    plan: PlanToSolve | None = None
    #: True if the nearest target is planned for where this target cannot be met.
    may_miss: bool = False
    #: Field and message of a request that cannot be made from these facts.
    problem: tuple[str, str] | None = None
    #: Time until the request may change by itself, s; None: it does not.
    changes_in_s: float | None = None

    @property
    def digest(self) -> str | None:
        """Digest of what to solve; None: nothing."""
        if self.problem is not None:
            return digest_of(self.problem)
        return None if self.plan is None else self.plan.digest


def wanted(
    job: JobRecord,
    ranks: Sequence[RankRecord],
    findings: JobLoopState,
    now: datetime,
    *,
    profile: str | None,
    gpu_table: GpuTable,
) -> Wanted:
    """Return what the job should run; equal arguments have equal results.

    Args:
        job: the job.
        ranks: ranks registered so far; not used while no rank is slow.
        findings: findings about the job, and what was announced.
        now: current time.
        profile: digest of the job's profile; None: none yet.
        gpu_table: GPU windows by name.
    """
    changes_in_s = _changes_in_s(findings, now)
    if profile is None:
        return Wanted(changes_in_s=changes_in_s)
    inputs = planning_inputs(findings, now)
    try:
        plan = plan_to_solve(job.spec, profile, gpu_table, findings, inputs)
        plan = with_slowdowns(plan, inputs, ranks)
    except (InvalidFieldError, PipelineError) as error:
        message = error.problem if isinstance(error, InvalidFieldError) else error.message
        return Wanted(problem=(error.field, message), changes_in_s=changes_in_s)
    return Wanted(
        inputs=inputs,
        plan=plan,
        may_miss=inputs.target is not None or findings.tried_target == job.spec.target,
        changes_in_s=changes_in_s,
    )


def planning_inputs(findings: JobLoopState, now: datetime) -> PlanningInputs:
    """Return what is planned with at this time, beside specification and profile."""
    target = None
    if findings.timetable is not None:
        target = target_at(findings.timetable, now)
    return replace(
        findings.lasting,
        target=target,
        rank_slowdowns=slowdowns_at(findings, now.timestamp()),
        stage_slowdowns=findings.drifts,
    )


def slowdowns_at(findings: JobLoopState, unix_s: float) -> tuple[RankSlowdown, ...]:
    """Return the slowdowns to plan with at a time: the larger of announced and detected."""
    slowdowns = {slowed.rank: slowed for slowed in findings.detected}
    for straggler in findings.stragglers:
        known = slowdowns.get(straggler.rank)
        if straggler.holds_at(unix_s) and (known is None or known.slowdown < straggler.slowdown):
            slowdowns[straggler.rank] = RankSlowdown(
                rank=straggler.rank, slowdown=straggler.slowdown, since_unix_s=straggler.from_unix_s
            )
    return tuple(slowdowns[rank] for rank in sorted(slowdowns))


def with_slowdowns(
    plan: PlanToSolve, inputs: PlanningInputs, ranks: Sequence[RankRecord]
) -> PlanToSolve:
    """Return the request with the slowdown factors of its inputs."""
    slowdowns = planned_slowdowns(inputs, ranks)
    if not slowdowns:
        return plan
    num_pipelines = 1 + max((rank.dp_rank for rank in ranks), default=0)
    return replace(plan, slowdowns=slowdowns, num_pipelines=num_pipelines)


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


def _changes_in_s(findings: JobLoopState, now: datetime) -> float | None:
    """Return the time until an announced slowdown or a window of the timetable begins or ends."""
    now_unix_s = now.timestamp()
    times_s = [
        unix_s - now_unix_s
        for straggler in findings.stragglers
        for unix_s in (straggler.from_unix_s, straggler.until_unix_s)
        if unix_s is not None and unix_s > now_unix_s
    ]
    if findings.timetable is not None:
        change = next_change(findings.timetable, now)
        if change is not None:
            times_s.append(min(LONGEST_PAUSE_S, (change - now).total_seconds()))
    return min(times_s, default=None)


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Standing of a job against the plan it should run; by default its newest version is that."""

    #: True if it is to be solved now.
    is_due: bool = False
    #: Attempt whose plan answers the request and is to be the newest version again; None: none.
    reuse: Attempt | None = None
    #: True if the newest plan is to be compared with the highest clocks, false: no longer.
    is_compared: bool | None = None
    #: Failed attempt that stands for now; None: none.
    failure: Attempt | None = None
    #: True if there is nothing to solve, or a planner with a newer function has planned the job.
    is_idle: bool = False

    def is_settled(self, job: JobRecord) -> bool:
        """Return whether nothing is to be done, and the job's state says how it stands."""
        if job.state in OVER or self.is_idle:
            return True
        if self.is_due or self.reuse is not None or self.is_compared is not None:
            return False
        state, problem = self.state
        return (job.state, job.problem) == (state, problem)

    @property
    def state(self) -> tuple[JobState, str | None]:
        """State of a job that stands so, and its problem."""
        if self.failure is None:
            return JobState.PLANNED, None
        return JobState.PLANNING_FAILED, self.failure.text


def standing(
    target: Wanted, newest: NewestVersion | None, findings: JobLoopState, now_unix_s: float
) -> Standing:
    """Return where a job stands: planned, failed, or with something to solve."""
    digest, ran = target.digest, None if newest is None else newest.digest
    done = [ran or "", *(attempt.digest for attempt in findings.attempts[-1:])]
    if digest is None or any(map(is_of_newer_function, filter(None, done))):
        return Standing(is_idle=True)
    if target.problem is not None:
        of_field, problem = target.problem
        return Standing(failure=Attempt(digest=digest, field=of_field, problem=problem))
    known = findings.version_of(digest)
    if ran == digest or (known is not None and known == findings.version_of(ran)):
        return Standing(is_compared=_is_compared(newest, findings))
    attempt = findings.attempt(digest)
    if attempt is None or _is_due_again(attempt, target, newest, now_unix_s):
        return Standing(is_due=True)
    if attempt.problem is None:
        return Standing(reuse=attempt)
    return Standing(failure=attempt)


def _is_compared(newest: NewestVersion | None, findings: JobLoopState) -> bool | None:
    """Return whether the newest plan is to be compared, or no longer; None: nothing changes."""
    comparison = findings.open_comparison
    if newest is None or comparison is None:
        return False if newest is not None and newest.baseline_cycle else None
    is_ready = newest.first_step is not None and not newest.is_raised
    return True if comparison.version is None and is_ready else None


def _is_due_again(
    attempt: Attempt, target: Wanted, newest: NewestVersion | None, now_unix_s: float
) -> bool:
    """Return whether a failed attempt is to be repeated now."""
    if attempt.again_unix_s is not None:
        return now_unix_s >= attempt.again_unix_s
    # Its target was refused when it was put; since then the job has got another plan.
    is_missed = attempt.nearest is not None and target.may_miss
    return is_missed and newest is not None and newest.version != attempt.version
