"""Arguments that describe a pipeline, shared by the offline commands that plan."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flyball_pipeline.errors import PipelineError
from flyball_pipeline.schedules.explicit import EXPLICIT
from flyball_pipeline.schedules.table import SCHEDULES
from flyball_profiles.gpu_windows import GpuWindow
from flyball_profiles.stage_profile import StageProfile
from flyball_server.cli import offline_inputs
from flyball_server.cli.order_files import read_order
from flyball_server.planning.data_parallel import separate_pipelines
from flyball_server.planning.planner import PlanRequest
from flyball_server.planning.request_options import (
    DEFAULT_RECONFIGURE_GRANULARITY_MHZ,
    limit_target,
    with_known_transitions,
)
from flyball_server.planning.schedule_choice import AUTO
from flyball_wire.command.command import Arguments, CommandError, add_options, argument_type
from flyball_wire.messages import JobSpec
from flyball_wire.options import OptionError, options_of
from flyball_wire.plan_options import (
    CLOCKS,
    DEFAULT_SCHEDULE,
    GPUS,
    PIPELINE,
    PlanOptions,
    check_together,
)
from flyball_wire.targets import LIMIT_TARGET

# Planning of data-parallel pipelines: one plan for all, or one for each.
MERGED, SEPARATE = "merged", "separate"


def add_pipeline_arguments(
    parser: argparse.ArgumentParser, owner: type[PlanOptions] = PlanOptions, *, is_frontier: bool
) -> None:
    """Add the profile, its schedule, and the plan options that all commands share.

    Args:
        parser: parser of the command.
        owner: dataclass that declares the options.
        is_frontier: False: add the options of a single plan too.
    """
    offline_inputs.add_profile_argument(parser)
    groups = {title: parser.add_argument_group(title) for title in (PIPELINE, GPUS, CLOCKS)}
    _add_order_arguments(groups[PIPELINE])
    offline_inputs.add_transition_arguments(groups[GPUS], "from --gpu, else 0")
    for name, declared in options_of(owner).items():
        if declared.group and not (is_frontier and declared.is_of_a_plan):
            add_options(groups[declared.group], owner, [name])


def _add_order_arguments(parser: Arguments) -> None:
    microbatches = options_of(JobSpec)["num_microbatches"]
    parser.add_argument(
        microbatches.option_string,
        metavar="M",
        type=argument_type(microbatches),
        required=True,
        help=microbatches.help(),
    )
    names = [*(name for name in SCHEDULES if name != EXPLICIT), AUTO]
    parser.add_argument(
        "--schedule",
        metavar="NAME",
        help=f"{', '.join(names)} (default: {DEFAULT_SCHEDULE}); auto: the one with the least"
        " energy at the target, of those that profile and memory permit; auto:NAME,NAME: of these"
        " and 1f1b",
    )
    parser.add_argument(
        "--order",
        metavar="FILE",
        type=Path,
        help="explicit order instead of a schedule: JSON, or torch.distributed.pipelining's CSV",
    )
    parser.add_argument(
        "--data-parallel",
        choices=[MERGED, SEPARATE],
        default=MERGED,
        help="merged: one plan for all data-parallel pipelines; separate: one plan for each, from"
        f" the profile's column dp_rank, all as fast as the slowest (default: {MERGED})",
    )


def request_of(
    arguments: argparse.Namespace,
) -> tuple[PlanRequest | tuple[PlanRequest, ...], GpuWindow | None]:
    """Return the request that the parsed arguments describe, and the GPU table's entry for them.

    Separate pipelines have a request each, by `dp_rank`.

    Raises:
        PipelineError: a part is invalid; `field` names it.
    """
    is_separate = arguments.data_parallel == SEPARATE
    profiles = (
        offline_inputs.read_pipelines(arguments.profile)
        if is_separate
        else (offline_inputs.read_profile(arguments.profile),)
    )
    order, virtual_stages = read_order(arguments.order) if arguments.order else (None, None)
    gpu = offline_inputs.gpu_window(arguments.gpu)
    # Those that stand on the command line as they are.
    given: dict[str, Any] = {
        name: value
        for name, value in vars(arguments).items()
        if value is not None and name in options_of(PlanOptions)
    }
    options = PlanOptions(
        **given
        | {
            "schedule": arguments.schedule or (DEFAULT_SCHEDULE if order is None else EXPLICIT),
            "order": order,
            "virtual_stages": virtual_stages,
            "blocking_power_w": offline_inputs.blocking_power_w(arguments.blocking_power_w, gpu),
            "transitions": offline_inputs.given_transitions(arguments.transitions),
        }
    )
    if options.target == LIMIT_TARGET:
        options = replace(options, target=_limit_target(profiles))
    options = with_known_transitions(options, gpu.transitions if gpu else None)
    request = PlanRequest(
        profile=profiles[0],
        num_microbatches=arguments.microbatches,
        options=options,
        reconfigure_granularity_mhz=(
            gpu.reconfigure_granularity_mhz if gpu else DEFAULT_RECONFIGURE_GRANULARITY_MHZ
        ),
    )
    if not is_separate:
        check_together(options, profiles[0].num_stages, given)
        return request, gpu
    separate = separate_pipelines(request, profiles)
    for pipeline in separate:
        check_together(pipeline.options, pipeline.profile.num_stages, given)
    return separate, gpu


def _limit_target(profiles: Sequence[StageProfile]) -> str:
    """Return the target of the power limits that the profiles were measured under."""
    target = limit_target(profiles)
    if target is None:
        raise OptionError(
            f"{LIMIT_TARGET} needs a profile with its GPUs' power limits (column conditions); give"
            " the power in W",
            field="target",
        )
    return target


def refused(error: PipelineError, arguments: argparse.Namespace) -> CommandError:
    """Return the error with the option, or the profile's file, in place of the field."""
    options = {"num_microbatches": "--microbatches", "profile": str(arguments.profile)}
    option = options.get(error.field)
    text = offline_inputs.option_text(error)
    return CommandError(f"{option}: {error.message}" if option else text)
