"""Use cases of stragglers: GPUs announced to be slow, and all that a job has of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from flyball_server.jobs.control import JobControl, RankPace, Straggler
from flyball_server.jobs.errors import InvalidFieldError
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
        control = writer.find_control(job_id)
        known = {one.rank: one for one in control.stragglers}
        before = known.get(announcement.rank)
        if before is not None and _is_same(before, straggler, announcement):
            straggler = before
        else:
            known[announcement.rank] = straggler
            control = control.evolve(stragglers=tuple(known[rank] for rank in sorted(known)))
            writer.save_control(control)
    services.notice(job_id)
    return _announced(straggler, control)


def withdraw_straggler(services: JobServices, job_id: str, rank: int) -> None:
    """Forget what was announced of a rank; nothing where nothing was.

    Raises:
        UnknownJobError: no such job.
        UnknownRankError: no such rank in it.
    """
    with services.store.writing(job_id) as writer:
        require_rank(writer, job_id, rank)
        control = writer.find_control(job_id)
        left = tuple(one for one in control.stragglers if one.rank != rank)
        if left != control.stragglers:
            writer.save_control(control.evolve(stragglers=left))
    services.notice(job_id)


def list_stragglers(services: JobServices, job_id: str) -> tuple[StragglerSummary, ...]:
    """By rank; what was announced of it, then what was detected.

    Raises:
        UnknownJobError: no such job.
    """
    with services.store.reading() as reader:
        require_job(reader, job_id)
        control = reader.find_control(job_id)
    now_unix_s = services.now().timestamp()
    announced = [
        _announced(one, control)
        for one in control.stragglers
        if one.until_unix_s is None or now_unix_s < one.until_unix_s
    ]
    detected = [
        StragglerSummary(
            rank=pace.rank,
            source="detected",
            reason=pace.reason,
            slowdown=pace.slowdown,
            from_unix_s=pace.since_unix_s,
            until_unix_s=None,
            is_in_force=_is_in_force(pace.rank, pace.slowdown, control),
        )
        for pace in control.detected
    ]
    return tuple(sorted([*announced, *detected], key=lambda one: (one.rank, one.source)))


def paces_at(control: JobControl, unix_s: float) -> tuple[RankPace, ...]:
    """What ranks are to be planned with at a moment: of announced and detected the slower one.

    A detected one that is nearly what the rank is planned with already leaves that as it is.
    """
    planned = {pace.rank: pace.slowdown for pace in control.in_force.rank_paces}
    paces = {
        pace.rank: replace(pace, slowdown=planned[pace.rank])
        if _is_nearly(pace.slowdown, planned.get(pace.rank))
        else pace
        for pace in control.detected
    }
    for one in control.stragglers:
        known = paces.get(one.rank)
        if one.holds_at(unix_s) and (known is None or known.slowdown < one.slowdown):
            paces[one.rank] = RankPace(
                rank=one.rank, slowdown=one.slowdown, since_unix_s=one.from_unix_s
            )
    return tuple(paces[rank] for rank in sorted(paces))


def forget_measured_paces(services: JobServices, writer: JobWriter, job_id: str) -> None:
    """Forget what was found against a profile that the job has no more."""
    control = writer.find_control(job_id).evolve(detected=())
    in_force = replace(
        control.in_force,
        rank_paces=paces_at(control, services.now().timestamp()),
        stage_paces=(),
    )
    writer.save_control(control.evolve(in_force=in_force))


def _is_same(before: Straggler, after: Straggler, announcement: Announcement) -> bool:
    """Whether a repetition says nothing new; `now` is when it was first said."""
    same_time = announcement.from_unix_s in (None, before.from_unix_s)
    has_begun = before.from_unix_s <= after.from_unix_s
    same_end = before.until_unix_s == after.until_unix_s
    return before.slowdown == after.slowdown and same_time and has_begun and same_end


def _announced(one: Straggler, control: JobControl) -> StragglerSummary:
    return StragglerSummary(
        rank=one.rank,
        source="announced",
        reason="slow",
        slowdown=one.slowdown,
        from_unix_s=one.from_unix_s,
        until_unix_s=one.until_unix_s,
        is_in_force=_is_in_force(one.rank, one.slowdown, control),
    )


def _is_in_force(rank: int, slowdown: float, control: JobControl) -> bool:
    planned = {pace.rank: pace.slowdown for pace in control.planned_for.rank_paces}
    return _is_nearly(slowdown, planned.get(rank))


def _is_nearly(slowdown: float, planned: float | None) -> bool:
    """Whether a plan for the one is good for the other."""
    return planned is not None and max(slowdown / planned, planned / slowdown) <= NEARLY
