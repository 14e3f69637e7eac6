"""Use cases of stragglers: GPUs announced to be slow, and all that a job has of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from flyball_server.jobs.errors import InvalidFieldError
from flyball_server.jobs.loop_state import JobLoopState, RankSlowdown, Straggler
from flyball_server.jobs.registry.inspection import require_job, require_rank
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.contract import JobWriter

# A plan is good for what is so many times as slow, or as fast: what is measured always differs.
NEARLY = 1.05


@dataclass(frozen=True, kw_only=True)
class Announcement:
    """A GPU is slow, or will be; moments are Unix time, s.

    Attributes:
        from_unix_s: None: now.
        until_unix_s: None: until it is withdrawn.
    """

    rank: int
    slowdown: float
    from_unix_s: float | None
    until_unix_s: float | None


@dataclass(frozen=True, kw_only=True)
class StragglerSummary:
    """A straggler; as the wire's StragglerView."""

    rank: int
    source: Literal["announced", "detected"]
    reason: str
    slowdown: float
    from_unix_s: float | None
    until_unix_s: float | None
    is_in_force: bool


def announce_straggler(
    services: JobServices, job_id: str, announcement: Announcement
) -> StragglerSummary:
    """Say that a rank's GPU is slow; a later announcement of the rank replaces it.

    The same again changes nothing. The job is planned for it right after, by the planner itself.

    Raises:
        UnknownJobError: no such job.
        UnknownRankError: no such rank in it.
        InvalidFieldError: a value is out of its bounds, or the time is over already.
    """
    now_unix_s = services.now().timestamp()
    until_unix_s = announcement.until_unix_s
    straggler = Straggler(
        rank=announcement.rank,
        slowdown=announcement.slowdown,
        from_unix_s=now_unix_s if announcement.from_unix_s is None else announcement.from_unix_s,
        until_unix_s=until_unix_s,
    )
    if until_unix_s is not None and until_unix_s <= now_unix_s:
        raise InvalidFieldError("until_time", "is over; leave it out, or give a later one")
    with services.store.writing(job_id) as writer:
        require_rank(writer, job_id, announcement.rank)
        loop_state = writer.find_loop_state(job_id)
        known = {one.rank: one for one in loop_state.stragglers}
        before = known.get(announcement.rank)
        if before is not None and _is_same(before, straggler, announcement):
            straggler = before
        else:
            known[announcement.rank] = straggler
            loop_state = loop_state.evolve(stragglers=tuple(known[rank] for rank in sorted(known)))
            writer.save_loop_state(loop_state)
    services.enqueue_reconcile(job_id)
    return _announced(straggler, loop_state)


def withdraw_straggler(services: JobServices, job_id: str, rank: int) -> None:
    """Forget what was announced of a rank; nothing where nothing was.

    Raises:
        UnknownJobError: no such job.
        UnknownRankError: no such rank in it.
    """
    with services.store.writing(job_id) as writer:
        require_rank(writer, job_id, rank)
        loop_state = writer.find_loop_state(job_id)
        left = tuple(one for one in loop_state.stragglers if one.rank != rank)
        if left != loop_state.stragglers:
            writer.save_loop_state(loop_state.evolve(stragglers=left))
    services.enqueue_reconcile(job_id)


def list_stragglers(services: JobServices, job_id: str) -> tuple[StragglerSummary, ...]:
    """By rank; what was announced of it, then what was detected.

    Raises:
        UnknownJobError: no such job.
    """
    with services.store.reading() as reader:
        require_job(reader, job_id)
        loop_state = reader.find_loop_state(job_id)
    now_unix_s = services.now().timestamp()
    announced = [
        _announced(one, loop_state)
        for one in loop_state.stragglers
        if one.until_unix_s is None or now_unix_s < one.until_unix_s
    ]
    detected = [
        StragglerSummary(
            rank=slowed.rank,
            source="detected",
            reason=slowed.reason,
            slowdown=slowed.slowdown,
            from_unix_s=slowed.since_unix_s,
            until_unix_s=None,
            is_in_force=_is_in_force(slowed.rank, slowed.slowdown, loop_state),
        )
        for slowed in loop_state.detected
    ]
    return tuple(sorted([*announced, *detected], key=lambda one: (one.rank, one.source)))


def slowdowns_at(loop_state: JobLoopState, unix_s: float) -> tuple[RankSlowdown, ...]:
    """Return the slowdowns to plan with at a moment: the slower of announced and detected.

    A detected one that is nearly what the rank is planned with already leaves that as it is.
    """
    planned = {slowed.rank: slowed.slowdown for slowed in loop_state.in_force.rank_slowdowns}
    slowdowns = {
        slowed.rank: replace(slowed, slowdown=planned[slowed.rank])
        if _is_nearly(slowed.slowdown, planned.get(slowed.rank))
        else slowed
        for slowed in loop_state.detected
    }
    for one in loop_state.stragglers:
        known = slowdowns.get(one.rank)
        if one.holds_at(unix_s) and (known is None or known.slowdown < one.slowdown):
            slowdowns[one.rank] = RankSlowdown(
                rank=one.rank, slowdown=one.slowdown, since_unix_s=one.from_unix_s
            )
    return tuple(slowdowns[rank] for rank in sorted(slowdowns))


def forget_measured_slowdowns(services: JobServices, writer: JobWriter, job_id: str) -> None:
    """Forget what was found against a profile that the job has no more."""
    loop_state = writer.find_loop_state(job_id).evolve(detected=())
    in_force = replace(
        loop_state.in_force,
        rank_slowdowns=slowdowns_at(loop_state, services.now().timestamp()),
        stage_slowdowns=(),
    )
    writer.save_loop_state(loop_state.evolve(in_force=in_force))


def _is_same(before: Straggler, after: Straggler, announcement: Announcement) -> bool:
    """Return whether a repetition says nothing new; `now` is when it was first said."""
    same_time = announcement.from_unix_s in (None, before.from_unix_s)
    has_begun = before.from_unix_s <= after.from_unix_s
    same_end = before.until_unix_s == after.until_unix_s
    return before.slowdown == after.slowdown and same_time and has_begun and same_end


def _announced(one: Straggler, loop_state: JobLoopState) -> StragglerSummary:
    return StragglerSummary(
        rank=one.rank,
        source="announced",
        reason="slow",
        slowdown=one.slowdown,
        from_unix_s=one.from_unix_s,
        until_unix_s=one.until_unix_s,
        is_in_force=_is_in_force(one.rank, one.slowdown, loop_state),
    )


def _is_in_force(rank: int, slowdown: float, loop_state: JobLoopState) -> bool:
    planned = {slowed.rank: slowed.slowdown for slowed in loop_state.planned_for.rank_slowdowns}
    return _is_nearly(slowdown, planned.get(rank))


def _is_nearly(slowdown: float, planned: float | None) -> bool:
    """Return whether a plan for the one is good for the other."""
    return planned is not None and max(slowdown / planned, planned / slowdown) <= NEARLY
