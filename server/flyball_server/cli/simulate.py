"""`flyball simulate`: time, energy, bubbles and critical path of a plan on a profile."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flyball_server.cli.offline_inputs import add_timeline_arguments, read_timeline
from flyball_server.cli.plots.clock_colors import (
    add_color_argument,
    color_system,
    pipeline_blocks,
    row_colors,
)
from flyball_server.cli.plots.plot_file import PLOT_SUFFIXES, check_plot_path
from flyball_server.planning.documents.plan_text import plan_rows
from flyball_server.planning.documents.predicted_timeline import PredictedTimeline
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.model.simulator import Simulation
from flyball_server.planning.schedules._base import Schedule
from flyball_wire.command import Command, CommandError

if TYPE_CHECKING:
    from rich.color import ColorSystem


def _configure(parser: argparse.ArgumentParser) -> None:
    add_timeline_arguments(parser)
    parser.add_argument(
        "--plot",
        metavar="FILE",
        type=Path,
        help=f"draw the timeline, baseline and plan: {', '.join(PLOT_SUFFIXES)}",
    )
    add_color_argument(parser)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, alone")


def _run(arguments: argparse.Namespace) -> int:
    if arguments.plot:
        check_plot_path(arguments.plot)
    system = color_system(arguments.color)
    timeline = read_timeline(arguments)
    if arguments.plot:
        _plot(timeline, arguments.plot)
    print(json.dumps(_document(timeline)) if arguments.json else _text(timeline, system))
    return 0


def _plot(timeline: PredictedTimeline, path: Path) -> None:
    try:
        from flyball_server.cli.plots.timeline_plot import (  # noqa: PLC0415 - it alone needs matplotlib
            write_timeline_plot,
        )
    except ImportError:
        raise CommandError(
            "--plot needs the extra 'plot': pip install '.[plot]' in a clone of Flyball"
        ) from None
    write_timeline_plot(timeline, path)


def _document(timeline: PredictedTimeline) -> dict[str, Any]:
    """Return the figures; of data-parallel pipelines, stage figures by pipeline."""
    whole = timeline.simulation.whole
    if not timeline.is_data_parallel:
        return {**_figures(whole), **_by_stage(timeline.models[0], whole)}
    pipelines = [
        {"dp_rank": dp_rank, **_figures(own), **_by_stage(model, own)}
        for dp_rank, (model, own) in enumerate(
            zip(timeline.models, timeline.simulation.pipelines, strict=True)
        )
    ]
    return {**_figures(whole), "pipelines": pipelines}


def _text(timeline: PredictedTimeline, system: ColorSystem | None) -> str:
    """Return the figures as text; peaks are the highest of all pipelines."""
    simulation, models, assignments = timeline.simulation, timeline.models, timeline.assignments
    most = [
        max(held)
        for held in zip(*(own.peak_activations for own in simulation.pipelines), strict=True)
    ]
    paint, legend = row_colors(system, models, assignments)
    if timeline.is_data_parallel:
        rows = [pipeline_blocks(models, assignments, simulation, paint)]
    else:
        rows = plan_rows(models[0], assignments[0], simulation.whole, paint)
    summary = _summary(simulation.whole, most, models[0].schedule)
    return "\n".join([summary, *legend, *rows])


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


def _summary(simulation: Simulation, peak_activations: Sequence[int], schedule: Schedule) -> str:
    peaks = ", ".join(map(str, peak_activations))
    of_chunk = f" of one of {schedule.num_chunks} chunks" if schedule.num_chunks > 1 else ""
    versions = ", ".join(map(str, schedule.weight_versions or ()))
    return (
        f"iteration time    {simulation.iteration_time_s:.4f} s (predicted)\n"
        f"energy            {simulation.energy_j:.2f} J (predicted)\n"
        f"bubble fraction   {simulation.bubble_fraction:.4f}\n"
        f"peak activations  {peaks} microbatches{of_chunk}, by stage\n"
        + (
            f"late clocks       {sum(simulation.late_s):.4f} s at the clocks before, over all"
            " stages\n"
            if simulation.in_force
            else ""
        )
        + (f"weight versions   {versions}, by stage\n" if versions else "")
    )


COMMAND = Command(configure=_configure, run=_run)
