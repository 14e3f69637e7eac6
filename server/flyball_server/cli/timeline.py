"""A plan's predicted iteration, read and simulated, for the commands that show it."""

from __future__ import annotations

import argparse
from pathlib import Path

from flyball_server.cli import offline_inputs
from flyball_server.planning.documents.plan_text import LETTERS
from flyball_server.planning.documents.predicted_timeline import (
    PredictedTimeline,
    predicted_timeline,
)
from flyball_server.planning.documents.recorded_plan import (
    model_of_plan,
    models_of_data_parallel_plan,
)
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.plan import DataParallelPlan
from flyball_server.planning.schedules._base import Instruction
from flyball_wire.command import CommandError


def add_timeline_arguments(parser: argparse.ArgumentParser) -> None:
    """PROFILE.csv, PLAN.json and `--blocking-power`."""
    offline_inputs.add_profile_argument(parser)
    parser.add_argument("plan", metavar="PLAN.json", type=Path, help="what flyball plan -o wrote")
    offline_inputs.add_blocking_power_argument(parser, "default: the plan's own")


def read_timeline(arguments: argparse.Namespace) -> PredictedTimeline:
    """What `add_timeline_arguments` asked for, simulated.

    Raises:
        CommandError: a file cannot be read, or plan, profile and blocking power do not fit.
    """
    plan = offline_inputs.read_plan(arguments.plan)
    power_w: tuple[float, ...] | None = arguments.blocking_power
    try:
        if isinstance(plan, DataParallelPlan):
            profiles = offline_inputs.read_pipelines(arguments.profile)
            of_plan = models_of_data_parallel_plan(profiles, plan, power_w)
        else:
            profile = offline_inputs.read_profile(arguments.profile)
            of_plan = [model_of_plan(profile, plan, power_w)]
        return predicted_timeline(plan, of_plan)
    except PlanningError as error:
        if error.field == "blocking_power_w" and power_w is not None:
            raise CommandError(f"--blocking-power: {error.message}") from None
        raise CommandError(f"{arguments.plan}: {error}") from None


def instruction_label(instruction: Instruction) -> str:
    """Kind and microbatch, as `F3`; `F3.1` in model chunk 1."""
    kind, microbatch, chunk = instruction
    return f"{LETTERS[kind]}{microbatch}" + (f".{chunk}" if chunk else "")
