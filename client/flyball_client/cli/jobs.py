"""`flyball jobs`: list, show, change and delete the planner's jobs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flyball_client.cli.jobs_text import (
    job_as_line,
    job_as_text,
    list_as_text,
    stragglers_as_text,
    timetable_as_text,
)
from flyball_client.cli.planner_access import asked, open_planner
from flyball_client.profiling.arguments import count, quantity
from flyball_profiles.stage_profile import ProfileError
from flyball_profiles.stage_profile_csv import parse_stage_profile, profile_text
from flyball_wire.closed_loop import StragglerAnnouncement, Timetable, TimetableWindow, Weekday
from flyball_wire.codec import encode
from flyball_wire.command import Command, CommandError, add_planner
from flyball_wire.plan_options import Effort, Policy, Reconfigure, TargetChange

if TYPE_CHECKING:
    from flyball_client.api.planner_client import PlannerClient

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
    return list_as_text(overview.jobs), encode(overview)["jobs"]


def _show(planner: PlannerClient, arguments: argparse.Namespace) -> Shown:
    job: str = arguments.job
    view = asked(planner, job, lambda: planner.get_job(job))
    stragglers = asked(planner, job, lambda: planner.list_stragglers(job))
    timetable = asked(planner, job, lambda: planner.get_timetable(job))
    document = {
        **encode(view),
        "stragglers": [encode(each) for each in stragglers],
        "timetable": encode(timetable),
    }
    return job_as_text(view, stragglers, timetable), document


def _configure_target(parser: argparse.ArgumentParser) -> None:
    _add_job(parser)
    parser.add_argument(
        "target",
        metavar="TARGET",
        nargs="?",
        help="fastest, slowdown:5%%, deadline:2.9 (s), least-energy or power:8000 (average W)",
    )
    for flag, names, text in (
        ("policy", Policy, "new clock policy"),
        ("reconfigure", Reconfigure, "new reconfiguration, for EnvPipe's policies"),
        ("effort", Effort, "new search effort, for policy frontier"),
    ):
        parser.add_argument(f"--{flag}", choices=tuple(names), help=text)


def _target(planner: PlannerClient, arguments: argparse.Namespace) -> Shown:
    policy, reconfigure, effort = arguments.policy, arguments.reconfigure, arguments.effort
    change = TargetChange(
        target=arguments.target,
        policy=None if policy is None else Policy(policy),
        reconfigure=None if reconfigure is None else Reconfigure(reconfigure),
        effort=None if effort is None else Effort(effort),
    )
    if change == TargetChange():
        raise CommandError("give a TARGET, --policy, --reconfigure or --effort to change")
    view = asked(planner, arguments.job, lambda: planner.put_target(arguments.job, change))
    return job_as_line(view), encode(view)


def _configure_profile(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="put", required=True)
    summary = "store a job's stage profile, and plan the job at once"
    put = verbs.add_parser("put", help=summary, description=summary, allow_abbrev=False)
    _add_job(put)
    put.add_argument("profile", type=Path, metavar="PROFILE.csv", help="stage profile")
    _add_common(put)


def _put_profile(planner: PlannerClient, arguments: argparse.Namespace) -> Shown:
    file: Path = arguments.profile
    try:
        text = profile_text(file)
        parse_stage_profile(text)
    except ProfileError as error:
        raise CommandError(error.located(str(file))) from None
    view = asked(planner, arguments.job, lambda: planner.put_profile_csv(arguments.job, text))
    return job_as_line(view), encode(view)


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
    return stragglers_as_text(stragglers), [encode(each) for each in stragglers]


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
    return timetable_as_text(status), encode(status)


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


def _delete(planner: PlannerClient, arguments: argparse.Namespace) -> Shown:
    job: str = arguments.job
    asked(planner, job, lambda: planner.delete_job(job))
    return f"{job}: deleted, with its plans and measurements", {"job_id": job, "deleted": True}


_ACTIONS: dict[str, _Action] = {
    "list": ("list all jobs, the most recently active first", _nothing, _list),
    "show": ("show a job with its ranks, stragglers and timetable", _add_job, _show),
    "target": ("change a job's target, policy or effort", _configure_target, _target),
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


def _add_common(parser: argparse.ArgumentParser) -> None:
    add_planner(parser)
    parser.add_argument("--json", action="store_true", help="print JSON only")


def _configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, (summary, configure, _) in _ACTIONS.items():
        action = actions.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        configure(action)
        if name != "profile":  # its options stand behind `put`
            _add_common(action)


def _run(arguments: argparse.Namespace) -> int:
    _, _, act = _ACTIONS[arguments.action]
    with open_planner(arguments.planner) as planner:
        text, document = act(planner, arguments)
    print(json.dumps(document, indent=2) if arguments.json else text)
    return 0


COMMAND = Command(configure=_configure, run=_run)
