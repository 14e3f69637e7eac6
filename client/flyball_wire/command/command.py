"""A `flyball` command: its arguments and its function.

Packages offer commands through the entry point group `flyball.commands`, one `Command` each;
`flyball_client.__main__` finds them by name and imports only the one that is asked for; what
`flyball --help` says of each stands in `flyball_client.cli.summaries`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

from flyball_wire.options import Option, OptionError, options_of

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


def add_planner(parser: argparse.ArgumentParser, *, default: str | None = None) -> None:
    """Add the option for the planner's address; `default` may be `argparse.SUPPRESS`."""
    parser.add_argument(
        "--planner",
        metavar="URL",
        default=default,
        help="address of the planner (default: FLYBALL_PLANNER_URL)",
    )


# A parser or one of its groups.
Arguments = argparse._ActionsContainer  # pyright: ignore[reportPrivateUsage]


def add_options(
    parser: Arguments, owner: type[object], names: Iterable[str], *, note: str | None = None
) -> None:
    """Add options that a dataclass declares, as `add_option` does."""
    for name in names:
        add_option(parser, options_of(owner)[name], note=note)


def add_option(parser: Arguments, declared: Option, *, note: str | None = None) -> None:
    """Add a declared option; its argument is None where it is not given.

    Args:
        parser: parser of a command or one of its groups.
        declared: declaration of the option.
        note: end of its help; None: the default of the offline commands.
    """
    how: dict[str, Any] = {"action": "store_false", "default": None}
    if declared.kind is not bool:
        how = {"metavar": declared.metavar, "type": argument_type(declared)}
    help_text = declared.help(note).replace("%", "%%")
    parser.add_argument(declared.option_string, dest=declared.name, help=help_text, **how)


def argument_type(declared: Option) -> Callable[[str], object]:
    """Return argparse's `type` of a declared option."""

    def read(text: str) -> object:
        if declared.null_word and text == declared.null_word:
            return None
        try:
            return declared.read_text(text)
        except OptionError as error:
            raise argparse.ArgumentTypeError(error.message) from None

    return read


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
