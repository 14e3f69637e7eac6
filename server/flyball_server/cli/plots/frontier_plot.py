"""Plot of the frontier: plans, bound, baseline and EnvPipe's plans. Needs matplotlib."""

from __future__ import annotations

from pathlib import Path

from flyball_wire.command import CommandError
from flyball_wire.read_models import Frontier

PLOT_SUFFIXES = (".svg", ".png")


def write_frontier_plot(curve: Frontier, path: Path) -> None:
    """Draw the curve into an .svg or .png file.

    Raises:
        CommandError: matplotlib is missing, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - only this function needs it
    except ImportError:
        raise CommandError(
            "--plot needs the extra 'plot': pip install '.[plot]' in a clone of Flyball"
        ) from None
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    times_s = [point.iteration_time_s for point in curve.points]
    kept = f" that keeps {100 * curve.reserve:g} % in reserve" if curve.reserve else ""
    axes.plot(
        [point.deadline_s for point in curve.points],
        [point.lower_bound_j for point in curve.points],
        color="0.5",
        linestyle="--",
        linewidth=1,
        label=f"lower bound: no plan{kept} is below",
    )
    axes.plot(
        times_s,
        [point.energy_j for point in curve.points],
        color="tab:blue",
        marker=".",
        linewidth=1,
        label="Flyball's plans",
    )
    for plans, color, label in (
        (curve.constant, "tab:green", "constant: one clock per stage"),
        (curve.global_clock, "tab:red", "global: one clock for all stages"),
    ):
        axes.plot(
            [plan.iteration_time_s for plan in plans],
            [plan.energy_j for plan in plans],
            color=color,
            linestyle=":",
            linewidth=1.5,
            label=label,
        )
    axes.scatter(
        [curve.baseline.iteration_time_s],
        [curve.baseline.energy_j],
        color="black",
        marker="s",
        label="baseline: highest clocks",
        zorder=3,
    )
    for plan, marker in zip(curve.envpipe, "^vDPX*", strict=False):
        axes.scatter(
            [plan.iteration_time_s],
            [plan.energy_j],
            color="tab:orange",
            marker=marker,
            label=f"EnvPipe {plan.name}",
            zorder=3,
        )
    axes.set_xlabel("iteration time, s (predicted)")
    axes.set_ylabel("energy of an iteration, J (predicted)")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise CommandError(
            f"--plot: {path} cannot be written ({error.strerror or error})"
        ) from None
