"""`flyball plan`: one plan from a stage profile, offline."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import NamedTuple

from flyball_pipeline.errors import PipelineError
from flyball_profiles.gpu_windows import GpuWindow
from flyball_server.cli import offline_inputs, pipeline_arguments
from flyball_server.cli.plots.clock_colors import add_color_argument, color_system, painted_rows
from flyball_server.cli.progress_line import ProgressLine
from flyball_server.planning import planner
from flyball_server.planning.data_parallel import make_data_parallel_plan
from flyball_server.planning.documents.plan_document import plan_document
from flyball_server.planning.documents.plan_text import (
    iteration_delays,
    kept_reserve,
    lateness,
    reserve_lines,
)
from flyball_server.planning.model.unheld_clocks import limits_text
from flyball_server.planning.planner import PlanRequest
from flyball_server.planning.request_options import MAX_CALL_SHARE
from flyball_server.planning.schedule_choice import REFERENCE
from flyball_server.planning.simulated_plan import SimulatedPlan
from flyball_wire.command.command import Command
from flyball_wire.command.whole_file import write_result
from flyball_wire.plan_options import PlanOptions, Policy
from flyball_wire.plans.plan import Plan, Prediction
from flyball_wire.targets import parse_target

# Of a node with as many GPUs as most have.
USUAL_GPUS_IN_NODE = 8
# A plan that saves less than this beyond one clock per stage is hardly worth its changes.
WORTH_POINTS = 0.5
# A deadline or power at least this multiple of that at the highest clocks may be in another unit.
FAR = 10.0

_COMPARED: dict[str, str] = {
    Policy.CONSTANT: "one clock per stage",
    Policy.GLOBAL: "one clock for all stages",
}


def _configure(parser: argparse.ArgumentParser) -> None:
    pipeline_arguments.add_pipeline_arguments(parser, is_frontier=False)
    output = parser.add_argument_group("output")
    output.add_argument(
        "-o", "--output", metavar="PLAN.json", type=Path, help="file to write the plan to"
    )
    offline_inputs.add_timeline_argument(output)
    add_color_argument(output)
    output.add_argument("--json", action="store_true", help="print the plan as JSON only")


def _run(arguments: argparse.Namespace) -> int:
    system = color_system(arguments.color) if arguments.timeline else None
    with ProgressLine("reading the profile") as progress:
        solved, document, options, note = _planned(arguments, progress)
    if arguments.output:
        write_result(arguments.output, document + "\n")
    if arguments.json:
        print(document)
        if note:
            print(note, file=sys.stderr)
    else:
        print("\n".join(filter(None, [_summary(solved, options), note])))
        if arguments.timeline:
            print("\n".join(["", *painted_rows(solved, system)]))
    return 0


def _planned(
    arguments: argparse.Namespace, progress: ProgressLine
) -> tuple[SimulatedPlan, str, PlanOptions, str]:
    """Return the plan, its document, its options, and a line on what was assumed, if anything."""
    try:
        (request, gpu), note = pipeline_arguments.request_of(arguments), ""
        began_s = time.perf_counter()
        solved = _made(request, progress)
        if shared := _assumed_in_node(solved.plan, _options_of(request), gpu):
            request, note = _with_node(request, shared.num_gpus), shared.note
            solved = _made(request, progress)
        solve_s = time.perf_counter() - began_s
    except PipelineError as error:
        raise pipeline_arguments.refused(error, arguments) from None
    document = json.dumps(plan_document(solved.plan, solve_s=solve_s))
    note = "\n".join(filter(None, [note, _far_target(solved.plan)]))
    return solved, document, _options_of(request), note


def _far_target(plan: Plan) -> str:
    """Return a line on a target that is probably in another unit; empty: it is not."""
    target, highest = parse_target(plan.target), plan.prediction
    if highest is None:
        return ""
    time_s = highest.baseline_iteration_time_s
    usual = {
        "deadline": (time_s, "time", "s"),
        "power": (highest.baseline_energy_j / time_s, "power", "W"),
    }
    value, noun, unit = usual.get(target.kind, (math.inf, "", ""))
    if target.value < FAR * value:
        return ""
    times = f"{target.value / value:.0f} times the {noun} at the highest clocks"
    return f"{plan.target} is {times}; its unit is {unit}"


Request = PlanRequest | tuple[PlanRequest, ...]
"""Request for one pipeline, or for each of several, by `dp_rank`."""


def _made(request: Request, progress: ProgressLine) -> SimulatedPlan:
    if isinstance(request, PlanRequest):
        return planner.make_plan(request, progress.show)
    return make_data_parallel_plan(request, progress.show)


def _options_of(request: Request) -> PlanOptions:
    return (request if isinstance(request, PlanRequest) else request[0]).options


def _with_node(request: Request, num_gpus: int) -> Request:
    if isinstance(request, PlanRequest):
        return request.with_options(gpus_in_node=num_gpus)
    return tuple(pipeline.with_options(gpus_in_node=num_gpus) for pipeline in request)


class _SharedNode(NamedTuple):
    """Number of GPUs that are assumed to share a node, and a line that says so."""

    num_gpus: int
    note: str


def _assumed_in_node(plan: Plan, options: PlanOptions, gpu: GpuWindow | None) -> _SharedNode | None:
    """Return the GPUs that share a node by the GPU table, where their calls would not fit.

    Args:
        plan: the plan for stages that share no node.
        options: its options.
        gpu: entry of the GPU table; None: no GPU is named.
    """
    is_given = options.gpus_in_node is not None
    if is_given or gpu is None or gpu.gpus_in_node is None or plan.transitions is None:
        return None
    if plan.policy != Policy.FRONTIER or plan.target.startswith("power:"):
        return None  # their changes are not limited
    num_gpus = min(gpu.gpus_in_node, _num_gpus(plan, options))
    share = _call_share(plan, num_gpus)
    if num_gpus < 2 or share <= MAX_CALL_SHARE:
        return None
    note = (
        f"Assumed: {num_gpus} of these GPUs share a node, as they usually do. A plan for a node"
        f" each (--gpus-in-node 1) saves {plan.predicted.saving_percent:.2f} %; in one node setting"
        f" its clocks takes {100 * share:.0f} % of an iteration, which makes it longer."
    )
    return _SharedNode(num_gpus, note)


def _num_gpus(plan: Plan, options: PlanOptions) -> int:
    """Return the number of GPUs of all stages."""
    return plan.num_stages * len(plan.by_dp_rank) * (options.gpus_at_once or 1)


def _call_share(plan: Plan, num_gpus: int) -> float:
    assert plan.transitions is not None  # noqa: S101 - the callers have seen to it
    changes_per_stage = plan.num_switches / (plan.num_stages * len(plan.by_dp_rank))
    return plan.transitions.call_share(num_gpus, changes_per_stage, plan.iteration_time_s)


def _considered_rows(plan: Plan) -> list[str]:
    """Return the orders considered by `auto`, with the chosen one marked."""
    if not plan.considered:
        return []
    rows = ["schedule            time, s     energy, J      bound, J   (predicted)"]
    for entry in plan.considered:
        mark = "*" if entry.schedule == plan.schedule else " "
        figures = [
            f"{value:{width}.{digits}f}" if value is not None else " " * (width - 1) + "-"
            for value, width, digits in (
                (entry.iteration_time_s, 9, 4),
                (entry.energy_j, 14, 2),
                (entry.lower_bound_j, 14, 2),
            )
        ]
        what = entry.why_not if entry.why_not else "".join(figures)
        rows.append(f"{mark} {entry.schedule:16s} {what}")
    reference = next((entry for entry in plan.considered if entry.schedule == REFERENCE), None)
    if plan.schedule != REFERENCE and reference and reference.energy_j:
        less_percent = 100 * (1 - plan.predicted.energy_j / reference.energy_j)
        rows.append(
            f"{plan.schedule} needs {less_percent:.2f} % less energy than {REFERENCE}'s plan"
        )
    return rows


def _summary(solved: SimulatedPlan, options: PlanOptions) -> str:
    """Return the plan as text."""
    plan, predicted = solved.plan, solved.plan.predicted
    shape = f"{plan.num_stages} stages"
    if plan.is_separate:
        shape = f"{len(plan.pipelines)} pipelines of {shape}"
    summary = (
        f"{plan.policy}, {plan.reconfigure}, {plan.schedule}: {shape},"
        f" {plan.num_microbatches} microbatches, target {plan.target}\n"
        "             time, s     energy, J   (predicted, one iteration,"
        f" {lateness(plan.transitions)})\n"
        f"baseline  {predicted.baseline_iteration_time_s:10.4f}"
        f"  {predicted.baseline_energy_j:12.2f}   {limits_text(solved.models)}".rstrip()
        + "\n"
    )
    for compared in predicted.compared:
        summary += (
            f"{compared.name:10s}{compared.iteration_time_s:10.4f}  {compared.energy_j:12.2f}"
            f"   {_against_baseline(predicted, compared.iteration_time_s, compared.energy_j)}:"
            f" {_COMPARED.get(compared.name, '')}\n"
        )
    summary += (
        f"plan      {plan.iteration_time_s:10.4f}  {predicted.energy_j:12.2f}"
        f"   {_against_baseline(predicted, plan.iteration_time_s, predicted.energy_j)}\n"
    )
    if predicted.lower_bound_j is not None and predicted.gap_percent is not None:
        # A solver's tolerance is no -0.00 %.
        gap_percent = round(predicted.gap_percent, 2) + 0.0
        summary += (
            f"bound                 {predicted.lower_bound_j:12.2f}"
            f"   no plan {_bounded(plan)}{kept_reserve(plan.reserve)} needs less, at one waiting"
            f" power; gap {gap_percent:.2f} %"
            f"{_of_late(predicted.lower_bound_j, predicted.late_changes_j)}\n"
        )
    summary += "".join(f"{line}\n" for line in reserve_lines(plan.reserve))
    summary += (
        _sources(predicted)
        + _of_late_changes(plan, is_limited=options.limits_changes)
        + _of_calls(plan, options)
    )
    if delays := iteration_delays(plan):
        summary += f"counted beside the instructions: {delays}\n"
    summary += _worth_of_changes(plan)
    return "\n".join([summary, *_considered_rows(plan)]).rstrip("\n")


def _bounded(plan: Plan) -> str:
    """Return the plans that the bound is on, as text."""
    return "this fast" if plan.target.startswith("power:") else "within the target"


def _of_late(lower_bound_j: float, late_changes_j: float) -> str:
    """Return the part of the gap for late clock changes, as text."""
    percent = 100 * late_changes_j / lower_bound_j
    return f", of it {percent:.2f} for late clock changes" if percent >= 0.005 else ""


def _sources(predicted: Prediction) -> str:
    """Return the sources of the saving with their shares of the baseline's energy."""
    sources, baseline_j = predicted.saving_sources, predicted.baseline_energy_j
    if sources is None:
        return ""
    named = (
        ("imbalance", sources.imbalance_j, "slower where a stage waits for the heaviest one"),
        (
            "bubbles",
            sources.bubbles_j,
            "slower where a stage waits for the pipeline to fill or drain",
        ),
        ("time", sources.iteration_time_j, "slower as the iteration takes longer"),
    )
    return "".join(
        f"saved by {name:11s}  {saved_j:12.2f}   {100 * saved_j / baseline_j:.2f} %: {how}\n"
        for name, saved_j, how in named
        if round(100 * abs(saved_j) / baseline_j, 2)
    )


