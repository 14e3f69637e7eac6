"""Life cycle of a job: its end, its return, and the conditions that it waits for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from flyball_server.jobs.job_state import OVER
from flyball_server.jobs.loop_state import RefusedRegistration
from flyball_server.jobs.records import JobRecord, RankRecord, ranks_text
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_wire.messages import JobState, PlanVersion


def utc_now() -> datetime:
    """Return the current time, UTC."""
    return datetime.now(UTC)


# Time in s for which a refused registration is told; whoever still wants one tries again.
_REFUSED_S = 3600.0
# Period in s at which heartbeats are stored: thousands of ranks call every step.
KEEP_PERIOD_S = 5.0


@dataclass(frozen=True, kw_only=True)
class LifeTimes:
    """Timeouts of silent ranks and jobs, s.

    Attributes:
        rank_silence_s: timeout of a rank; longer than the longest long poll.
        job_expiry_s: time until a silent job becomes `expired`; 0: never.
        job_retention_s: time until a job that is over is deleted; 0: never.
        step_retention_s: time for which measurements of single ranks are kept; 0: forever.
    """

    rank_silence_s: float = 90.0
    job_expiry_s: float = 7 * 86_400.0
    job_retention_s: float = 0.0
    step_retention_s: float = 6 * 3600.0


DEFAULT_LIFE = LifeTimes()
# Reasons that notes on clocks name.
_MOST_REASONS = 3


def is_gone(rank: RankRecord, now: datetime, times: LifeTimes) -> bool:
    """Return whether a rank has left or has been silent for long."""
    return rank.has_left or is_silent(rank, now, times)


def is_silent(rank: RankRecord, now: datetime, times: LifeTimes) -> bool:
    """Return whether a rank that has not left has been silent for long."""
    if rank.has_left:
        return False
    if rank.last_seen_at is None:
        return True
    return now - rank.last_seen_at > timedelta(seconds=times.rank_silence_s)


def is_emulated(job: JobRecord, ranks: Iterable[RankRecord]) -> bool:
    """Return whether some of the job's GPUs are emulated."""
    return job.spec.emulated or any(rank.emulated for rank in ranks)


def last_sign(job: JobRecord, ranks: Sequence[RankRecord]) -> datetime:
    """Return the time of the last call of a rank, or else of the job's registration; UTC."""
    return max([job.created_at, *(rank.last_seen_at or job.created_at for rank in ranks)])


def living_state(reader: JobReader, job: JobRecord) -> JobState:
    """Return the state that a job which is over returns to."""
    if job.state not in OVER:
        return job.state
    if job.problem is not None:
        return JobState.PLANNING_FAILED
    newest = reader.newest_version(job.job_id)
    if newest is not None and newest.digest is not None:
        return JobState.PLANNED
    is_measured = job.spec.is_profiled_online and newest is not None
    return JobState.PROFILING if is_measured else JobState.AWAITING_PROFILE


def come_back(reader: JobReader, job: JobRecord) -> JobRecord:
    """Return the job, no longer over."""
    if job.state not in OVER:
        return job
    return job.moved(living_state(reader, job), problem=job.problem)


def refused_text(refused: RefusedRegistration | None, now: datetime) -> str | None:
    """Return a line on a registration that was refused lately; None: there is none."""
    if refused is None or now.timestamp() - refused.at_unix_s > _REFUSED_S:
        return None
    at = datetime.fromtimestamp(refused.at_unix_s, UTC)
    return f"{refused} ({at:%H:%M:%S} UTC)"


def job_notes(
    job: JobRecord,
    ranks: Sequence[RankRecord],
    versions: Sequence[PlanVersion],
    refused: RefusedRegistration | None,
    *,
    is_being_planned: bool,
    now: datetime,
    times: LifeTimes,
) -> tuple[str, ...]:
    """Return a readable line for each pending condition or anomaly of a job."""
    refusal = refused_text(refused, now)
    notes = [] if refusal is None else [refusal]
    if job.state in OVER:
        return tuple(notes)
    if is_being_planned:
        notes.append("a plan is being made")
    missing = sorted(set(range(job.spec.num_expected_ranks)) - {rank.rank for rank in ranks})
    if missing:
        notes.append(f"waits for {ranks_text(missing)} to register")
    newest = max(versions, key=lambda entry: entry.version, default=None)
    if newest is not None and newest.first_step is None and not missing:
        held_up = [rank.rank for rank in ranks if rank.acknowledged_version != newest.version]
        notes.append(f"version {newest.version} waits for {ranks_text(held_up)} to acknowledge it")
    silent = [rank.rank for rank in ranks if is_silent(rank, now, times)]
    if silent and len(silent) == sum(not rank.has_left for rank in ranks):
        notes.append(_all_silent(last_sign(job, ranks), times))
    elif silent:
        notes.append(f"{silence_text(silent, times)}: a new version waits until it registers again")
    left = [rank.rank for rank in ranks if rank.has_left]
    if left and len(left) < len(ranks):
        notes.append(f"{ranks_text(left)} ended before the others")
    notes += no_clocks_notes(ranks)
    clients = sorted({rank.client_version for rank in ranks})
    if len(clients) > 1:
        notes.append(f"ranks run different versions of Flyball: {', '.join(clients)}")
    return tuple(notes)


def silence_text(silent: Sequence[int], times: LifeTimes) -> str:
    """Return which ranks have been silent, and for how long at least."""
    has = "has" if len(silent) == 1 else "have"
    return f"{ranks_text(silent)} {has} been silent for {times.rank_silence_s:g} s"


def no_clocks_notes(ranks: Iterable[RankRecord]) -> list[str]:
    """Return a line for each reason for which ranks in training set no clocks, a few at most."""
    by_reason: dict[str, list[int]] = {}
    for rank in ranks:
        if rank.no_clocks is not None and not rank.has_left:
            by_reason.setdefault(rank.no_clocks, []).append(rank.rank)
    reasons = list(by_reason)
    notes = [
        f"{ranks_text(by_reason[reason])} set{'s' * (len(by_reason[reason]) == 1)} no clocks:"
        f" {reason}"
        for reason in reasons[:_MOST_REASONS]
    ]
    others = sorted(rank for reason in reasons[_MOST_REASONS:] for rank in by_reason[reason])
    if others:
        notes.append(f"{ranks_text(others)} set no clocks either, for other reasons")
    return notes


def _all_silent(last: datetime, times: LifeTimes) -> str:
    """Return why no rank may call, what to look at, and what becomes of the job."""
    text = (
        f"no rank has called since {last:%Y-%m-%d %H:%M:%S} UTC: the training was killed, hangs, or"
        " cannot reach this planner; its log and `flyball doctor --planner-only` on a rank's host"
        " say which. The figures are of the last steps; the next call of a rank resumes the job"
    )
    if not times.job_expiry_s:
        return text
    expiry = last + timedelta(seconds=times.job_expiry_s)
    return f"{text}, and at {expiry:%Y-%m-%d %H:%M} it expires"
