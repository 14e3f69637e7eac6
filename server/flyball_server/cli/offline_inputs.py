"""Input of the offline commands: profiles, plan files, blocking power; one-line errors."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from flyball_pipeline.errors import PipelineError
from flyball_pipeline.instruction import Instruction
from flyball_profiles.clock_transitions import ClockTransitions, TransitionsError
from flyball_profiles.gpu_windows import (
    MEASURE_BLOCKING_POWER,
    GpuTableError,
    GpuWindow,
    gpu_window_of,
    read_transitions,
)
from flyball_profiles.limited_file import read_text
from flyball_profiles.stage_profile import ProfileError, StageProfile
from flyball_profiles.stage_profile_csv import read_pipeline_profiles, read_stage_profile
from flyball_server.planning.documents.plan_document import plan_from_document
from flyball_server.planning.documents.plan_text import LETTERS
from flyball_server.planning.documents.recorded_plan import (
    models_by_dp_rank,
)
from flyball_server.planning.request_options import clock_transitions, iteration_delays_s
from flyball_server.planning.simulated_plan import SimulatedPlan, simulated_plan
from flyball_wire.command import CommandError
from flyball_wire.plan import Plan
from flyball_wire.plan_options import MAX_GPUS_AT_ONCE, MAX_GPUS_IN_NODE, PlanOptions

N = TypeVar("N", int, float)


# A parser or one of its groups.
Arguments = argparse._ActionsContainer  # pyright: ignore[reportPrivateUsage]


_OPTION_OF_TIME = {
    "transition_ms": "--transition-ms",
    "tail_ms": "--tail-ms",
    "transfer_ms": "--transfer-ms",
}


def add_profile_argument(parser: argparse.ArgumentParser, *, is_required: bool = True) -> None:
    """Add the positional PROFILE.csv."""
    parser.add_argument(
        "profile",
        nargs=None if is_required else "?",
        metavar="PROFILE.csv",
        type=Path,
        help="stage profile, CSV: stage,instruction,frequency,time,energy (MHz, s, J)",
    )


def add_blocking_power_argument(parser: Arguments, note: str) -> None:
    """Add `--blocking-power`, one value or one per stage."""
    parser.add_argument(
        "--blocking-power",
        metavar="W",
        type=per_stage(float, "watts", "70,70,84"),
        help=f"power in W of a GPU that waits in communication, one value or one per stage; {note}",
    )


def add_gpu_argument(parser: Arguments) -> None:
    """Add `--gpu`, a name or a file."""
    parser.add_argument(
        "--gpu", metavar="NAME", help="entry of the GPU table (a100), or a file (./mine.toml)"
    )


def add_transition_arguments(parser: Arguments, default: str) -> None:
    """Add `--transition-ms`, `--transitions` and `--no-transitions`, one of which may be given."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--transition-ms",
        metavar="MS",
        type=float,
        help="delay in ms of each clock change, up or down; an iteration's first clock is then in"
        " force from its start",
    )
    group.add_argument(
        "--transitions",
        metavar="FILE",
        type=Path,
        help="TOML file with times of clock changes, the table [transitions] of the GPU table"
        f" (default: {default})",
    )
    group.add_argument(
        "--no-transitions",
        dest="transition_ms",
        action="store_const",
        const=0.0,
        help="predict as if clocks changed at once",
    )


def add_node_arguments(parser: Arguments) -> None:
    """Add `--gpus-at-once` and `--gpus-in-node`."""
    parser.add_argument(
        "--gpus-at-once",
        metavar="N",
        type=int,
        help="GPUs of one stage in one node (tensor parallelism, or data-parallel pipelines), 1 to"
        f" {MAX_GPUS_AT_ONCE}; they change their clocks together, and where calls queue the last"
        " one waits for the others (default: 1)",
    )
    parser.add_argument(
        "--gpus-in-node",
        metavar="N",
        type=int,
        help=f"GPUs of all stages in one node, 1 to {MAX_GPUS_IN_NODE}; where calls queue, clocks"
        " wait for other stages' too, and calls take at most half of an iteration (default: 1)",
    )


def add_iteration_arguments(parser: Arguments, default: str) -> None:
    """Add `--tail-ms` and `--transfer-ms`."""
    parser.add_argument(
        "--tail-ms",
        metavar="MS",
        type=float,
        help="part of an iteration outside its instructions (optimizer, all-reduce, loading) in ms;"
        f" all GPUs wait during it (default: {default})",
    )
    parser.add_argument(
        "--transfer-ms",
        metavar="MS",
        type=per_stage(float, "ms", "1.5,2"),
        help="time of a transfer between neighbouring stages in ms, one value or one for each pair"
        f" of neighbours (default: {default})",
    )


def given_transitions(path: Path | None) -> ClockTransitions | None:
    """Read the file of `--transitions`; None for None."""
    if path is None:
        return None
    try:
        return read_transitions(path)
    except TransitionsError as error:
        raise CommandError(f"--transitions: {error}") from None


def per_stage(number: type[N], unit: str, example: str) -> Callable[[str], tuple[N, ...]]:
    """Return the parser of one number, or of one per stage as in the example."""

    def parsed(text: str) -> tuple[N, ...]:
        try:
            return tuple(map(number, text.split(",")))
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a number of {unit}, nor one per stage as in {example}"
            ) from None

    return parsed