def _of_late_changes(plan: Plan, *, is_limited: bool) -> str:
    if plan.transitions is None or not plan.num_switches:
        return f"{plan.num_switches} clock changes an iteration\n" if is_limited else ""
    if plan.policy == Policy.FRONTIER and not plan.target.startswith("power:"):
        how = "clocks, time and energy count their delays"
        if num_early := _num_early_requests(plan):
            how += f"; {num_early} are requested before the previous instruction ends"
    else:
        how = "the clocks were chosen as if they changed at once, time and energy count the delays"
    return f"{plan.num_switches} clock changes an iteration; {how}\n"


def _of_calls(plan: Plan, options: PlanOptions) -> str:
    """Return a line on the calls of a node, or on what they would be if all stages shared one."""
    if plan.transitions is None:
        return ""
    gpus_in_node = options.gpus_in_node
    num_gpus = gpus_in_node or min(_num_gpus(plan, options), USUAL_GPUS_IN_NODE)
    share = _call_share(plan, num_gpus)
    takes = f"takes {100 * share:.0f} % of an iteration"
    if gpus_in_node is not None:
        return (
            f"setting the clocks of {num_gpus} GPUs in a node {takes}\n"
            if share and num_gpus > 1
            else ""
        )
    if share <= MAX_CALL_SHARE:
        return ""
    return (
        f"Where {num_gpus} of these GPUs share a node, setting their clocks {takes}, which makes it"
        f" longer: give --gpus-in-node {num_gpus}.\n"
    )


def _num_early_requests(plan: Plan) -> int:
    return sum(len(pipeline.requests) for pipeline in plan.by_dp_rank)


def _against_baseline(predicted: Prediction, iteration_time_s: float, energy_j: float) -> str:
    saved = 100 * (1 - energy_j / predicted.baseline_energy_j)
    longer = 100 * (iteration_time_s / predicted.baseline_iteration_time_s - 1)
    # Sums in another order differ by rounding, which is no -0.00 %.
    return f"saves {round(saved, 2) + 0.0:.2f} %, {round(longer, 2) + 0.0:+.2f} % time"


def _worth_of_changes(plan: Plan) -> str:
    """Return a line where changing clocks saves little more than one clock per stage."""
    predicted = plan.predicted
    constant = next((found for found in predicted.compared if found.name == Policy.CONSTANT), None)
    if constant is None:
        return ""
    points = 100 * (constant.energy_j - predicted.energy_j) / predicted.baseline_energy_j
    if points >= WORTH_POINTS:
        return ""
    return (
        f"Changing clocks saves only {max(0.0, points):.2f} points more than one clock per stage:"
        f" --policy {Policy.CONSTANT} is nearly as good.\n"
    )


COMMAND = Command(configure=_configure, run=_run)
