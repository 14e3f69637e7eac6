"""Arguments that describe a pipeline, shared by the offline commands that plan."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from flyball_pipeline.errors import PipelineError
from flyball_pipeline.instruction import MAX_NUM_MICROBATCHES, Checkpoint
from flyball_pipeline.schedules.explicit import EXPLICIT
from flyball_pipeline.schedules.table import SCHEDULES
from flyball_server.cli import offline_inputs
from flyball_server.cli.offline_inputs import Arguments
from flyball_server.cli.order_files import read_order
from flyball_server.planning.data_parallel import DataParallelRequest, separate_pipelines
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.frontier.targets import TARGET_FORMS
from flyball_server.planning.planner import PlanRequest
from flyball_server.planning.policies.envpipe import ENVPIPE_POLICIES
from flyball_server.planning.request_options import (
    DEFAULT_RECONFIGURE_GRANULARITY_MHZ,
    with_known_transitions,
)
from flyball_server.planning.schedule_choice import AUTO
from flyball_wire.command import CommandError
from flyball_wire.plan_options import (
    DEFAULT_SCHEDULE,
    DEFAULT_TARGET,
    Effort,
    PlanOptions,
    Policy,
    Reconfigure,
)

ChoiceT = TypeVar("ChoiceT", bound=str)

# Planning of data-parallel pipelines: one plan for all, or one for each.
MERGED, SEPARATE = "merged", "separate"

OPTION_OF_FIELD = {
    "num_microbatches": "--microbatches",
    "blocking_power_w": "--blocking-power",
    "activation_bytes": "--activation-bytes",
    "free_memory_bytes": "--free-memory-bytes",
    "transition_ms": "--transition-ms",
    "gpus_at_once": "--gpus-at-once",
    "gpus_in_node": "--gpus-in-node",
    "early_requests": "--no-early-requests",
    "max_switches": "--max-switches",
    "min_dwell_ms": "--min-dwell-ms",
    "tail_ms": "--tail-ms",
    "transfer_ms": "--transfer-ms",
    "profile": "PROFILE.csv",
    "virtual_stages": "--order",
    "extra_forwards": "--extra-forwards",
}
# Options with a command-line option of the same name; `order` and `transitions` are files.
_NAMED_OPTIONS = tuple(
    field.name
    for field in fields(PlanOptions)
    if field.name not in {"schedule", "order", "virtual_stages", "blocking_power_w", "transitions"}
)


def add_pipeline_arguments(
    parser: argparse.ArgumentParser,
    *,
    policies: Collection[Policy] = (),
    has_target: bool = False,
) -> None:
    """Add the profile, its schedule, and the plan options that all commands share.

    Args:
        parser: the command's.
        policies: choices of `--policy`; with none there is neither it nor `--reconfigure`.
        has_target: add `--target`.
    """
    offline_inputs.add_profile_argument(parser)
    _add_order_arguments(parser.add_argument_group("pipeline"))
    _add_gpu_arguments(parser.add_argument_group("GPUs"))
    clocks = parser.add_argument_group("clocks")
    if policies:
        _add_policy_arguments(clocks, policies)
        _add_limit_arguments(clocks)
    if has_target:
        clocks.add_argument(
            "--target",
            default=DEFAULT_TARGET,
            help=f"{', '.join(TARGET_FORMS)}; deadline in s, average power in W"
            f" (default: {DEFAULT_TARGET})".replace("%", "%%"),
        )
    _add_search_arguments(clocks)


def _add_search_arguments(parser: Arguments) -> None:
    add_choice(
        parser,
        "--effort",
        Effort,
        None,
        f"policy frontier: search effort (default: {Effort.NORMAL})",
    )
    parser.add_argument(
        "--reserve",
        metavar="SHARE",
        type=_reserve,
        help="policy frontier: share, such as 0.01, by which instructions may take longer than"
        " profiled without making the iteration longer, as far as the pipeline has slack; auto:"
        " chosen from the scatter of the profiled times, 0 if the profile has none (default: auto)",
    )
    parser.add_argument(
        "--no-early-requests",
        dest="early_requests",
        action="store_false",
        default=None,
        help="policy frontier: request each clock when the previous instruction ends, not before"
        " (default: earlier where clock changes take time and an instruction would wait for them)",
    )


def _reserve(text: str) -> float | None:
    if text == "auto":
        return None
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be a share such as 0.01, or auto, not {text!r}"
        ) from None


def _add_gpu_arguments(parser: Arguments) -> None:
    offline_inputs.add_gpu_argument(parser)
    offline_inputs.add_blocking_power_argument(parser, "default: from --gpu")
    offline_inputs.add_transition_arguments(parser, "from --gpu, else 0")
    offline_inputs.add_node_arguments(parser)
    offline_inputs.add_iteration_arguments(parser, "0")
    for option, what in (
        ("--activation-bytes", "of activations per microbatch in flight"),
        ("--free-memory-bytes", "of memory free beyond what 1F1B uses"),
    ):
        parser.add_argument(
            option,
            metavar="N",
            type=offline_inputs.per_stage(int, "bytes", "1000,2000"),
            help=f"bytes {what}, one value or one per stage; limits envpipe's extra forwards and"
            " refuses an order that does not fit",
        )


def _add_order_arguments(parser: Arguments) -> None:
    parser.add_argument(
        "--microbatches",
        metavar="M",
        type=int,
        required=True,
        help=f"microbatches of one iteration, 1 to {MAX_NUM_MICROBATCHES}",
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
        "--extra-forwards",
        metavar="N,N",
        type=offline_inputs.per_stage(int, "forwards", "3,2,1,0"),
        help="schedule envpipe: forwards in front beyond those of 1f1b, one value per stage"
        " (default: as many as profile and memory allow)",
    )
    parser.add_argument(
        "--order",
        metavar="FILE",
        type=Path,
        help="explicit order instead of a schedule: JSON, or torch.distributed.pipelining's CSV",
    )
    add_choice(
        parser,
        "--checkpoint",
        Checkpoint,
        None,
        "schedule torchgpipe: microbatches whose forward is recomputed before their backward"
        f" (default: {Checkpoint.EXCEPT_LAST})",
    )
    parser.add_argument(
        "--data-parallel",
        choices=[MERGED, SEPARATE],
        default=MERGED,
        help="merged: one plan for all data-parallel pipelines; separate: one plan for each, from"
        f" the profile's column dp_rank, all as fast as the slowest (default: {MERGED})",
    )


def _add_policy_arguments(parser: Arguments, policies: Iterable[Policy]) -> None:
    """Add `--policy` with these choices, and `--reconfigure`."""
    default = PlanOptions.policy if PlanOptions.policy in policies else Policy.ENVELOPE
    add_choice(parser, "--policy", policies, default, f"clock policy (default: {default})")
    add_choice(
        parser,
        "--reconfigure",
        Reconfigure,
        None,
        f"EnvPipe's reconfiguration; {Reconfigure.DEFAULT} means none (if not given:"
        f" {Reconfigure.DEFAULT} for policy {Policy.UNIFORM}, else {Reconfigure.BALANCED})",
    )


def _add_limit_arguments(parser: Arguments) -> None:
    """Add `--max-switches` and `--min-dwell-ms`."""
    parser.add_argument(
        "--max-switches",
        metavar="N",
        type=int,
        help="policy frontier: limit on clock changes per iteration, over all stages (default: no"
        " limit)",
    )
    parser.add_argument(
        "--min-dwell-ms",
        metavar="MS",
        type=float,
        help="policy frontier: minimum time in ms between clock changes of a stage (default: 0)",
    )


def add_choice(
    parser: Arguments,
    option: str,
    names: Iterable[ChoiceT],
    default: ChoiceT | None,
    help_text: str,
) -> None:
    """Add an option with these names as choices."""
    by_name = {str(name): name for name in names}

    def named(text: str) -> ChoiceT:
        if text not in by_name:
            raise argparse.ArgumentTypeError(f"unknown {text!r}; known: {', '.join(by_name)}")
        return by_name[text]

    metavar = "{" + ",".join(by_name) + "}"
    parser.add_argument(option, metavar=metavar, type=named, default=default, help=help_text)


def request_of(arguments: argparse.Namespace) -> PlanRequest | DataParallelRequest:
    """Return the request that the parsed arguments describe.

    Raises:
        PlanningError: a part is invalid; `field` names it.
    """
    is_separate = arguments.data_parallel == SEPARATE
    profiles = (
        offline_inputs.read_pipelines(arguments.profile)
        if is_separate
        else (offline_inputs.read_profile(arguments.profile),)
    )
    order, virtual_stages = read_order(arguments.order) if arguments.order else (None, None)
    gpu = offline_inputs.gpu_window(arguments.gpu)
    given = {
        name: getattr(arguments, name)
        for name in _NAMED_OPTIONS
        if getattr(arguments, name, None) is not None
    }
    _check_effect(given)
    options = PlanOptions(
        schedule=arguments.schedule or (DEFAULT_SCHEDULE if order is None else EXPLICIT),
        order=order,
        virtual_stages=virtual_stages,
        blocking_power_w=offline_inputs.blocking_power_w(arguments.blocking_power, gpu),
        transitions=offline_inputs.given_transitions(arguments.transitions),
        **given,
    )
    options = with_known_transitions(options, gpu.transitions if gpu else None)
    request = PlanRequest(
        profile=profiles[0],
        num_microbatches=arguments.microbatches,
        options=options,
        reconfigure_granularity_mhz=(
            gpu.reconfigure_granularity_mhz if gpu else DEFAULT_RECONFIGURE_GRANULARITY_MHZ
        ),
    )
    return separate_pipelines(request, profiles) if is_separate else request


def _check_effect(given: Mapping[str, Any]) -> None:
    """Check that no option is given that the policy does not use.

    Raises:
        PlanningError: one is; `field` names it.
    """
    policy = given.get("policy", PlanOptions.policy)
    for name in ("effort", "early_requests"):
        if name in given and policy != Policy.FRONTIER:
            raise PlanningError(f"is for policy {Policy.FRONTIER}, not {policy}", field=name)
    if "reconfigure" in given and policy not in ENVPIPE_POLICIES:
        names = ", ".join(ENVPIPE_POLICIES)
        raise PlanningError(f"is for policies {names}, not {policy}", field="reconfigure")


def refused(error: PipelineError) -> CommandError:
    """Return the planning core's error with the option in place of the field."""
    option = OPTION_OF_FIELD.get(error.field, f"--{error.field}")
    return CommandError(f"{option}: {error.message}")
