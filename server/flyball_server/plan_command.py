"""`flyball plan`: one plan from a stage profile, offline."""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from pathlib import Path

from flyball_client.command import Command
from flyball_profiles.stage_profile import StageProfile
from flyball_server import offline_inputs, pipeline_arguments
from flyball_server.planning import planner
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.frontier.targets import TARGET_FORMS
from flyball_server.planning.plan import FrequencyPlan
from flyball_server.planning.plan_document import plan_document
from flyball_server.planning.plan_text import plan_rows
from flyball_server.planning.policies import POLICIES
from flyball_server.planning.policies.reconfigure import RECONFIGURATIONS
from flyball_server.planning.recorded_plan import model_of_plan
from flyball_server.planning.simulator import simulate
from flyball_server.planning.warm_up import warm_up


def _configure(parser: argparse.ArgumentParser) -> None:
    pipeline_arguments.add_pipeline_arguments(parser)
    add_choice = pipeline_arguments.add_choice
    add_choice(parser, "--policy", POLICIES, planner.DEFAULT_POLICY)
    add_choice(parser, "--reconfigure", RECONFIGURATIONS, planner.DEFAULT_RECONFIGURE)
    add_choice(parser, "--target", TARGET_FORMS, planner.DEFAULT_TARGET)
    parser.add_argument(
        "-o", "--output", metavar="PLAN.json", type=Path, help="write the plan here"
    )
    parser.add_argument("--json", action="store_true", help="print the plan as JSON, alone")


def _run(arguments: argparse.Namespace) -> int:
    profile = offline_inputs.read_profile(arguments.profile)
    if arguments.policy == "frontier":
        warm_up()  # loading compiled code is starting the program, not solving
    began_s = time.perf_counter()
    try:
        request = dataclasses.replace(
            pipeline_arguments.pipeline_request(arguments, profile),
            policy=arguments.policy,
            reconfigure=arguments.reconfigure,
            target=arguments.target,
        )
        plan = planner.make_plan(request)
    except PlanningError as error:
        raise pipeline_arguments.refused(error) from None
    solve_s = time.perf_counter() - began_s
    document = json.dumps(plan_document(plan, solve_s=solve_s))
    if arguments.output:
        offline_inputs.write_text(arguments.output, document + "\n")
    print(document if arguments.json else _text(plan, profile))
    return 0


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
    if plan.lower_bound_j is not None and plan.gap_percent is not None:
        summary += (
            f"bound                 {plan.lower_bound_j:12.2f}"
            f"   no plan this fast needs less; gap {plan.gap_percent:.2f} %\n"
        )
    return summary + "\n" + "\n".join(rows)


COMMAND = Command(
    summary="one frequency plan from a stage profile, offline", configure=_configure, run=_run
)
