"""`flyball simulate`: what a plan takes on a profile: time, energy, bubbles, critical path."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flyball_client.command import Command, CommandError
from flyball_server import offline_inputs
from flyball_server.pipeline_blocks import pipeline_blocks
from flyball_server.planning.data_parallel import simulate_jointly
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.pipeline_model import PipelineModel
from flyball_server.planning.plan import DataParallelPlan, FrequencyPlan
from flyball_server.planning.plan_text import plan_rows
from flyball_server.planning.recorded_plan import model_of_plan, models_of_data_parallel_plan
from flyball_server.planning.simulator import Simulation, simulate


def _configure(parser: argparse.ArgumentParser) -> None:
    offline_inputs.add_profile_argument(parser)
    parser.add_argument("plan", metavar="PLAN.json", type=Path, help="what flyball plan -o wrote")
    offline_inputs.add_blocking_power_argument(parser, "default: the plan's own")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, alone")


def _run(arguments: argparse.Namespace) -> int:
    plan = offline_inputs.read_plan(arguments.plan)
    try:
        if isinstance(plan, DataParallelPlan):
            result, text = _of_pipelines(arguments, plan)
        else:
            result, text = _of_pipeline(arguments, plan)
    except PlanningError as error:
        if error.field == "blocking_power_w" and arguments.blocking_power is not None:
            raise CommandError(f"--blocking-power: {error.message}") from None
        raise CommandError(f"{arguments.plan}: {error}") from None
    print(json.dumps(result) if arguments.json else text)
    return 0


def _of_pipeline(arguments: argparse.Namespace, plan: FrequencyPlan) -> tuple[dict[str, Any], str]:
    """The figures as JSON-ready data and as text."""
    profile = offline_inputs.read_profile(arguments.profile)
    model, assignment = model_of_plan(profile, plan, arguments.blocking_power)
    simulation = simulate(model, assignment)
    rows = plan_rows(model, assignment, simulation)
    text = "\n".join([_summary(simulation, simulation.peak_activations), *rows])
    return {**_figures(simulation), **_by_stage(model, simulation)}, text


def _of_pipelines(
    arguments: argparse.Namespace, plan: DataParallelPlan
) -> tuple[dict[str, Any], str]:
    """Likewise of data-parallel pipelines; what is by stage stands with each pipeline."""
    profiles = offline_inputs.read_pipelines(arguments.profile)
    of_plan = models_of_data_parallel_plan(profiles, plan, arguments.blocking_power)
    models, assignments = zip(*of_plan, strict=True)
    simulation = simulate_jointly(models, assignments)
    pipelines = [
        {"dp_rank": dp_rank, **_figures(own), **_by_stage(model, own)}
        for dp_rank, (model, own) in enumerate(zip(models, simulation.pipelines, strict=True))
    ]
    most = [
        max(own.peak_activations[stage] for own in simulation.pipelines)
        for stage in range(plan.num_stages)
    ]
    text = (
        _summary(simulation.whole, most) + "\n" + pipeline_blocks(models, assignments, simulation)
    )
    return {**_figures(simulation.whole), "pipelines": pipelines}, text


def _figures(simulation: Simulation) -> dict[str, Any]:
    return {
        "iteration_time_s": simulation.iteration_time_s,
        "energy_j": simulation.energy_j,
        "bubble_fraction": simulation.bubble_fraction,
    }


def _by_stage(model: PipelineModel, simulation: Simulation) -> dict[str, Any]:
    return {
        "peak_activations": list(simulation.peak_activations),
        "critical_path": [
            [model.dag.stage[node], *_instruction(model, node)] for node in simulation.critical_path
        ],
    }


def _instruction(model: PipelineModel, node: int) -> list[str | int]:
    kind, microbatch, chunk = model.dag.instruction[node]
    return [str(kind), microbatch, chunk] if chunk else [str(kind), microbatch]


def _summary(simulation: Simulation, peak_activations: Sequence[int]) -> str:
    peaks = ", ".join(map(str, peak_activations))
    return (
        f"iteration time    {simulation.iteration_time_s:.4f} s (predicted)\n"
        f"energy            {simulation.energy_j:.2f} J (predicted)\n"
        f"bubble fraction   {simulation.bubble_fraction:.4f}\n"
        f"peak activations  {peaks} microbatches, by stage\n"
    )


COMMAND = Command(
    summary="time, energy, bubbles and critical path of a plan", configure=_configure, run=_run
)
