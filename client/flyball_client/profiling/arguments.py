"""Arguments of several `flyball profile` actions, with their checks."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from flyball_profiles.gpu_windows import GpuTableError, load_gpu_window
from flyball_profiles.measured_row import RANK_COLUMNS
from flyball_profiles.stage_profile import ProfileError, StageProfile
from flyball_profiles.stage_profile_csv import read_stage_profile
from flyball_wire.command import CommandError

_MOST = 1_000_000


def count(lowest: int) -> Callable[[str], int]:
    """A whole number from here on, as argparse's `type`."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and lowest <= int(text[:9]) <= _MOST):
            raise argparse.ArgumentTypeError(
                f"must be a whole number from {lowest} to {_MOST}, not {text!r}"
            )
        return int(text)

    return parse


def quantity(lowest: float = 0.0, *, may_be_lowest: bool = True) -> Callable[[str], float]:
    """A finite number from here on, as argparse's `type`."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < lowest or (value == lowest and not may_be_lowest):
            rule = "at least" if may_be_lowest else "above"
            raise argparse.ArgumentTypeError(
                f"must be a finite number, {rule} {lowest:g}, not {text!r}"
            )
        return value

    return parse


def add_labels(parser: argparse.ArgumentParser) -> None:
    """The options that say which rank a file is a part of."""
    for column in RANK_COLUMNS:
        parser.add_argument(
            f"--{column.replace('_', '-')}",
            type=count(0),
            metavar="N",
            help=f"write {column} N into every row: the file is one rank's part",
        )


def labels_of(arguments: argparse.Namespace) -> dict[str, int]:
    """The rank columns that were given, and their values."""
    given = {column: getattr(arguments, column) for column in RANK_COLUMNS}
    return {column: value for column, value in given.items() if value is not None}


def add_output(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Add the arguments for the output file and for overwriting it."""
    parser.add_argument(
        "-o", "--output", type=Path, metavar="OUT.csv", required=required, help="write this file"
    )
    add_force(parser)


def add_force(parser: argparse.ArgumentParser) -> None:
    """Check that to write over a file."""
    parser.add_argument(
        "--force", action="store_true", help="write over a file that is there already"
    )


def write_new(file: Path, text: str, *, force: bool) -> None:
    """Write a file that is not there yet, unless told to write over it.

    Raises:
        CommandError: it is there, or cannot be written.
    """
    try:
        with file.open("w" if force else "x", encoding="utf-8") as written:
            written.write(text)
    except FileExistsError:
        raise CommandError(f"{file}: is there already; --force writes over it") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL inside the path
        raise cannot_write(file, error) from None


def cannot_write(file: Path, error: Exception) -> CommandError:
    """Return what to say of a file that cannot be written."""
    reason = error.strerror if isinstance(error, OSError) else None
    return CommandError(f"{file}: cannot be written ({reason or error})")


def emulated_profile(file: Path, stage: int) -> StageProfile:
    """The profile that a GPU of this stage is emulated from.

    Raises:
        CommandError: it is none, or has no such stage.
    """
    try:
        profile = read_stage_profile(file)
    except ProfileError as error:
        raise CommandError(error.located(str(file))) from None
    if stage >= profile.num_stages:
        raise CommandError(f"{file}: no stage {stage}; it has 0 to {profile.num_stages - 1}")
    return profile


def known_blocking_power_w(given_w: float | None, table_name: str | None) -> float | None:
    """The blocking power that was given, else the GPU table's; None: neither has it.

    Raises:
        CommandError: the table has no such GPU.
    """
    if given_w is not None or table_name is None:
        return given_w
    try:
        return load_gpu_window(table_name).blocking_power_w
    except GpuTableError as error:
        raise CommandError(f"--gpu: {error}") from None


class WorkLine:
    """Shows the last text given, where the stream is a terminal; a `with` block.

    Args:
        stream: to draw on; None, as a process may lack one: nothing is drawn.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream if stream is not None and stream.isatty() else None
        self._num_shown = 0

    def show(self, text: str) -> None:
        """Draw this over what was drawn before."""
        stream = self._stream
        if stream is None:
            return
        # A terminal that has gone must not end a measurement.
        with contextlib.suppress(OSError, ValueError):
            columns = os.get_terminal_size(stream.fileno()).columns or 80
            text = text[: columns - 1]
            stream.write("\r" + text.ljust(self._num_shown) + ("\r" if not text else ""))
            stream.flush()
            self._num_shown = len(text)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.show("")
