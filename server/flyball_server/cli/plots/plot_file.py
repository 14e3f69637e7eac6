"""Plots of frontiers and replays, and the files they are written to. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flyball_server.planning.documents.plan_text import kept_reserve
from flyball_server.replay.predicted_saving import PredictedSaving
from flyball_server.replay.replayed_runs import Replay
from flyball_wire.command.command import CommandError
from flyball_wire.command.whole_file import result_file
from flyball_wire.read_models import Frontier

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PLOT_SUFFIXES = (".svg", ".png")
NO_MATPLOTLIB = "--plot needs the extra 'plot': pip install '.[plot]' in a clone of Flyball"


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
        raise CommandError(NO_MATPLOTLIB) from None
    return Figure(figsize=(width_in, height_in), layout="constrained")


def save_figure(figure: Figure, path: Path, metadata: dict[str, Any] | None = None) -> None:
    """Write the figure; `metadata` replaces what the format writes into a file.

    Raises:
        CommandError: the file cannot be written.
    """
    with result_file(path, option="--plot") as part:
        figure.savefig(part, format=path.suffix[1:], dpi=150, metadata=metadata)


def write_frontier_plot(curve: Frontier, path: Path) -> None:
    """Draw the curve into an .svg or .png file.

    Raises:
        CommandError: matplotlib is missing, or the file cannot be written.
    """
    figure = new_figure(7, 4.5)
    axes = figure.subplots()
    _draw_curves(axes, curve)
    _draw_single_plans(axes, curve)
    axes.set_xlabel("iteration time, s (predicted)")
    axes.set_ylabel("energy of an iteration, J (predicted)")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    save_figure(figure, path)


def _draw_curves(axes: Axes, curve: Frontier) -> None:
    axes.plot(
        [point.deadline_s for point in curve.points],
        [point.lower_bound_j for point in curve.points],
        color="0.5",
        linestyle="--",
        linewidth=1,
        label=f"lower bound: no plan{kept_reserve(curve.reserve)} is below",
    )
    for plans, style, color, label in (
        (curve.points, ".-", "tab:blue", "Flyball's plans"),
        (curve.constant, ":", "tab:green", "constant: one clock per stage"),
        (curve.global_clock, ":", "tab:red", "global: one clock for all stages"),
    ):
        times_s = [plan.iteration_time_s for plan in plans]
        energies_j = [plan.energy_j for plan in plans]
        axes.plot(times_s, energies_j, style, color=color, linewidth=1.2, label=label)


def _draw_single_plans(axes: Axes, curve: Frontier) -> None:
    envpipe = zip(curve.envpipe, "^vDPX*", strict=False)
    for plan, marker, color, label in (
        (curve.baseline, "s", "black", "baseline: highest clocks"),
        *((plan, marker, "tab:orange", f"EnvPipe {plan.name}") for plan, marker in envpipe),
    ):
        axes.scatter(
            [plan.iteration_time_s],
            [plan.energy_j],
            color=color,
            marker=marker,
            label=label,
            zorder=3,
        )


PREDICTED, MEASURED, FITTED = "tab:blue", "tab:orange", "0.6"


def write_replay_plot(replays: Sequence[tuple[Replay, PredictedSaving | None]], path: Path) -> None:
    """Draw a row of three panels for each recording into an .svg or .png file.

    Args:
        replays: at least one, each with its predicted saving where that was asked for.
        path: path of the file.

    Raises:
        CommandError: matplotlib is missing, or the file cannot be written.
    """
    figure = new_figure(14, 4.4 * len(replays))
    rows = figure.subplots(len(replays), 3, squeeze=False)
    for axes, (replayed, saving) in zip(rows, replays, strict=True):
        _draw_agreement(axes[0], replayed, is_energy=False)
        _draw_agreement(axes[1], replayed, is_energy=True)
        _draw_plans(axes[2], replayed, saving)
    save_figure(figure, path)


def _draw_agreement(axes: Axes, replayed: Replay, *, is_energy: bool) -> None:
    """Draw measured over predicted, with the intervals; on the diagonal both agree."""
    for is_fitted, color, label in (
        (True, FITTED, "fitted"),
        (False, PREDICTED, "not fitted; bars: 90 % interval"),
    ):
        figures = [
            (run.predicted_j, run.measured_j, run.predicted_j_interval[1])
            if is_energy
            else (run.predicted_s, run.measured_s, run.predicted_s_interval[1])
            for run in replayed.runs
            if run.fitted is is_fitted
        ]
        if figures:
            axes.errorbar(
                [predicted for predicted, _, _ in figures],
                [measured for _, measured, _ in figures],
                xerr=[high - predicted for predicted, _, high in figures],
                fmt="o",
                color=color,
                markersize=4,
                linewidth=0.8,
                label=label,
            )
            ends = [value for predicted, measured, _ in figures for value in (predicted, measured)]
            axes.plot([min(ends), max(ends)], [min(ends), max(ends)], color="black", linewidth=0.8)
    axes.locator_params(axis="x", nbins=6)  # more of the long numbers would overlap
    quantity, unit = ("energy", "J") if is_energy else ("iteration time", "s")
    axes.set_xlabel(f"{quantity}, {unit} (predicted)")
    axes.set_ylabel(f"{quantity}, {unit} ({replayed.origin})")
    errors = replayed.mean_absolute_error_percent
    axes.set_title(
        f"mean absolute error {errors.energy if is_energy else errors.time:.2f} %",
        fontsize="medium",
    )
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def _draw_plans(axes: Axes, replayed: Replay, saving: PredictedSaving | None) -> None:
    """Draw energy over time of every plan, measured and predicted."""
    baseline = replayed.runs[0]
    plan = None if saving is None else saving.predicted
    if plan is not None:
        saved, slower = plan.saving_percent, plan.slowdown_percent
        axes.errorbar(
            [baseline.measured_s * (1 + slower / 100)],
            [baseline.measured_j * (1 - saved / 100)],
            xerr=baseline.measured_s * (plan.slowdown_percent_interval[1] - slower) / 100,
            yerr=baseline.measured_j * (plan.saving_percent_interval[1] - saved) / 100,
            fmt="D",
            color=PREDICTED,
            markersize=5,
            linewidth=1.2,
            label="Flyball's plan (predicted; bars: 90 % interval)",
        )
    axes.plot(
        [run.predicted_s for run in replayed.runs],
        [run.predicted_j for run in replayed.runs],
        "+",
        color=PREDICTED,
        label="recorded plans (predicted)",
    )
    axes.plot(
        [run.measured_s for run in replayed.runs],
        [run.measured_j for run in replayed.runs],
        "o",
        color=MEASURED,
        markersize=4,
        label=f"recorded plans ({replayed.origin})",
    )
    for run in (baseline, replayed.runs[-1]):
        axes.annotate(
            run.name,
            (run.measured_s, run.measured_j),
            textcoords="offset points",
            xytext=(6, -3),
            fontsize="small",
        )
    axes.set_xlabel("iteration time, s")
    axes.set_ylabel("energy of an iteration, J")
    axes.set_title(replayed.workload, fontsize="small")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
