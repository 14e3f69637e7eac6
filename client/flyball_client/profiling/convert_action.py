"""`flyball profile convert` and `join`: profiles from one form of file into another."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from flyball_client.profiling.arguments import (
    add_force,
    add_labels,
    add_output,
    labels_of,
    write_new,
)
from flyball_client.profiling.profile_forms import (
    joined_text,
    merged_text,
    same_ranks_text,
    wide_text,
)
from flyball_profiles.stage_profile import ProfileError
from flyball_wire.command import CommandError


def configure_convert(parser: argparse.ArgumentParser) -> None:
    """Add the action's arguments."""
    parser.add_argument("profile", type=Path, metavar="IN.csv", help="a profile, or a part of one")
    parser.add_argument("output", type=Path, metavar="OUT.csv", help="write this file")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--wide", action="store_true", help="with all four rank columns")
    form.add_argument("--merge", action="store_true", help="all ranks of a stage merged")
    add_labels(parser)
    add_force(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def convert(arguments: argparse.Namespace) -> int:
    """Convert one file; the exit status.

    Raises:
        CommandError: it cannot be read or written.
    """
    labels = labels_of(arguments)
    if labels and (arguments.wide or arguments.merge):
        raise CommandError("a label makes a part of a profile; leave --wide and --merge out")
    file: Path = arguments.profile
    try:
        if arguments.merge:
            text = merged_text(file)
        elif arguments.wide:
            text = wide_text(file)
        else:
            text = same_ranks_text(file, labels)
    except ProfileError as error:
        raise CommandError(str(error)) from None
    return _give(text, arguments)


def configure_join(parser: argparse.ArgumentParser) -> None:
    """Add the action's arguments."""
    parser.add_argument(
        "parts", type=Path, nargs="+", metavar="PART.csv", help="parts of one profile"
    )
    add_output(parser, required=True)
    parser.add_argument("--json", action="store_true", help="print JSON")


def join(arguments: argparse.Namespace) -> int:
    """Join parts into one profile; the exit status.

    Raises:
        CommandError: they cannot be read, do not fit, or it cannot be written.
    """
    try:
        text = joined_text(arguments.parts)
    except ProfileError as error:
        raise CommandError(str(error)) from None
    return _give(text, arguments)


def _give(text: str, arguments: argparse.Namespace) -> int:
    write_new(arguments.output, text, force=arguments.force)
    num_rows = text.count("\n") - 1
    if arguments.json:
        print(json.dumps({"output": str(arguments.output), "num_rows": num_rows}))
    else:
        print(f"{arguments.output}: {num_rows} rows")
    return 0
