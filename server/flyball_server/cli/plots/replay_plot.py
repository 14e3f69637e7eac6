"""Plot of a replay: measured against predicted, and the recorded plans. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flyball_server.cli.plots.plot_file import new_figure, save_figure
from flyball_server.replay.replayed_runs import Replay, RunReplay

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PREDICTED, MEASURED, FITTED = "tab:blue", "tab:orange", "0.6"


def write_replay_plot(
    replays: Sequence[Replay],
    frontiers: Sequence[Sequence[tuple[float, float]]],
    path: Path,
) -> None:
    """Draw a row of three panels for each recording into an .svg or .png file.

    Args:
        replays: at least one.
        frontiers: per replay, time in s and energy in J of the predicted frontier's plans, may be
            empty.
        path: of the file.

    Raises:
        CommandError: matplotlib is missing, or the file cannot be written.
    """
    figure = new_figure(14, 4.4 * len(replays))
    rows = figure.subplots(len(replays), 3, squeeze=False)
    for axes, replayed, frontier in zip(rows, replays, frontiers, strict=True):
        _draw_agreement(axes[0], replayed, is_energy=False)
        _draw_agreement(axes[1], replayed, is_energy=True)
        _draw_plans(axes[2], replayed, frontier)
    save_figure(figure, path)


def _draw_agreement(axes: Axes, replayed: Replay, *, is_energy: bool) -> None:
    """Draw measured over predicted, with the intervals; on the diagonal both agree."""
    for is_fitted, color, label in (
        (True, FITTED, "fitted"),
        (False, PREDICTED, "not fitted; bars: 90 % interval"),
    ):
        runs = [run for run in replayed.runs if run.is_fitted is is_fitted]
        if not runs:
            continue
        figures = [_figures(run, is_energy=is_energy) for run in runs]
        axes.errorbar(
            [predicted for predicted, _, _ in figures],
            [measured for _, measured, _ in figures],
            xerr=[half_width for _, _, half_width in figures],
            fmt="o",
            color=color,
            markersize=4,
            linewidth=0.8,
            label=label,
        )
    ends = [value for run in replayed.runs for value in _figures(run, is_energy=is_energy)[:2]]
    axes.plot([min(ends), max(ends)], [min(ends), max(ends)], color="black", linewidth=0.8)
    axes.locator_params(axis="x", nbins=6)  # more of the long numbers would overlap
    quantity, unit = ("energy", "J") if is_energy else ("iteration time", "s")
    axes.set_xlabel(f"{quantity}, {unit} (predicted)")
    axes.set_ylabel(f"{quantity}, {unit} ({replayed.recording.origin})")
    errors = replayed.absolute_errors
    mean = errors.mean_energy if is_energy else errors.mean_time
    axes.set_title(f"mean absolute error {mean:.2f} %", fontsize="medium")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def _figures(run: RunReplay, *, is_energy: bool) -> tuple[float, float, float]:
    """Return predicted, measured, and half the interval."""
    if is_energy:
        return run.predicted.energy_j, run.run.energy_j, run.energy_half_width_j
    return run.predicted.iteration_time_s, run.run.iterations.mean_s, run.time_half_width_s


def _draw_plans(axes: Axes, replayed: Replay, frontier: Sequence[tuple[float, float]]) -> None:
    """Draw energy over time of every plan, measured and predicted."""
    if frontier:
        axes.plot(
            [time_s for time_s, _ in frontier],
            [energy_j for _, energy_j in frontier],
            ".-",
            color=PREDICTED,
            linewidth=1.2,
            label="Flyball's frontier within the fit (predicted)",
        )
    axes.plot(
        [run.predicted.iteration_time_s for run in replayed.runs],
        [run.predicted.energy_j for run in replayed.runs],
        "+",
        color=PREDICTED,
        label="recorded plans (predicted)",
    )
    axes.plot(
        [run.run.iterations.mean_s for run in replayed.runs],
        [run.run.energy_j for run in replayed.runs],
        "o",
        color=MEASURED,
        markersize=4,
        label=f"recorded plans ({replayed.recording.origin})",
    )
    for run in {0: replayed.runs[0], 1: replayed.runs[-1]}.values():
        axes.annotate(
            run.run.name,
            (run.run.iterations.mean_s, run.run.energy_j),
            textcoords="offset points",
            xytext=(6, -3),
            fontsize="small",
        )
    axes.set_xlabel("iteration time, s")
    axes.set_ylabel("energy of an iteration, J")
    axes.set_title(replayed.recording.title, fontsize="small")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