def read_profile(path: Path) -> StageProfile:
    """Read the stage profile of a CSV file, all ranks of a stage merged."""
    try:
        return read_stage_profile(path)
    except ProfileError as error:
        raise CommandError(error.located(str(path))) from None


def read_pipelines(path: Path) -> tuple[StageProfile, ...]:
    """Read the stage profile of each data-parallel pipeline of a CSV file, by `dp_rank`."""
    try:
        return read_pipeline_profiles(path)
    except ProfileError as error:
        raise CommandError(error.located(str(path))) from None


def gpu_window(name: str | None) -> GpuWindow | None:
    """Return the GPU table's entry, or the file, called `name`; None for None."""
    if name is None:
        return None
    try:
        return gpu_window_of(name, os.environ)
    except GpuTableError as error:
        raise CommandError(f"--gpu: {error}") from None


def blocking_power_w(given_w: tuple[float, ...] | None, gpu: GpuWindow | None) -> tuple[float, ...]:
    """Return `--blocking-power`, or else the GPU table's figure; never a guess."""
    if given_w is not None:
        return given_w
    if gpu is None:
        raise CommandError(
            f"blocking power is needed: give --blocking-power W ({MEASURE_BLOCKING_POWER}"
            " measures it), or --gpu NAME for a GPU whose table has it"
        )
    if gpu.blocking_power_w is None:
        raise CommandError(
            f"the table of {gpu.name} has no measured blocking power; give --blocking-power W,"
            f" which {MEASURE_BLOCKING_POWER} measures on two GPUs"
        )
    return (gpu.blocking_power_w,)


def read_plan(path: Path) -> Plan:
    """Read a plan from a file written by `flyball plan -o`."""
    try:
        document: object = json.loads(read_text(path))
        return plan_from_document(document)
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror or error}") from None
    except PipelineError as error:
        raise CommandError(f"{path}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{path}: not a plan in JSON ({error})") from None


def add_timeline_arguments(parser: argparse.ArgumentParser, *, are_required: bool = True) -> None:
    """Add PROFILE.csv, PLAN.json, `--blocking-power`, late clocks, the tail and transfers."""
    add_profile_argument(parser, is_required=are_required)
    parser.add_argument(
        "plan",
        nargs=None if are_required else "?",
        metavar="PLAN.json",
        type=Path,
        help="plan file from flyball plan -o",
    )
    add_blocking_power_argument(parser, "default: the plan's own")
    add_transition_arguments(parser, "the plan's own")
    add_iteration_arguments(parser, "the plan's own")


def add_timeline_argument(parser: Arguments) -> None:
    """Add `--timeline`, which shows every instruction."""
    parser.add_argument(
        "--timeline",
        action="store_true",
        help="also print a row per stage: each instruction with its clock and waiting time",
    )


def read_timeline(arguments: argparse.Namespace) -> SimulatedPlan:
    """Return the simulated timeline for the arguments of `add_timeline_arguments`.

    Raises:
        CommandError: a file cannot be read, or plan, profile and blocking power do not match.
    """
    plan = read_plan(arguments.plan)
    power_w: tuple[float, ...] | None = arguments.blocking_power
    try:
        plan = _with_given_times(plan, arguments)
        profiles = (
            read_pipelines(arguments.profile)
            if plan.is_separate
            else [read_profile(arguments.profile)]
        )
        return simulated_plan(plan, models_by_dp_rank(profiles, plan, power_w))
    except PipelineError as error:
        if error.field == "blocking_power_w" and power_w is not None:
            raise CommandError(f"--blocking-power: {error.message}") from None
        option = _OPTION_OF_TIME.get(error.field)
        if option is not None and getattr(arguments, error.field) is not None:
            raise CommandError(f"{option}: {error.message}") from None
        raise CommandError(f"{arguments.plan}: {error}") from None


def _with_given_times(plan: Plan, arguments: argparse.Namespace) -> Plan:
    """Return the plan with the given times of clock changes, tail and transfers."""
    given = PlanOptions(
        schedule=plan.schedule,
        transition_ms=arguments.transition_ms,
        transitions=given_transitions(arguments.transitions),
        tail_ms=arguments.tail_ms,
        transfer_ms=arguments.transfer_ms,
    )
    if given.transition_ms is not None or given.transitions is not None:
        plan = replace(plan, transitions=clock_transitions(given))
    is_periodic = plan.weight_versions is not None
    tail_s, transfer_s = iteration_delays_s(given, plan.num_stages, is_periodic=is_periodic)
    if arguments.tail_ms is not None:
        plan = replace(plan, tail_s=tail_s)
    if arguments.transfer_ms is not None:
        plan = replace(plan, transfer_s=transfer_s)
    return plan


def instruction_label(instruction: Instruction) -> str:
    """Return kind and microbatch, as `F3`; `F3.1` in model chunk 1."""
    kind, microbatch, chunk = instruction
    return f"{LETTERS[kind]}{microbatch}" + (f".{chunk}" if chunk else "")
