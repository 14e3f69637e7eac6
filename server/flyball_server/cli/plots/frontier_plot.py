"""Plot of the frontier: plans, bound, baseline and EnvPipe's plans. Needs matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flyball_server.cli.plots.plot_file import new_figure, save_figure
from flyball_server.planning.documents.plan_text import kept_reserve
from flyball_wire.read_models import Frontier

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
