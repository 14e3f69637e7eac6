"""Files of plots: their formats, an empty figure, and writing it. Needs matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flyball_wire.command.command import CommandError
from flyball_wire.command.whole_file import result_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLOT_SUFFIXES = (".svg", ".png")


def check_plot_path(path: Path) -> None:
    """Refuse a file of another format.

    Raises:
        CommandError: the name has another suffix.
    """
    if path.suffix not in PLOT_SUFFIXES:
        raise CommandError(f"--plot: {path} must end in {' or '.join(PLOT_SUFFIXES)}")


def new_figure(width_in: float, height_in: float) -> Figure:
    """Return an empty figure of this size in inches.

    Raises:
        CommandError: matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - only plots need it
    except ImportError:
        raise CommandError(
            "--plot needs the extra 'plot': pip install '.[plot]' in a clone of Flyball"
        ) from None
    return Figure(figsize=(width_in, height_in), layout="constrained")


def save_figure(figure: Figure, path: Path) -> None:
    """Write the figure.

    Raises:
        CommandError: the file cannot be written.
    """
    with result_file(path, option="--plot") as part:
        figure.savefig(part, format=path.suffix[1:], dpi=150)
