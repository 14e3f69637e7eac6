"""`flyball top`: jobs followed live on a terminal, or printed once."""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

from flyball_client.cli.planner_access import add_planner, asked, open_planner
from flyball_wire.command import Command, CommandError

if TYPE_CHECKING:
    from flyball_client.api.planner_client import PlannerClient
    from flyball_client.cli.top.views import View

T = TypeVar("T")

_SHORTEST_INTERVAL_S, _LONGEST_INTERVAL_S = 0.2, 3600.0
# Where stdout is no terminal and COLUMNS does not say.
_PIPE_SIZE = (120, 24)


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Jobs and what they measure, live, until Ctrl-C or q; figures are called measured,"
        " predicted or emulated."
    )
    parser.add_argument(
        "job", metavar="JOB", nargs="?", help="show this job by its stages (default: all jobs)"
    )
    add_planner(parser)
    parser.add_argument(
        "--interval",
        metavar="S",
        type=_interval,
        default=2.0,
        help=f"ask the planner so often, s, {_SHORTEST_INTERVAL_S:g} to {_LONGEST_INTERVAL_S:g}"
        " (default: %(default)s)",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--once", action="store_true", help="print what there is now, and end")
    form.add_argument(
        "--json", action="store_true", help="print what there is now as JSON, alone, and end"
    )


def _run(arguments: argparse.Namespace) -> int:
    if not arguments.json:
        _check_drawable(arguments.once)
    with open_planner(arguments.planner) as planner:
        # Here, because they bring httpx, and `flyball --help` need not wait for that.
        from flyball_client.cli.top.views import AllJobs, OneJob  # noqa: PLC0415

        if arguments.job is None:
            _show(AllJobs(planner), planner, arguments)
        else:
            _show(OneJob(planner, arguments.job), planner, arguments)
    return 0


def _check_drawable(once: bool) -> None:
    try:
        from flyball_client.cli.top.screen import is_drawable_on  # noqa: PLC0415
    except ImportError:
        raise CommandError(
            "needs the extra 'terminal': pip install '.[terminal]' in a clone of Flyball;"
            " --json works without it"
        ) from None
    if not once and not is_drawable_on():
        raise CommandError("stdout is no terminal to draw on; --once prints what there is now")


def _show(view: View[T], planner: PlannerClient, arguments: argparse.Namespace) -> None:
    if arguments.json:
        reading = asked(planner, arguments.job, view.read)
        print(json.dumps(view.document(reading), indent=2))
    elif arguments.once:
        _print_once(view, planner, arguments.job)
    else:
        _follow(view, planner, arguments)


def _print_once(view: View[T], planner: PlannerClient, job_id: str | None) -> None:
    from flyball_client.cli.top.lines import clipped  # noqa: PLC0415
    from flyball_client.cli.top.marks import Paper, marks_for  # noqa: PLC0415
    from flyball_client.cli.top.polling import Seen  # noqa: PLC0415
    from flyball_client.cli.top.screen import print_once  # noqa: PLC0415
    from flyball_client.cli.top.views import page_of  # noqa: PLC0415

    seen = Seen(reading=asked(planner, job_id, view.read), read_at=_now())
    width = shutil.get_terminal_size(_PIPE_SIZE).columns
    paper = Paper(now=_now(), width=width, marks=marks_for(sys.stdout.encoding))
    page = page_of(view, seen, planner.base_url, paper)
    lines = [clipped(line, width, paper.marks.ellipsis) for line in (*page.head, *page.body)]
    print_once(lines, width=width)


def _follow(view: View[T], planner: PlannerClient, arguments: argparse.Namespace) -> None:
    from flyball_client.cli.top.following import follow  # noqa: PLC0415
    from flyball_client.cli.top.marks import marks_for  # noqa: PLC0415
    from flyball_client.cli.top.polling import Seen  # noqa: PLC0415

    try:
        # Read before anything is drawn: a wrong name or address gets its line and status.
        seen = Seen(reading=asked(planner, arguments.job, view.read), read_at=_now())
        follow(
            view,
            seen,
            address=planner.base_url,
            interval_s=arguments.interval,
            now=_now,
            marks=marks_for(sys.stdout.encoding),
        )
    except KeyboardInterrupt:
        return


def _now() -> datetime:
    return datetime.now().astimezone()


def _interval(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not _SHORTEST_INTERVAL_S <= value <= _LONGEST_INTERVAL_S:
        raise argparse.ArgumentTypeError(
            f"must be from {_SHORTEST_INTERVAL_S:g} to {_LONGEST_INTERVAL_S:g} s, not {text!r}"
        )
    return value


COMMAND = Command(
    summary="jobs and what they measure, live on a terminal", configure=_configure, run=_run
)
