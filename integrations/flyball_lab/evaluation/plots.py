"""Figures as pictures: normalized throughput and energy, a group of bars for each model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

from flyball_lab.evaluation.configurations import FITTED, GIVEN
from flyball_lab.evaluation.figures import Figure
from flyball_lab.evaluation.tables import Row
from flyball_wire.whole_file import result_file

SUFFIXES = (".png", ".svg")
# EnvPipe's from grey to orange, Flyball's in blues.
_COLORS = {
    "baseline": "0.35",
    "uniform": "0.65",
    "envelope, 1F1B, balanced": "#f6d5a8",
    "envelope, EnvPipe's order, default": "#f3b562",
    "envelope, EnvPipe's order, greedy": "#e07b39",
    "envelope, EnvPipe's order, balanced": "#b8420f",
    "frontier, 1F1B": "#7fb2e5",
    "frontier, EnvPipe's order": "#1f5fa8",
}
# Inches of a bar and between groups, and a group's share of its place.
_BAR_HEIGHT, _GROUP_GAP, _GROUP_SHARE = 0.17, 0.1, 0.86
_DPI = 150


def write_plots(figure: Figure, rows: Sequence[Row], folder: Path) -> list[Path]:
    """Draw the figure into the folder, as PNG and as SVG.

    Raises:
        CommandError: a file cannot be written.
    """
    picture = _draw(figure, rows)
    paths = [folder / f"figure-{figure.name}{suffix}" for suffix in SUFFIXES]
    for path in paths:
        with result_file(path) as part:
            picture.savefig(part, format=path.suffix[1:], dpi=_DPI)
    return paths


def _draw(figure: Figure, rows: Sequence[Row]) -> Picture:
    height = 1.9 + _BAR_HEIGHT * len(figure.runs) + _GROUP_GAP * len(figure.groups)
    picture = Picture(figsize=(10, height), layout="constrained")
    throughput, energy = picture.subplots(1, 2, sharey=True, width_ratios=[1, 1.6])
    for axes, quantity in ((throughput, "throughput"), (energy, "energy")):
        _bars(axes, figure, rows, f"normalized_{quantity}")
        axes.set_xlabel(
            f"emulated {quantity} / that of {rows[0]['compared_with']}", fontsize="small"
        )
        axes.set_xlim(0, 1.15)
        axes.axvline(1, color="0.2", linewidth=0.6, zorder=0)
        axes.grid(axis="x", alpha=0.3)
        axes.set_axisbelow(True)
        axes.tick_params(axis="y", length=0)
    throughput.set_yticks(range(len(figure.groups)), list(figure.groups), fontsize="small")
    throughput.set_ylim(len(figure.groups) - 0.4, -0.6)  # the first group on top
    handles, labels = energy.get_legend_handles_labels()
    picture.legend(handles, labels, loc="outside lower center", ncols=3, fontsize="small")
    # A fitted profile must not be taken for a measurement.
    is_mixed = any(row["profile_origin"] != FITTED for row in rows)
    exception = f"; those marked {GIVEN}, given by the user" if is_mixed else ""
    origin = f"emulated GPUs; stage profiles {FITTED}{exception}"
    picture.suptitle(f"{figure.title}\n{origin}", fontsize="medium")
    return picture


def _bars(axes: Axes, figure: Figure, rows: Sequence[Row], column: str) -> None:
    """Draw a bar a run, in the order of the table, with one colour and legend entry a label."""
    labels = list(dict.fromkeys(str(row["label"]) for row in rows))
    thickness = _GROUP_SHARE / len(labels)
    bars: dict[str, list[tuple[float, float]]] = {label: [] for label in labels}
    of_groups = iter(rows)
    for position, group in enumerate(figure.groups.values()):
        for _ in group:
            row = next(of_groups)
            label = str(row["label"])
            offset = labels.index(label) - (len(labels) - 1) / 2
            bars[label].append((position + offset * thickness, float(row[column] or 0.0)))
    for label, of_label in bars.items():
        places, values = zip(*of_label, strict=True)
        drawn = axes.barh(places, values, thickness * 0.92, label=label, color=_COLORS[label])
        numbers = axes.bar_label(
            drawn, [f"{value:.3f}" for value in values], padding=3, fontsize=6.5
        )
        for number in numbers:  # the line at 1 must not run through one
            number.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.5})
