"""`flyball jobs`: list, show, change and delete the planner's jobs."""

from __future__ import annotations

import argparse
import itertools
import json
import shlex
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flyball_client.api.errors import PlannerRefusedError, PlannerUnavailableError
from flyball_client.cli.figures import aligned, state_text, to_do
from flyball_client.cli.planner_access import asked, open_planner
from flyball_client.profiling.arguments import count, quantity
from flyball_profiles.stage_profile import ProfileError
from flyball_profiles.stage_profile_csv import parse_stage_profile, profile_text
from flyball_wire.closed_loop import (
    Straggler,
    StragglerAnnouncement,
    Timetable,
    TimetableStatus,
    TimetableWindow,
    Weekday,
)
from flyball_wire.codec import encode
from flyball_wire.command.command import (
    Command,
    CommandError,
    add_options,
    add_planner,
    argument_type,
)
from flyball_wire.messages import JobRegistration, JobView, RankView
from flyball_wire.options import options_of
from flyball_wire.plan_options import Policy, TargetChange
from flyball_wire.read_models import JobOverview

if TYPE_CHECKING:
    from flyball_client.api.planner_client import PlannerClient

_POLL_S = 1.0

Shown = tuple[str, Any]
"""Result of an action as text, and as JSON."""
_Action = tuple[
    str,
    Callable[[argparse.ArgumentParser], None],
    "Callable[[PlannerClient, argparse.Namespace], Shown]",
]


def _nothing(parser: argparse.ArgumentParser) -> None:
    del parser


