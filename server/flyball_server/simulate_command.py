"""`flyball simulate`: what a plan takes on a profile: time, energy, bubbles, critical path."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from flyball_client.command import Command, CommandError
from flyball_server import offline_inputs
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.pipeline_model import PipelineModel
from flyball_server.planning.plan_text import plan_rows
from flyball_server.planning.recorded_plan import model_of_plan
from flyball_server.planning.simulator import Simulation, simulate


def _configure(parser: argparse.ArgumentParser) -> None:
    offline_inputs.add_profile_argument(parser)
    parser.add_argument("plan", metavar="PLAN.json", type=Path, help="what flyball plan -o wrote")
    offline_inputs.add_blocking_power_argument(parser, "default: the plan's own")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, alone")


def _run(arguments: argparse.Namespace) -> int:
    profile = offline_inputs.read_profile(arguments.profile)
    plan = offline_inputs.read_plan(arguments.plan)
    try:
        model, assignment = model_of_plan(profile, plan, arguments.blocking_power)
    except PlanningError as error:
        if error.field == "blocking_power_w" and arguments.blocking_power is not None:
            raise CommandError(f"--blocking-power: {error.message}") from None
        raise CommandError(f"{arguments.plan}: {error}") from None
    simulation = simulate(model, assignment)
    if arguments.json:
        print(json.dumps(_document(model, simulation)))
        return 0
    print(_summary(simulation))
    print("\n".join(plan_rows(model, assignment, simulation)))
    return 0


def _document(model: PipelineModel, simulation: Simulation) -> dict[str, Any]:
    return {
        "iteration_time_s": simulation.iteration_time_s,
        "energy_j": simulation.energy_j,
        "bubble_fraction": simulation.bubble_fraction,
        "peak_activations": list(simulation.peak_activations),
        "critical_path": [
            [model.dag.stage[node], *_instruction(model, node)] for node in simulation.critical_path
        ],
    }


def _instruction(model: PipelineModel, node: int) -> list[str | int]:
    kind, microbatch, chunk = model.dag.instruction[node]
    return [str(kind), microbatch, chunk] if chunk else [str(kind), microbatch]


def _summary(simulation: Simulation) -> str:
    peaks = ", ".join(str(peak) for peak in simulation.peak_activations)
    return (
        f"iteration time    {simulation.iteration_time_s:.4f} s (predicted)\n"
        f"energy            {simulation.energy_j:.2f} J (predicted)\n"
        f"bubble fraction   {simulation.bubble_fraction:.4f}\n"
        f"peak activations  {peaks} microbatches, by stage\n"
    )


COMMAND = Command(
    summary="time, energy, bubbles and critical path of a plan", configure=_configure, run=_run
)
