"""`flyball simulate`: time, energy, bubbles and critical path of a plan on a profile."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from flyball_server.cli.offline_inputs import (
    add_timeline_argument,
    add_timeline_arguments,
    read_timeline,
)
from flyball_server.cli.plots.clock_colors import add_color_argument, color_system, painted_rows
from flyball_server.cli.plots.plot_file import NO_MATPLOTLIB, PLOT_SUFFIXES, check_plot_path
from flyball_server.planning.documents.plan_text import iteration_delays
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.model.simulator import Simulation
from flyball_server.planning.simulated_plan import SimulatedPlan
from flyball_wire.command.command import Command, CommandError


def _configure(parser: argparse.ArgumentParser) -> None:
    add_timeline_arguments(parser)
    parser.add_argument(
        "--plot",
        metavar="FILE",
        type=Path,
        help=f"draw the timelines of baseline and plan: {', '.join(PLOT_SUFFIXES)}",
    )
    add_timeline_argument(parser)
    add_color_argument(parser)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON only")


def _run(arguments: argparse.Namespace) -> int:
    if arguments.plot:
        check_plot_path(arguments.plot)
    timeline = read_timeline(arguments)
    if arguments.plot:
        _plot(timeline, arguments.plot)
    if arguments.json:
        print(json.dumps(_document(timeline)))
    else:
        print(_summary(timeline))
        if arguments.timeline:
            print("\n".join(["", *painted_rows(timeline, color_system(arguments.color))]))
    return 0


def _plot(timeline: SimulatedPlan, path: Path) -> None:
    try:
        from flyball_server.cli.plots.timeline_plot import (  # noqa: PLC0415 - it alone needs matplotlib
            write_timeline_plot,
        )
    except ImportError:
        raise CommandError(NO_MATPLOTLIB) from None
    write_timeline_plot(timeline, path)


def _document(timeline: SimulatedPlan) -> dict[str, Any]:
    """Return the figures; of data-parallel pipelines, stage figures by pipeline."""
    whole = timeline.simulation.whole
    if not timeline.plan.is_separate:
        return {**_figures(whole), **_by_stage(timeline.models[0], whole)}
    pipelines = [
        {"dp_rank": dp_rank, **_figures(own), **_by_stage(model, own)}
        for dp_rank, (model, own) in enumerate(
            zip(timeline.models, timeline.simulation.pipelines, strict=True)
        )
    ]
    return {**_figures(whole), "pipelines": pipelines}


def _figures(simulation: Simulation) -> dict[str, Any]:
    return {
        "iteration_time_s": simulation.iteration_time_s,
        "energy_j": simulation.energy_j,
        "bubble_fraction": simulation.bubble_fraction,
        **({"late_s": sum(simulation.late_s)} if simulation.in_force else {}),
    }


def _by_stage(model: PipelineModel, simulation: Simulation) -> dict[str, Any]:
    schedule, versions = model.schedule, model.schedule.weight_versions
    return {
        "peak_activations": list(simulation.peak_activations),
        **({"num_chunks": schedule.num_chunks} if schedule.num_chunks > 1 else {}),
        **({"weight_versions": list(versions)} if versions else {}),
        "critical_path": [
            [model.dag.stage[node], *_instruction(model, node)] for node in simulation.critical_path
        ],
    }


def _instruction(model: PipelineModel, node: int) -> list[str | int]:
    kind, microbatch, chunk = model.dag.instruction[node]
    return [str(kind), microbatch, chunk] if chunk else [str(kind), microbatch]


def _summary(timeline: SimulatedPlan) -> str:
    """Return the figures as text; peaks are the highest of all pipelines."""
    simulation, schedule = timeline.simulation.whole, timeline.models[0].schedule
    held = zip(*(own.peak_activations for own in timeline.simulation.pipelines), strict=True)
    peaks = ", ".join(str(max(of_stage)) for of_stage in held)
    of_chunk = f" of one of {schedule.num_chunks} chunks" if schedule.num_chunks > 1 else ""
    delays = iteration_delays(timeline.plan)
    versions = ", ".join(map(str, schedule.weight_versions or ()))
    return (
        f"iteration time    {simulation.iteration_time_s:.4f} s (predicted)\n"
        f"energy            {simulation.energy_j:.2f} J (predicted)\n"
        f"bubble fraction   {simulation.bubble_fraction:.4f}\n"
        f"peak activations  {peaks} microbatches{of_chunk}, by stage"
        + (
            f"\nlate clocks       {sum(simulation.late_s):.4f} s at the clocks before, over all"
            " stages"
            if simulation.in_force
            else ""
        )
        + (f"\ncounted beside    {delays}" if delays else "")
        + (f"\nweight versions   {versions}, by stage" if versions else "")
    )


COMMAND = Command(configure=_configure, run=_run)
