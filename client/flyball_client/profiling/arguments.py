"""Arguments of several commands with their checks, output files, and the progress line."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Self, TextIO

from flyball_profiles.gpu_windows import GpuTableError, gpu_window_of
from flyball_profiles.measured_row import RANK_COLUMNS
from flyball_profiles.stage_profile import ProfileError, StageProfile
from flyball_profiles.stage_profile_csv import read_stage_profile
from flyball_wire.command.command import CommandError, argument_type
from flyball_wire.options import Option

_MOST = 1_000_000


def count(lowest: int, highest: int = _MOST) -> Callable[[str], object]:
    """Return argparse's `type` of whole numbers from `lowest` to `highest`."""
    return argument_type(Option(kind=int, bounds=(lowest, highest)))


def quantity(
    lowest: float = 0.0, highest: float | None = None, *, may_be_lowest: bool = True
) -> Callable[[str], object]:
    """Return argparse's `type` of finite numbers within these limits."""
    return argument_type(Option(kind=float, bounds=(lowest, highest), is_above=not may_be_lowest))


def add_option(
    parser: argparse.ArgumentParser,
    flag: str,
    parse: Callable[[str], object],
    metavar: str,
    text: str,
    *,
    default: object = None,
) -> None:
    """Add an option with one value, and its default in the help."""
    if default is not None:
        text += (
            f" (default: {default:g})" if isinstance(default, float) else f" (default: {default})"
        )
    parser.add_argument(flag, type=parse, metavar=metavar, default=default, help=text)


def add_gpu(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose a GPU, and the window of its clocks."""
    add_option(
        parser, "--device", count(0), "N", "CUDA device number of the GPU, as in cuda:N", default=0
    )
    add_option(
        parser,
        *("--gpu", str, "NAME"),
        "take the window of clocks from this entry of the GPU table (a100) or file (./mine.toml)",
    )


def add_labels(parser: argparse.ArgumentParser) -> None:
    """Add the options that label a file as one rank's part."""
    for column in RANK_COLUMNS:
        parser.add_argument(
            f"--{column.replace('_', '-')}",
            type=count(0),
            metavar="N",
            help=f"set {column} of every row to N, for a file that one rank measures",
        )


def labels_of(arguments: argparse.Namespace) -> dict[str, int]:
    """Return the given rank columns and their values."""
    given = {column: getattr(arguments, column) for column in RANK_COLUMNS}
    return {column: value for column, value in given.items() if value is not None}


def add_output(
    parser: argparse.ArgumentParser, *, required: bool, metavar: str = "OUT.csv"
) -> None:
    """Add the arguments for the output file and for overwriting it."""
    parser.add_argument(
        "-o", "--output", type=Path, metavar=metavar, required=required, help="file to write"
    )
    add_force(parser)


def add_force(parser: argparse.ArgumentParser) -> None:
    """Add the option to overwrite a file."""
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")


def emulated_profile(file: Path, stage: int) -> StageProfile:
    """Read the profile of an emulated GPU of this stage.

    Raises:
        CommandError: The file is no profile, or has no such stage.
    """
    try:
        profile = read_stage_profile(file)
    except ProfileError as error:
        raise CommandError(error.located(str(file))) from None
    if not 0 <= stage < profile.num_stages:
        raise CommandError(f"{file}: no stage {stage}; it has 0 to {profile.num_stages - 1}")
    return profile


def known_blocking_power_w(given_w: float | None, table_name: str | None) -> float | None:
    """Return the given blocking power, else the GPU table's; None: not known.

    Raises:
        CommandError: The table has no such GPU.
    """
    if given_w is not None or table_name is None:
        return given_w
    try:
        return gpu_window_of(table_name, os.environ).blocking_power_w
    except GpuTableError as error:
        raise CommandError(f"--gpu: {error}") from None


class WorkLine:
    """Progress line that is overwritten on a terminal, for a `with` block.

    Args:
        stream: Stream to write to; None: nothing is written.
        prints_first: True: the first text is printed where the stream is no terminal.
    """

    def __init__(self, stream: TextIO | None, *, prints_first: bool = False) -> None:
        self._stream = stream
        self._is_terminal = stream is not None and stream.isatty()
        self._prints_next = prints_first
        self._num_shown = 0

    def show(self, text: str) -> None:
        """Replace the text."""
        stream = self._stream
        if stream is None:
            return
        if not self._is_terminal:
            if self._prints_next and text:
                print(text, file=stream, flush=True)
                self._prints_next = False
            return
        # A closed terminal must not end a measurement.
        with contextlib.suppress(OSError, ValueError):
            text = text[: _columns_of(stream) - 1]
            stream.write("\r" + text.ljust(self._num_shown) + ("\r" if not text else ""))
            stream.flush()
            self._num_shown = len(text)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.show("")


def _columns_of(stream: TextIO) -> int:
    return os.get_terminal_size(stream.fileno()).columns or 80
