"""Use cases of stragglers: announced slow GPUs, and all slowdowns of a job."""

from __future__ import annotations

from datetime import UTC, datetime

from flyball_server.jobs.errors import InvalidFieldError
from flyball_server.jobs.loop_state import AnnouncedSlowdown, JobLoopState
from flyball_server.jobs.registry.inspection import require_rank
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.wanted.timetable import parse_moment
from flyball_wire.closed_loop import (
    Straggler,
    StragglerAnnouncement,
    StragglerReason,
    StragglerSource,
)

# Ratio between two slowdowns of a rank for which one plan is good enough: measurements differ.
NEARLY = 1.05


def announce_straggler(
    services: JobServices, job_id: str, sent: StragglerAnnouncement
) -> Straggler:
    """Announce that a rank's GPU is slow; this replaces an earlier announcement of the rank.

    Repeating an announcement changes nothing. The reconcile loop then plans the job for it.

    Raises:
        UnknownJobError: the job does not exist.
        UnknownRankError: the rank does not exist in the job.
        InvalidFieldError: a value is out of bounds, or the end is in the past.
    """
    now_unix_s = services.now().timestamp()
    from_unix_s = _unix_s("from_time", sent.from_time)
    until_unix_s = _unix_s("until_time", sent.until_time)
    announced = AnnouncedSlowdown(
        rank=sent.rank,
        slowdown=sent.slowdown,
        from_unix_s=now_unix_s if from_unix_s is None else from_unix_s,
        until_unix_s=until_unix_s,
    )
    if until_unix_s is not None and until_unix_s <= now_unix_s:
        raise InvalidFieldError("until_time", "is over; leave it out, or give a later time")
    with services.store.writing(job_id) as writer:
        require_rank(writer, job_id, sent.rank)
        loop_state = writer.find_loop_state(job_id)
        known = {slowdown.rank: slowdown for slowdown in loop_state.stragglers}
        before = known.get(sent.rank)
        if before is not None and _is_same(before, announced, from_unix_s):
            announced = before
        else:
            known[sent.rank] = announced
            loop_state = loop_state.evolve(stragglers=tuple(known[rank] for rank in sorted(known)))
            writer.save_loop_state(loop_state)
    services.enqueue_reconcile(job_id)
    return _announced(announced, loop_state)


def withdraw_straggler(services: JobServices, job_id: str, rank: int) -> None:
    """Withdraw the announcement of a rank; nothing if there is none.

    Raises:
        UnknownJobError: the job does not exist.
        UnknownRankError: the rank does not exist in the job.
    """
    with services.store.writing(job_id) as writer:
        require_rank(writer, job_id, rank)
        loop_state = writer.find_loop_state(job_id)
        left = tuple(slowdown for slowdown in loop_state.stragglers if slowdown.rank != rank)
        if left != loop_state.stragglers:
            writer.save_loop_state(loop_state.evolve(stragglers=left))
    services.enqueue_reconcile(job_id)


def list_stragglers(services: JobServices, job_id: str) -> tuple[Straggler, ...]:
    """Return the slowdowns by rank; the announced one first, then the detected one.

    Raises:
        UnknownJobError: the job does not exist.
    """
    with services.store.reading() as reader:
        reader.require_job(job_id)
        loop_state = reader.find_loop_state(job_id)
    return current_stragglers(loop_state, services.now().timestamp())


def current_stragglers(loop_state: JobLoopState, now_unix_s: float) -> tuple[Straggler, ...]:
    """Return the slowdowns by rank in this loop state, at this time."""
    announced = [
        _announced(slowdown, loop_state)
        for slowdown in loop_state.stragglers
        if slowdown.until_unix_s is None or now_unix_s < slowdown.until_unix_s
    ]
    detected = [
        Straggler(
            rank=slowed.rank,
            source=StragglerSource.DETECTED,
            reason=slowed.reason,
            slowdown=slowed.slowdown,
            from_time=_text(slowed.since_unix_s),
            until_time=None,
            is_planned=_is_planned(slowed.rank, slowed.slowdown, loop_state),
        )
        for slowed in loop_state.detected
    ]
    return tuple(
        sorted([*announced, *detected], key=lambda slowdown: (slowdown.rank, slowdown.source))
    )


def slow_ranks(findings: JobLoopState) -> tuple[int, ...]:
    """Return the stragglers that the newest plan counts, rising."""
    planned = findings.planned_inputs.rank_slowdowns
    return tuple(sorted(slowed.rank for slowed in planned if slowed.slowdown > 1))


def _is_same(
    before: AnnouncedSlowdown, after: AnnouncedSlowdown, from_unix_s: float | None
) -> bool:
    """Return whether this repeats an announcement; without a time it began with the first."""
    same_time = from_unix_s in (None, before.from_unix_s)
    has_begun = before.from_unix_s <= after.from_unix_s
    same_end = before.until_unix_s == after.until_unix_s
    return before.slowdown == after.slowdown and same_time and has_begun and same_end


def _announced(slowdown: AnnouncedSlowdown, loop_state: JobLoopState) -> Straggler:
    return Straggler(
        rank=slowdown.rank,
        source=StragglerSource.ANNOUNCED,
        reason=StragglerReason.SLOW,
        slowdown=slowdown.slowdown,
        from_time=_text(slowdown.from_unix_s),
        until_time=_text(slowdown.until_unix_s),
        is_planned=_is_planned(slowdown.rank, slowdown.slowdown, loop_state),
    )


def _is_planned(rank: int, slowdown: float, loop_state: JobLoopState) -> bool:
    planned = {slowed.rank: slowed.slowdown for slowed in loop_state.planned_inputs.rank_slowdowns}
    return is_nearly(slowdown, planned.get(rank))


def _unix_s(field: str, text: str | None) -> float | None:
    return None if text is None else parse_moment(text, field).timestamp()


def _text(unix_s: float | None) -> str | None:
    return None if unix_s is None else datetime.fromtimestamp(unix_s, UTC).isoformat()


def is_nearly(slowdown: float, planned: float | None) -> bool:
    """Return whether a plan for the one is good for the other."""
    return planned is not None and max(slowdown / planned, planned / slowdown) <= NEARLY
