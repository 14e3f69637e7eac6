"""`flyball top`: jobs followed live on a terminal, or printed once."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from flyball_client.cli.planner_access import asked, open_planner
from flyball_client.profiling.arguments import add_option, quantity
from flyball_wire.codec import encode
from flyball_wire.command.command import Command, CommandError, add_planner

if TYPE_CHECKING:
    from flyball_client.cli.top.reading import Seen

_SHORTEST_INTERVAL_S, _LONGEST_INTERVAL_S = 0.2, 3600.0
# Where stdout is no terminal and COLUMNS does not say.
_PIPE_SIZE = (120, 24)


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Follow jobs and their measurements until Ctrl-C or q; figures are labelled measured,"
        " predicted or emulated."
    )
    parser.add_argument(
        "job", metavar="JOB", nargs="?", help="show this job by its stages (default: all jobs)"
    )
    add_planner(parser)
    interval = f"polling interval in s, {_SHORTEST_INTERVAL_S:g} to {_LONGEST_INTERVAL_S:g}"
    within = quantity(_SHORTEST_INTERVAL_S, _LONGEST_INTERVAL_S)
    add_option(parser, "--interval", within, "S", interval, default=2.0)
    parser.add_argument("--once", action="store_true", help="print the current state and exit")
    parser.add_argument(
        "--json", action="store_true", help="print the current state as JSON and exit"
    )


def _run(arguments: argparse.Namespace) -> int:
    is_followed = not (arguments.once or arguments.json)
    if is_followed:
        _check_terminal()
    with open_planner(arguments.planner) as planner:
        # Imported here, since httpx would slow down `flyball --help`.
        from flyball_client.cli.top.reading import Read, Seen, local_time, read_job  # noqa: PLC0415

        job_id: str | None = arguments.job
        read: Read = planner.get_overview if job_id is None else partial(read_job, planner, job_id)
        try:
            # Before anything is drawn, so that a wrong name or address is one line.
            seen = Seen(reading=asked(planner, job_id, read), read_at=local_time())
            if is_followed:
                from flyball_client.cli.top.app import follow  # noqa: PLC0415

                return follow(read, seen, planner.base_url, interval_s=arguments.interval)
        except KeyboardInterrupt:
            if is_followed:
                return 0
            raise
    if arguments.json:
        print(json.dumps(encode(seen.reading), indent=2))
    else:
        _print_once(seen, planner.base_url)
    return 0


def _check_terminal() -> None:
    if find_spec("textual") is None:
        raise CommandError(
            "needs the extra 'terminal': pip install '.[terminal]' in a clone of Flyball;"
            " --once and --json work without it"
        )
    is_dumb = os.environ.get("TERM", "").lower() in {"dumb", "unknown"}
    # Textual reads keys from stdin, and draws on stderr.
    if is_dumb or not all(file.isatty() for file in (sys.stdin, sys.stdout, sys.stderr)):
        raise CommandError("there is no terminal to draw on; --once prints the current state")


def _print_once(seen: Seen, address: str) -> None:
    from flyball_client.cli.top.blocks import ASCII  # noqa: PLC0415
    from flyball_client.cli.top.pages import page_of  # noqa: PLC0415

    width = shutil.get_terminal_size(_PIPE_SIZE).columns
    text = page_of(seen, address, seen.read_at, width).text(width)
    try:
        # A stream of text alone, as of a test or a notebook, has no encoding.
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = text.translate(ASCII)
    print(text)


COMMAND = Command(configure=_configure, run=_run)
