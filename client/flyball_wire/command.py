"""A `flyball` command: its arguments and its function.

Packages offer commands through the entry point group `flyball.commands`, one `Command` each;
`flyball_client.__main__` finds them by name and imports only the one that is asked for; what
`flyball --help` says of each stands in `flyball_client.cli.summaries`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flyball_wire.closed_loop import RecordedRuns


def flyball_version() -> str:
    """Return the distribution's version; `unknown` when it runs without being installed."""
    try:
        return metadata.version("flyball")
    except metadata.PackageNotFoundError:
        return "unknown"


BAD_INPUT = 2
# EX_TEMPFAIL of sysexits.h: something outside is away or taken; later it may go.
NOT_NOW = 75


class CommandError(Exception):
    """A command cannot do what was asked. Its text is one line: where, and what to do.

    `flyball` prints it on stderr and exits with its status; no traceback.

    Args:
        text: the line.
        status: BAD_INPUT, or NOT_NOW where the same command may succeed later.
    """

    def __init__(self, text: str, *, status: int = BAD_INPUT) -> None:
        super().__init__(text)
        self.status = status


def add_planner(parser: argparse.ArgumentParser) -> None:
    """Add the option for the planner's address."""
    parser.add_argument(
        "--planner", metavar="URL", help="address of the planner (default: FLYBALL_PLANNER_URL)"
    )


RecordedRunsOf = Callable[[str], "RecordedRuns"]
"""Get a job's recorded runs from the planner of `--planner`; raises CommandError."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """One subcommand of `flyball`.

    Attributes:
        configure: adds the command's arguments to its parser.
        run: does it and returns the exit status; raises CommandError for bad input.
        reads_planner: the command has `--planner`, and its arguments get `recorded_runs_of`, a
            RecordedRunsOf: packages that may not import the client call a planner through it.
    """

    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    reads_planner: bool = False
