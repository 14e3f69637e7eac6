"""Jobs as text for `flyball jobs`."""

from __future__ import annotations

from collections.abc import Sequence

from flyball_client.cli.figures import aligned
from flyball_wire.closed_loop import Straggler, TimetableStatus, TimetableWindow
from flyball_wire.messages import JobRegistration, JobView, RankView
from flyball_wire.read_models import JobOverview

_SHOWN_RANKS = 16
_HEADINGS = ("JOB", "STATE", "RANKS", "PLAN", "POLICY", "TARGET", "GPUS")


def list_as_text(jobs: Sequence[JobOverview]) -> str:
    """Return a line for each job, the most recently active first."""
    if not jobs:
        return "no jobs; a job appears when its ranks register"
    return "\n".join(aligned([_HEADINGS, *map(_row, jobs)], "<" * len(_HEADINGS)))


def job_as_line(job: JobView) -> str:
    """Return name, state, plan and target of a job."""
    plan = "no plan yet" if job.newest_version is None else f"plan {job.newest_version}"
    options = job.registration
    line = f"{job.job_id}: {job.state}, {plan} ({options.policy}, target {options.target})"
    if job.missed is not None:
        line = f"{line}; {job.missed.text}"
    return line if job.problem is None else f"{line}; {job.problem}"


def job_as_text(job: JobView, stragglers: Sequence[Straggler], timetable: TimetableStatus) -> str:
    """Return a job with its ranks, stragglers and timetable."""
    registered = job.registration
    kind = "emulated" if registered.emulated else "real"
    lines = [
        f"{job.job_id}: {job.state}, on {kind} GPUs; registered {job.created_at}",
        f"  {registered.num_stages} stages, {registered.num_microbatches} microbatches,"
        f" {registered.num_expected_ranks} ranks; schedule {registered.schedule}",
        f"  policy {registered.policy}, reconfigure {registered.reconfiguration}, target"
        f" {registered.target}, effort {registered.effort}; {_blocking_power(registered)}",
        f"  plan: {_plan(job)}",
    ]
    if job.problem is not None:
        lines.append(f"  problem: {job.problem}")
    lines += [f"  note: {note}" for note in job.notes]
    lines += [f"  {_rank(rank)}" for rank in job.ranks[:_SHOWN_RANKS]]
    if (num_more := len(job.ranks) - _SHOWN_RANKS) > 0:
        lines.append(f"  and {num_more} more ranks (--json has all)")
    if stragglers:
        lines += [f"  straggler {line}" for line in map(_straggler, stragglers)]
    if timetable.timetable is not None:
        lines += [f"  {line}" for line in timetable_as_text(timetable).splitlines()]
    return "\n".join(lines)


def stragglers_as_text(stragglers: Sequence[Straggler]) -> str:
    """Return a line for each straggler."""
    return "\n".join(map(_straggler, stragglers)) or "no stragglers"


def timetable_as_text(status: TimetableStatus) -> str:
    """Return the windows, and the target now."""
    if status.timetable is None:
        return f"no timetable; target {status.current_target} at all times"
    change = "" if status.next_change is None else f", next change {status.next_change}"
    head = f"timetable ({status.timetable.timezone}): now {status.current_target}{change}"
    return "\n".join([head, *(f"  {_window(one)}" for one in status.timetable.windows)])


def _row(job: JobOverview) -> tuple[str, ...]:
    plan = "-" if job.newest_version is None else str(job.newest_version)
    if job.newest_version != job.active_version:
        active = "none" if job.active_version is None else str(job.active_version)
        plan += f" ({active} in force)"
    return (
        job.job_id,
        str(job.state),
        f"{job.num_present}/{job.num_ranks}",
        plan,
        job.policy,
        job.target,
        "emulated" if job.emulated else "real",
    )


def _plan(job: JobView) -> str:
    if job.newest_version is None:
        return "none yet"
    active = "none" if job.active_version is None else f"version {job.active_version}"
    return f"{active} in force, newest version {job.newest_version}"


def _blocking_power(registered: JobRegistration) -> str:
    if registered.blocking_power_w is not None:
        powers = ", ".join(f"{power_w:g}" for power_w in registered.blocking_power_w)
        return f"blocking power {powers} W"
    return "blocking power measured" if registered.gpu is None else f"GPU {registered.gpu}"


def _rank(rank: RankView) -> str:
    plan = "no plan" if rank.acknowledged_version is None else f"plan {rank.acknowledged_version}"
    left = ", left" if rank.has_left else ""
    return f"rank {rank.rank}: stage {rank.stage}, {rank.gpu_name} at {rank.host}, {plan}{left}"


def _straggler(straggler: Straggler) -> str:
    start = "" if straggler.from_time is None else f", from {straggler.from_time}"
    end = "" if straggler.until_time is None else f", until {straggler.until_time}"
    planned = "planned for" if straggler.is_planned else "not planned for yet"
    return (
        f"rank {straggler.rank}: {straggler.slowdown:g} times as slow as profiled,"
        f" {straggler.source} ({straggler.reason}){start}{end}; {planned}"
    )


def _window(window: TimetableWindow) -> str:
    days = "" if window.days is None else f" on {','.join(window.days)}"
    return f"{window.from_time} to {window.until_time}{days}: {window.target}"
