"""A plan's predicted iteration, read and simulated, for the commands that show it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flyball_client.command import CommandError
from flyball_server import offline_inputs
from flyball_server.planning.data_parallel import JointSimulation, simulate_jointly
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.pipeline_model import Assignment, PipelineModel
from flyball_server.planning.plan import DataParallelPlan, FrequencyPlan
from flyball_server.planning.plan_text import LETTERS
from flyball_server.planning.recorded_plan import model_of_plan, models_of_data_parallel_plan
from flyball_server.planning.schedules._base import Instruction
from flyball_server.planning.simulator import simulate


@dataclass(frozen=True, kw_only=True)
class PredictedTimeline:
    """One iteration of a plan, predicted on a profile.

    Attributes:
        plan: the plan as it was read.
        models, assignments: of each pipeline, by `dp_rank`; of a plan for one, just that.
        simulation: when all of it runs; for one pipeline, whole and pipeline are the same.
    """

    plan: FrequencyPlan | DataParallelPlan
    models: tuple[PipelineModel, ...]
    assignments: tuple[Assignment, ...]
    simulation: JointSimulation

    @property
    def is_data_parallel(self) -> bool:
        """Whether each pipeline has clocks of its own."""
        return isinstance(self.plan, DataParallelPlan)

    def baseline(self) -> PredictedTimeline:
        """The same instructions in the same order, each at its highest profiled clock."""
        return predicted_timeline(self.plan, [(model, model.baseline()) for model in self.models])


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


def predicted_timeline(
    plan: FrequencyPlan | DataParallelPlan, pipelines: Sequence[tuple[PipelineModel, Assignment]]
) -> PredictedTimeline:
    """The pipelines of a plan simulated: all together if it is data-parallel, else the one."""
    models, assignments = zip(*pipelines, strict=True)
    if isinstance(plan, DataParallelPlan):
        simulation = simulate_jointly(models, assignments)
    else:
        own = simulate(models[0], assignments[0])
        simulation = JointSimulation(whole=own, pipelines=(own,))
    return PredictedTimeline(
        plan=plan, models=models, assignments=assignments, simulation=simulation
    )
