"""`flyball plan`: one plan from a stage profile, offline."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable
from pathlib import Path

from flyball_client.command import Command, CommandError
from flyball_profiles.stage_profile import StageProfile
from flyball_server import offline_inputs
from flyball_server.planning import planner
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.plan import FrequencyPlan
from flyball_server.planning.plan_document import plan_document
from flyball_server.planning.plan_text import plan_rows
from flyball_server.planning.policies import POLICIES
from flyball_server.planning.policies.reconfigure import RECONFIGURATIONS
from flyball_server.planning.recorded_plan import model_of_plan
from flyball_server.planning.schedules import SCHEDULES
from flyball_server.planning.schedules._base import ActivationMemory
from flyball_server.planning.simulator import simulate

OPTION_OF_FIELD = {
    "num_microbatches": "--microbatches",
    "blocking_power_w": "--blocking-power",
    "activation_bytes": "--activation-bytes",
    "free_memory_bytes": "--free-memory-bytes",
    "profile": "PROFILE.csv",
}


def _configure(parser: argparse.ArgumentParser) -> None:
    offline_inputs.add_profile_argument(parser)
    parser.add_argument("--microbatches", metavar="M", type=int, required=True)
    _add_choice(parser, "--schedule", SCHEDULES, planner.DEFAULT_SCHEDULE)
    _add_choice(parser, "--policy", POLICIES, planner.DEFAULT_POLICY)
    _add_choice(parser, "--reconfigure", RECONFIGURATIONS, planner.DEFAULT_RECONFIGURE)
    _add_choice(parser, "--target", (planner.DEFAULT_TARGET,), planner.DEFAULT_TARGET)
    offline_inputs.add_blocking_power_argument(parser, "or name a --gpu whose table has it")
    parser.add_argument("--gpu", metavar="NAME", help="entry of the GPU table, as a100")
    _add_bytes(parser, "--activation-bytes", "held per microbatch in flight")
    _add_bytes(parser, "--free-memory-bytes", "free beside what 1F1B holds")
    parser.add_argument(
        "-o", "--output", metavar="PLAN.json", type=Path, help="write the plan here"
    )
    parser.add_argument("--json", action="store_true", help="print the plan as JSON, alone")


def _add_choice(
    parser: argparse.ArgumentParser, option: str, names: Iterable[str], default: str
) -> None:
    # Not argparse's choices: the planning core knows them, and says so in one line.
    parser.add_argument(option, default=default, help=f"{', '.join(names)} (default {default})")


def _add_bytes(parser: argparse.ArgumentParser, option: str, what: str) -> None:
    parser.add_argument(
        option,
        metavar="N",
        type=_sizes,
        help=f"schedule envpipe: bytes {what}, one value or one per stage",
    )


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of bytes, nor one per stage as in 1000,2000"
        ) from None


def _run(arguments: argparse.Namespace) -> int:
    profile = offline_inputs.read_profile(arguments.profile)
    began_s = time.perf_counter()
    try:
        plan = planner.make_plan(_request(arguments, profile))
    except PlanningError as error:
        option = OPTION_OF_FIELD.get(error.field, f"--{error.field}")
        raise CommandError(f"{option}: {error.message}") from None
    solve_s = time.perf_counter() - began_s
    document = json.dumps(plan_document(plan, solve_s=solve_s))
    if arguments.output:
        offline_inputs.write_text(arguments.output, document + "\n")
    print(document if arguments.json else _text(plan, profile))
    return 0


def _request(arguments: argparse.Namespace, profile: StageProfile) -> planner.PlanRequest:
    gpu = offline_inputs.gpu_window(arguments.gpu)
    granularity_mhz = gpu.reconfigure_granularity_mhz if gpu else None
    return planner.PlanRequest(
        profile=profile,
        num_microbatches=arguments.microbatches,
        blocking_power_w=offline_inputs.blocking_power_w(arguments.blocking_power, gpu),
        schedule=arguments.schedule,
        policy=arguments.policy,
        reconfigure=arguments.reconfigure,
        target=arguments.target,
        activation_memory=_activation_memory(arguments, profile.num_stages),
        reconfigure_granularity_mhz=(
            granularity_mhz or planner.DEFAULT_RECONFIGURE_GRANULARITY_MHZ
        ),
    )


def _activation_memory(arguments: argparse.Namespace, num_stages: int) -> ActivationMemory | None:
    sizes, free = arguments.activation_bytes, arguments.free_memory_bytes
    if sizes is None and free is None:
        return None
    if sizes is None or free is None:
        raise CommandError("give --activation-bytes and --free-memory-bytes together, or neither")
    return ActivationMemory(
        activation_bytes=sizes * num_stages if len(sizes) == 1 else sizes,
        free_bytes=free * num_stages if len(free) == 1 else free,
    )


def _text(plan: FrequencyPlan, profile: StageProfile) -> str:
    model, assignment = model_of_plan(profile, plan)
    rows = plan_rows(model, assignment, simulate(model, assignment))
    summary = (
        f"{plan.policy}, {plan.reconfigure}, {plan.schedule}: {plan.num_stages} stages,"
        f" {plan.num_microbatches} microbatches, target {plan.target}\n"
        f"             time, s     energy, J   (predicted, one iteration)\n"
        f"baseline  {plan.baseline_iteration_time_s:10.4f}  {plan.baseline_energy_j:12.2f}\n"
        f"plan      {plan.iteration_time_s:10.4f}  {plan.energy_j:12.2f}"
        f"   saves {plan.saving_percent:.2f} %, {plan.slowdown_percent:+.2f} % time\n"
    )
    return summary + "\n" + "\n".join(rows)


COMMAND = Command(
    summary="one frequency plan from a stage profile, offline", configure=_configure, run=_run
)