def _add_job(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", help="name of the job")


def _list(planner: PlannerClient, arguments: argparse.Namespace) -> Shown:
    del arguments
    overview = asked(planner, None, planner.get_overview)
    return _list_as_text(overview.jobs), encode(overview)["jobs"]


def _show(planner: PlannerClient, arguments: argparse.Namespace) -> Shown:
    job: str = arguments.job
    view = asked(planner, job, lambda: planner.get_job(job))
    stragglers = asked(planner, job, lambda: planner.list_stragglers(job))
    timetable = asked(planner, job, lambda: planner.get_timetable(job))
    document = {
        **encode(view),
        "stragglers": [encode(straggler) for straggler in stragglers],
        "timetable": encode(timetable),
    }
    return _job_as_text(view, stragglers, timetable), document


_CHANGED_BY_NAME = ("policy", "reconfigure", "effort")


def _configure_target(parser: argparse.ArgumentParser) -> None:
    _add_job(parser)
    target = options_of(TargetChange)["target"]
    parser.add_argument(
        "target",
        metavar=target.metavar,
        nargs="?",
        type=argument_type(target),
        help=target.help(note="").replace("%", "%%"),
    )
    add_options(parser, TargetChange, _CHANGED_BY_NAME, note="")


def _target(planner: PlannerClient, arguments: argparse.Namespace) -> Shown:
    change = TargetChange(
        target=arguments.target, **{name: getattr(arguments, name) for name in _CHANGED_BY_NAME}
    )
    if change == TargetChange():
        raise CommandError("give a TARGET, --policy, --reconfigure or --effort to change")
    view = asked(planner, arguments.job, lambda: planner.put_target(arguments.job, change))
    return _job_as_line(view), encode(view)


# Clocks as without a plan: the highest of the profile.
_OFF = TargetChange(target="fastest", policy=Policy.BASELINE)


def _configure_off(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", nargs="?", help="name of the job")
    parser.add_argument("--all", action="store_true", help="all jobs that are not over")


def _off(planner: PlannerClient, arguments: argparse.Namespace) -> Shown:
    if (arguments.job is None) != arguments.all:
        raise CommandError("give a JOB, or --all")
    if not arguments.all:
        line, view = _switched_off(planner, arguments.job)
        return line, [encode(view)]
    listed = asked(planner, None, planner.list_jobs)
    names = [job.job_id for job in listed if not job.state.is_over]
    lines: list[str] = []
    views: list[JobView] = []
    failed: list[str] = []
    for name in names:
        try:
            line, view = _switched_off(planner, name)
        except CommandError as error:
            failed.append(f"{name}: {error}")
        else:
            lines.append(line)
            views.append(view)
    shown = "\n".join(lines) or "no jobs", [encode(view) for view in views]
    if failed:
        if lines or arguments.json:
            _print(arguments, shown)
        raise CommandError(f"{len(failed)} of {len(names)} not switched off; {'; '.join(failed)}")
    return shown


def _switched_off(planner: PlannerClient, job_id: str) -> tuple[str, JobView]:
    """Put a job to its highest clocks; return how to undo that, and the job."""
    before = asked(planner, job_id, lambda: planner.get_job(job_id)).registration
    timetable = asked(planner, job_id, lambda: planner.get_timetable(job_id)).timetable
    if timetable is not None:  # its targets are for the policy before
        asked(planner, job_id, lambda: planner.delete_timetable(job_id))
    view = asked(planner, job_id, lambda: planner.put_target(job_id, _OFF))
    undo: list[tuple[str, ...]] = []
    if (before.target, before.policy) != (_OFF.target, _OFF.policy):
        undo.append(("target", job_id, before.target, "--policy", before.policy))
    if timetable is not None:
        windows = [("--window", *_window_words(window)) for window in timetable.windows]
        zone = ("--timezone", timetable.timezone)
        undo.append(("timetable", job_id, *zone, *itertools.chain.from_iterable(windows)))
    lines = [_job_as_line(view), *(f"  undo: flyball jobs {shlex.join(words)}" for words in undo)]
    return "\n".join(lines), view


def _configure_profile(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="put", required=True)
    summary = "store a job's stage profile, and plan the job at once"
    put = verbs.add_parser("put", help=summary, description=summary, allow_abbrev=False)
    _add_job(put)
    put.add_argument("profile", type=Path, metavar="PROFILE.csv", help="stage profile")
    put.add_argument(
        "--wait",
        metavar="S",
        type=quantity(),
        default=0.0,
        help="time in s to wait for the job's registration by its rank 0 (default: %(default)g)",
    )
    _add_common(put)


def _put_profile(planner: PlannerClient, arguments: argparse.Namespace) -> Shown:
    file: Path = arguments.profile
    try:
        text = profile_text(file)
        parse_stage_profile(text)
    except ProfileError as error:
        raise CommandError(error.located(str(file))) from None
    _await_registration(planner, arguments.job, arguments.wait)
    view = asked(planner, arguments.job, lambda: planner.put_profile_csv(arguments.job, text))
    return _job_as_line(view), encode(view)


def _await_registration(planner: PlannerClient, job_id: str, wait_s: float) -> None:
    """Wait until the planner knows the job, or the time is over."""
    give_up_s = time.monotonic() + wait_s
    while time.monotonic() < give_up_s:
        try:
            planner.get_job(job_id)
        except PlannerRefusedError as error:
            if error.status != 404:
                return  # which the call itself says
        except PlannerUnavailableError:
            pass
        else:
            return
        time.sleep(min(_POLL_S, max(0.0, give_up_s - time.monotonic())))


def _configure_straggler(parser: argparse.ArgumentParser) -> None:
    _add_job(parser)
    parser.add_argument(
        "rank", metavar="RANK", type=count(0), nargs="?", help="rank of the slow GPU"
    )
    parser.add_argument(
        "slowdown",
        metavar="SLOWDOWN",
        type=quantity(1.0),
        nargs="?",
        help="slowdown factor of its instructions, at least 1",
    )
    parser.add_argument(
        "--from", dest="start", metavar="TIME", help="start, ISO 8601 with an offset"
    )
    parser.add_argument("--until", metavar="TIME", help="end, in the same form")
    parser.add_argument("--withdraw", action="store_true", help="withdraw the announcement")


def _straggler(planner: PlannerClient, arguments: argparse.Namespace) -> Shown:
    job: str = arguments.job
    rank: int | None = arguments.rank
    slowdown: float | None = arguments.slowdown
    if arguments.withdraw:
        if rank is None or slowdown is not None:
            raise CommandError("--withdraw takes a RANK alone")
        asked(planner, job, lambda: planner.delete_straggler(job, rank))
    elif rank is not None and slowdown is not None:
        announcement = StragglerAnnouncement(
            rank=rank, slowdown=slowdown, from_time=arguments.start, until_time=arguments.until
        )
        asked(planner, job, lambda: planner.post_straggler(job, announcement))
    elif rank is not None or arguments.start or arguments.until:
        raise CommandError("give RANK and SLOWDOWN to announce, or RANK --withdraw")
    stragglers = asked(planner, job, lambda: planner.list_stragglers(job))
    return _stragglers_as_text(stragglers), [encode(straggler) for straggler in stragglers]


def _configure_timetable(parser: argparse.ArgumentParser) -> None:
    _add_job(parser)
    parser.add_argument(
        "--window",
        action="append",
        nargs="+",
        metavar="WORD",
        help="FROM UNTIL TARGET [DAYS], as in 22:00 06:00 power:8000 mon,tue, or with ISO 8601"
        " times with an offset; repeatable; replaces the timetable",
    )
    parser.add_argument(
        "--timezone",
        metavar="NAME",
        help="time zone of the windows, such as Europe/Berlin (default: UTC)",
    )
    parser.add_argument("--delete", action="store_true", help="delete the timetable")


def _timetable(planner: PlannerClient, arguments: argparse.Namespace) -> Shown:
    job: str = arguments.job
    if arguments.delete and (arguments.window or arguments.timezone):
        raise CommandError("--delete takes no other option")
    if arguments.timezone and not arguments.window:
        raise CommandError("--timezone needs a --window")
    if arguments.delete:
        asked(planner, job, lambda: planner.delete_timetable(job))
    elif arguments.window:
        windows = tuple(map(_window, arguments.window))
        timetable = Timetable(windows=windows, timezone=arguments.timezone or "UTC")
        asked(planner, job, lambda: planner.put_timetable(job, timetable))
    status = asked(planner, job, lambda: planner.get_timetable(job))
    return _timetable_as_text(status), encode(status)


def _window(words: list[str]) -> TimetableWindow:
    if len(words) not in (3, 4):
        raise CommandError(f"--window must be FROM UNTIL TARGET [DAYS], not {' '.join(words)!r}")
    start, end, target, *days = words
    names = days[0].split(",") if days else None
    if names is not None and not set(names) <= set(Weekday):
        raise CommandError(f"--window: days are {','.join(Weekday)}, not {days[0]!r}")
    return TimetableWindow(
        from_time=start,
        until_time=end,
        target=target,
        days=None if names is None else tuple(map(Weekday, names)),
    )


def _window_words(window: TimetableWindow) -> tuple[str, ...]:
    """Return what `_window` reads."""
    days = () if window.days is None else (",".join(window.days),)
    return (window.from_time, window.until_time, window.target, *days)


def _delete(planner: PlannerClient, arguments: argparse.Namespace) -> Shown:
    job: str = arguments.job
    asked(planner, job, lambda: planner.delete_job(job))
    return f"{job}: deleted, with its plans and measurements", {"job_id": job, "deleted": True}


_ACTIONS: dict[str, _Action] = {
    "list": ("list all jobs, the most recently active first", _nothing, _list),
    "show": ("show a job with its ranks, stragglers and timetable", _add_job, _show),
    "target": ("change a job's target, policy or effort", _configure_target, _target),
    "off": (
        "run a job, or all, at the highest clocks; training goes on",
        _configure_off,
        _off,
    ),
    "profile": ("give a job its stage profile", _configure_profile, _put_profile),
    "straggler": (
        "list a job's stragglers, announce one, or withdraw it",
        _configure_straggler,
        _straggler,
    ),
    "timetable": (
        "show a job's targets by the time of day, or replace or delete them",
        _configure_timetable,
        _timetable,
    ),
    "delete": ("delete a job whose ranks have ended", _add_job, _delete),
}


def _add_common(parser: argparse.ArgumentParser, *, is_behind: bool = True) -> None:
    """Add the options of all actions; behind the action they override those before it."""
    add_planner(parser, default=argparse.SUPPRESS if is_behind else None)
    default = argparse.SUPPRESS if is_behind else False
    parser.add_argument("--json", action="store_true", default=default, help="print JSON only")


def _configure(parser: argparse.ArgumentParser) -> None:
    _add_common(parser, is_behind=False)
    actions = parser.add_subparsers(dest="action", metavar="[ACTION]", help="default: list")
    parser.set_defaults(action="list")
    for name, (summary, configure, _) in _ACTIONS.items():
        action = actions.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        configure(action)
        if name != "profile":  # its options stand behind `put`
            _add_common(action)


def _run(arguments: argparse.Namespace) -> int:
    _, _, act = _ACTIONS[arguments.action]
    with open_planner(arguments.planner) as planner:
        _print(arguments, act(planner, arguments))
    return 0


def _print(arguments: argparse.Namespace, shown: Shown) -> None:
    text, document = shown
    print(json.dumps(document, indent=2) if arguments.json else text)


# ------------------------------------------------------------------ texts

_SHOWN_RANKS = 16
_HEADINGS = ("JOB", "STATE", "RANKS", "PLAN", "POLICY", "TARGET", "GPUS")


def _list_as_text(jobs: Sequence[JobOverview]) -> str:
    """Return a line for each job, the most recently active first, then what has to be done."""
    if not jobs:
        return "no jobs; a job appears when its ranks register"
    lines = aligned([_HEADINGS, *map(_list_row, jobs)], "<" * len(_HEADINGS))
    return "\n".join([*lines, *(f"! {job.job_id}: {text}" for job in jobs if (text := to_do(job)))])


def _job_as_line(job: JobView) -> str:
    """Return name, state, plan and target of a job."""
    plan = "no plan yet" if job.newest_version is None else f"plan {job.newest_version}"
    options = job.registration
    line = f"{job.job_id}: {state_text(job)}, {plan} ({options.policy}, target {options.target})"
    if job.missed is not None:
        line = f"{line}; {job.missed.text}"
    return line if job.problem is None else f"{line}; {job.problem}"


def _job_as_text(job: JobView, stragglers: Sequence[Straggler], timetable: TimetableStatus) -> str:
    """Return a job with its ranks, stragglers and timetable."""
    registered = job.registration
    kind = "emulated" if registered.emulated else "real"
    lines = [
        f"{job.job_id}: {state_text(job)}, on {kind} GPUs; registered {_moment(job.created_at)}",
        f"  {registered.num_stages} stages, {registered.num_microbatches} microbatches,"
        f" {registered.num_expected_ranks} ranks; schedule {registered.schedule}",
        f"  policy {registered.policy}, reconfigure {registered.reconfiguration}, target"
        f" {registered.target}, effort {registered.effort}; {_blocking_power(registered)}",
        f"  plan: {_plan_text(job)}",
    ]
    if (action := to_do(job)) is not None:
        lines.append(f"  ! {action}")
    lines += [f"  note: {note}" for note in job.notes]
    lines += [f"  {_rank_line(rank)}" for rank in job.ranks[:_SHOWN_RANKS]]
    if (num_more := len(job.ranks) - _SHOWN_RANKS) > 0:
        lines.append(f"  and {num_more} more ranks (--json has all)")
    if stragglers:
        lines += [f"  straggler {line}" for line in map(_straggler_line, stragglers)]
    if timetable.timetable is not None:
        lines += [f"  {line}" for line in _timetable_as_text(timetable).splitlines()]
    return "\n".join(lines)


def _stragglers_as_text(stragglers: Sequence[Straggler]) -> str:
    """Return a line for each straggler."""
    return "\n".join(map(_straggler_line, stragglers)) or "no stragglers"


def _timetable_as_text(status: TimetableStatus) -> str:
    """Return the windows, and the target now."""
    if status.timetable is None:
        return f"no timetable; target {status.current_target} at all times"
    change = "" if status.next_change is None else f", next change {_moment(status.next_change)}"
    head = f"timetable ({status.timetable.timezone}): now {status.current_target}{change}"
    return "\n".join([head, *(f"  {_window_line(window)}" for window in status.timetable.windows)])


def _list_row(job: JobOverview) -> tuple[str, ...]:
    plan = "-" if job.newest_version is None else str(job.newest_version)
    if job.newest_version != job.active_version:
        active = "none" if job.active_version is None else str(job.active_version)
        plan += f" ({active} in force)"
    return (
        job.job_id,
        state_text(job),
        f"{job.num_present}/{job.num_ranks}",
        plan,
        job.policy,
        job.target,
        "emulated" if job.emulated else "real",
    )


def _plan_text(job: JobView) -> str:
    if job.newest_version is None:
        return "none yet"
    active = "none" if job.active_version is None else f"version {job.active_version}"
    return f"{active} in force, newest version {job.newest_version}"


def _blocking_power(registered: JobRegistration) -> str:
    if registered.blocking_power_w is not None:
        powers = ", ".join(f"{power_w:g}" for power_w in registered.blocking_power_w)
        return f"blocking power {powers} W"
    return "blocking power measured" if registered.gpu is None else f"GPU {registered.gpu}"


def _rank_line(rank: RankView) -> str:
    plan = "no plan" if rank.acknowledged_version is None else f"plan {rank.acknowledged_version}"
    left = ", left" if rank.has_left else ""
    return f"rank {rank.rank}: stage {rank.stage}, {rank.gpu_name} at {rank.host}, {plan}{left}"


def _straggler_line(straggler: Straggler) -> str:
    start = "" if straggler.from_time is None else f", from {_moment(straggler.from_time)}"
    end = "" if straggler.until_time is None else f", until {_moment(straggler.until_time)}"
    planned = "plan adapted to it" if straggler.is_planned else "plan not yet adapted to it"
    return (
        f"rank {straggler.rank} takes {straggler.slowdown:.4g} times as long as profiled,"
        f" {straggler.source} ({straggler.reason}){start}{end}; {planned}"
    )


def _moment(time: str) -> str:
    """Return an ISO 8601 time to the second, in UTC."""
    return f"{datetime.fromisoformat(time).astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _window_line(window: TimetableWindow) -> str:
    days = "" if window.days is None else f" on {','.join(window.days)}"
    return f"{window.from_time} to {window.until_time}{days}: {window.target}"


COMMAND = Command(configure=_configure, run=_run)
