"""Input of the offline commands: profiles, plan files, blocking power; one-line errors."""

from __future__ import annotations

import argparse
import csv
import json
import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from flyball_pipeline.errors import PipelineError
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
from flyball_server.planning.documents.recorded_plan import models_by_dp_rank
from flyball_server.planning.request_options import clock_transitions, iteration_delays_s
from flyball_server.planning.simulated_plan import SimulatedPlan, simulated_plan
from flyball_server.replay.recorded_runs import RecordingError
from flyball_wire.command.command import Arguments, CommandError, add_options
from flyball_wire.errors import CodecError
from flyball_wire.options import OptionError, options_of
from flyball_wire.plan_options import PlanOptions, check_together
from flyball_wire.plans.plan import Plan


def add_profile_argument(parser: argparse.ArgumentParser, *, is_required: bool = True) -> None:
    """Add the positional PROFILE.csv."""
    parser.add_argument(
        "profile",
        nargs=None if is_required else "?",
        metavar="PROFILE.csv",
        type=Path,
        help="stage profile, CSV: stage,instruction,frequency,time,energy (MHz, s, J)",
    )


def add_transition_arguments(parser: Arguments, default: str) -> None:
    """Add `--transition-ms`, `--transitions` and `--no-transitions`, one of which may be given."""
    group = parser.add_mutually_exclusive_group()
    add_options(group, PlanOptions, ["transition_ms"], note="")
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


def given_transitions(path: Path | None) -> ClockTransitions | None:
    """Read the file of `--transitions`; None for None."""
    if path is None:
        return None
    try:
        return read_transitions(path)
    except TransitionsError as error:
        raise CommandError(f"--transitions: {error}") from None


@contextmanager
def naming(source: Path | str, unread: str | None = None) -> Generator[None]:
    """Name the source in errors of this block, which reads or uses it.

    Args:
        source: file, or what it is of.
        unread: fault of a content that cannot be parsed at all, whose error follows in brackets;
            None: the block parses nothing.

    Raises:
        CommandError: the block cannot read or use the source; one line.
    """
    try:
        yield
    except OSError as error:
        raise CommandError(f"{source}: {error.strerror or error}") from None
    except ProfileError as error:
        raise CommandError(error.located(str(source))) from None
    except (PipelineError, RecordingError, CodecError) as error:
        raise CommandError(f"{source}: {error}") from None
    except (ValueError, RecursionError, csv.Error) as error:
        if unread is None:
            raise
        raise CommandError(f"{source}: {unread} ({error})") from None


def read_profile(path: Path) -> StageProfile:
    """Read the stage profile of a CSV file, all ranks of a stage merged."""
    with naming(path):
        return read_stage_profile(path)


def read_pipelines(path: Path) -> tuple[StageProfile, ...]:
    """Read the stage profile of each data-parallel pipeline of a CSV file, by `dp_rank`."""
    with naming(path):
        return read_pipeline_profiles(path)


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
    with naming(path, "not a plan in JSON"):
        return plan_from_document(json.loads(read_text(path)))


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
    note = "(default: the plan's own)"
    add_options(parser, PlanOptions, ["blocking_power_w"], note=note)
    add_transition_arguments(parser, "the plan's own")
    add_options(parser, PlanOptions, ["tail_ms", "transfer_ms"], note=note)


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
    power_w: tuple[float, ...] | None = arguments.blocking_power_w
    try:
        plan = _with_given_times(plan, arguments)
        profiles = (
            read_pipelines(arguments.profile)
            if plan.is_separate
            else [read_profile(arguments.profile)]
        )
        return simulated_plan(plan, models_by_dp_rank(profiles, plan, power_w))
    except PipelineError as error:
        is_given = getattr(arguments, error.field, None) is not None
        if is_given or isinstance(error, OptionError):
            raise CommandError(option_text(error)) from None
        raise CommandError(f"{arguments.plan}: {error}") from None


def option_text(error: PipelineError) -> str:
    """Return an error's text with the option of the command line in place of the field."""
    declared = options_of(PlanOptions).get(error.field)
    return f"{declared.option_string if declared else f'--{error.field}'}: {error.message}"


def _with_given_times(plan: Plan, arguments: argparse.Namespace) -> Plan:
    """Return the plan with the given times of clock changes, tail and transfers."""
    given = PlanOptions(
        schedule=plan.schedule,
        transition_ms=arguments.transition_ms,
        transitions=given_transitions(arguments.transitions),
        tail_ms=arguments.tail_ms,
        transfer_ms=arguments.transfer_ms,
    )
    check_together(given, plan.num_stages)
    if given.transition_ms is not None or given.transitions is not None:
        plan = replace(plan, transitions=clock_transitions(given))
    is_periodic = plan.weight_versions is not None
    tail_s, transfer_s = iteration_delays_s(given, is_periodic=is_periodic)
    if arguments.tail_ms is not None:
        plan = replace(plan, tail_s=tail_s)
    if arguments.transfer_ms is not None:
        plan = replace(plan, transfer_s=transfer_s)
    return plan
