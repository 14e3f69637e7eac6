"""Draws plan time over the number of instructions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

PLOT_SUFFIXES = (".png", ".svg")
TICKS_S = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)


def write_scale_plot(
    seconds_by_gpu: Mapping[str, Sequence[tuple[str, int, float]]], limit_s: float, path: Path
) -> None:
    """Write the plot, both axes logarithmic.

    Args:
        seconds_by_gpu: per GPU, (size as text, number of instructions, s) by rising size.
        limit_s: of the largest size, s.
        path: ends in one of PLOT_SUFFIXES.
    """
    # Not at the top: what this process holds when it starts another counts as that one's memory.
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for (name, sizes), marker in zip(seconds_by_gpu.items(), "os", strict=False):
        axes.plot(
            [instructions for _, instructions, _ in sizes],
            [seconds for _, _, seconds in sizes],
            marker=marker,
            label=name,
        )
    sizes = next(iter(seconds_by_gpu.values()))
    axes.axhline(limit_s, color="grey", linestyle="--", linewidth=1)
    axes.annotate(
        f"limit at the largest: {limit_s:g} s",
        (sizes[0][1], limit_s),
        xytext=(0, -12),
        textcoords="offset points",
        color="grey",
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    for index, (name, instructions, seconds) in enumerate(sizes):
        # To the left above and to the right below: neighbouring sizes stay apart.
        is_left = index % 2 == 0
        axes.annotate(
            name,
            (instructions, seconds),
            xytext=(-8, 6) if is_left else (8, -22),
            textcoords="offset points",
            horizontalalignment="right" if is_left else "left",
        )
    axes.margins(x=0.1)
    lowest_s = min(seconds for gpu in seconds_by_gpu.values() for _, _, seconds in gpu)
    shown_s = [second for second in TICKS_S if second <= 2 * limit_s]
    axes.set_yticks(shown_s, [f"{second:g}" for second in shown_s])
    axes.set_ylim(lowest_s / 2, 2 * limit_s)
    axes.minorticks_off()
    axes.set_xlabel("instructions of an iteration (stages x microbatches at the points)")
    axes.set_ylabel("flyball plan, whole process, s")
    axes.set_title("A plan's time over the pipeline's size (target fastest, effort normal)")
    axes.grid(visible=True, alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=150)
