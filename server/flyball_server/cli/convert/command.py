"""`flyball convert`: a plan, an order or a profile in another tool's file format."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flyball_pipeline.schedules.explicit import explicit_order
from flyball_profiles.limited_file import read_text
from flyball_profiles.measured_row import RANK_COLUMNS
from flyball_profiles.profile_forms import merged_text, same_ranks_text, wide_text
from flyball_profiles.stage_profile import ProfileError, StageProfile
from flyball_profiles.stage_profile_csv import parse_csv, parse_stage_profile
from flyball_server.cli import offline_inputs, order_files
from flyball_server.cli.convert import envpipe_files, kareus_files, perseus_files, plan_files
from flyball_server.cli.convert.foreign_plan import ForeignPlan, KernelSchedules, named_schedule
from flyball_server.planning.documents.plan_text import plan_rows
from flyball_server.planning.model.simulator import simulate
from flyball_wire.command.command import (
    Command,
    CommandError,
    add_option,
    add_options,
    argument_type,
)
from flyball_wire.command.whole_file import write_result
from flyball_wire.options import Option
from flyball_wire.plan_options import PlanOptions

_SCHED_JSON_SUFFIX = ".sched.json"
_PROFILE, _ENVPIPE_PROFILE, _KAREUS = "profile", "envpipe-profile", "kareus-profile"
_PROFILE_FORMATS = (_PROFILE, _KAREUS, _ENVPIPE_PROFILE)

Given = argparse.Namespace


@dataclass(frozen=True, kw_only=True)
class _PlanFormat:
    """A format of plans.

    Attributes:
        read: text of a file and the arguments -> the plan.
        write: the plan and the arguments -> text.
    """

    read: Callable[[str, Given], ForeignPlan]
    write: Callable[[ForeignPlan, Given], str]


def _read_torch(text: str, _: Given) -> ForeignPlan:
    return ForeignPlan(
        schedule=named_schedule(explicit_order(*order_files.order_of_torch_csv(text)))
    )


def _read_order(text: str, _: Given) -> ForeignPlan:
    return ForeignPlan(
        schedule=named_schedule(explicit_order(*order_files.order_of_document(json.loads(text))))
    )


def _read_sched_json(text: str, given: Given) -> ForeignPlan:
    if (given.stages is None) != (given.microbatches is None):
        raise CommandError("--stages and --microbatches go together: give both or neither")
    shape = None if given.stages is None else (given.stages, given.microbatches)
    return perseus_files.plan_of_sched_json(text, given.input.absolute().parent.name, shape)


def _write_envpipe(plan: ForeignPlan, given: Given) -> str:
    if given.profile is None:
        return envpipe_files.log_rows(plan)
    model, assignment = plan_files.model_of(plan, *_profile_and_power(given))
    return "\n".join([*plan_rows(model, assignment, simulate(model, assignment)), ""])


_PLAN_FORMATS: Mapping[str, _PlanFormat] = {
    "plan": _PlanFormat(
        read=lambda text, given: plan_files.plan_of_document(json.loads(text), given.pipeline),
        write=lambda plan, given: (
            json.dumps(plan_files.document_of(plan, *_profile_and_power(given))) + "\n"
        ),
    ),
    "order": _PlanFormat(
        read=_read_order,
        write=lambda plan, _: json.dumps(order_files.order_document(plan.order)) + "\n",
    ),
    "torch": _PlanFormat(
        read=_read_torch, write=lambda plan, _: order_files.torch_csv_text(plan.order)
    ),
    "freqs": _PlanFormat(
        read=lambda text, _: perseus_files.plan_of_freqs(text),
        write=lambda plan, _: perseus_files.freqs_text(plan),
    ),
    "sched-json": _PlanFormat(
        read=_read_sched_json,
        write=lambda plan, given: perseus_files.sched_json_text(plan, given.ranks),
    ),
    "scheds": _PlanFormat(
        read=lambda text, _: kareus_files.plan_of_scheds(text),
        write=lambda plan, given: kareus_files.scheds_text(plan, by_microbatch=given.by_microbatch),
    ),
    "envpipe-plan": _PlanFormat(
        read=lambda text, _: envpipe_files.plan_of_log(text), write=_write_envpipe
    ),
}
FORMATS = (*_PLAN_FORMATS, *_PROFILE_FORMATS)


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", type=Path, metavar="IN", help="file to read")
    parser.add_argument("output", type=Path, metavar="OUT", help="file to write")
    for option, target, what in (("--from", "source", "IN"), ("--to", "target", "OUT")):
        parser.add_argument(
            option,
            dest=target,
            metavar="FORMAT",
            choices=FORMATS,
            help=f"format of {what}: {', '.join(FORMATS)} (default: from its name and content)",
        )
    _add_plan_arguments(parser)
    _add_profile_arguments(parser)
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")
    parser.add_argument(
        "--json", action="store_true", help="print a summary of the written file as JSON only"
    )


def _add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--profile",
        metavar="PROFILE.csv",
        type=Path,
        help="stage profile of the plan: required to plan; to envpipe-plan it adds waiting times",
    )
    note = "(with --profile; default: from --gpu)"
    add_options(parser, PlanOptions, ["blocking_power_w"], note=note)
    add_options(parser, PlanOptions, ["gpu"])
    parser.add_argument(
        "--kernels",
        metavar="FILE",
        type=Path,
        help="kernel schedules of the plan: scheds_pipeline_*.py, or a profile with them",
    )
    parser.add_argument(
        "--by-microbatch",
        action="store_true",
        help="to scheds: write a pair per microbatch, as Kareus without activation checkpointing",
    )
    _add_counts(
        parser,
        {
            "--stages": "from sched-json: number of stages (default: from the folder's name)",
            "--microbatches": "from sched-json: microbatches (default: from the folder's name)",
            "--ranks": "to sched-json: number of ranks (default: one pipeline)",
            "--pipeline": "from plan: dp_rank of the pipeline to convert, if they are separate",
        },
    )


def _add_profile_arguments(parser: argparse.ArgumentParser) -> None:
    keep = Option(
        name="keep",
        kind=kareus_files.KeptRow,
        text="from kareus-profile: row to keep of several at one clock; least-energy compares the"
        " energy above --blocking-power if that is given",
        offline=kareus_files.KeptRow.LEAST_ENERGY,
    )
    add_option(parser, keep)
    parser.set_defaults(keep=kareus_files.KeptRow.LEAST_ENERGY)
    highest = "from envpipe-profile: highest clock in MHz (default: that of the log's plan)"
    _add_counts(parser, {"--highest-clock": highest})
    parser.add_argument(
        "--computing-power",
        metavar="W,W",
        type=_two_powers,
        help="from envpipe-profile: power in W of a computing GPU at the highest clock, and at the"
        " least-energy clock",
    )
    _add_counts(
        parser,
        {
            f"--{column.replace('_', '-')}": f"profile: set {column} of every row to N"
            for column in RANK_COLUMNS
        },
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--wide", action="store_true", help="profile: write all four rank columns")
    form.add_argument("--merge", action="store_true", help="profile: merge all ranks of a stage")


_count = argument_type(Option(kind=int, bounds=(0, 9_999_999)))


def _add_counts(parser: argparse.ArgumentParser, options: Mapping[str, str]) -> None:
    for option, what in options.items():
        parser.add_argument(option, metavar="N", type=_count, help=what)


def _two_powers(text: str) -> tuple[float, float]:
    try:
        powers_w = tuple(map(float, text.split(",")))
    except ValueError:
        powers_w = ()
    if len(powers_w) != 2 or not all(0 < power_w <= 100_000 for power_w in powers_w):
        raise argparse.ArgumentTypeError(f"must be two powers in W, such as 250,180, not {text!r}")
    return powers_w[0], powers_w[1]


def _run(arguments: Given) -> int:
    source, output = arguments.input, arguments.output
    if output.exists() and not arguments.force:
        raise CommandError(f"{output}: exists already; --force overwrites it")
    with offline_inputs.naming(source, "cannot be read"):
        text = _text_of(source)
        read_as = arguments.source or _format_of_input(arguments, text)
        write_as = arguments.target or _format_of_output(output, read_as)
        written, note = _converted(text, read_as, write_as, arguments)
    write_result(output, written)
    result: dict[str, Any] = {"output": str(output), "from": read_as, "to": write_as, **note}
    if arguments.json:
        print(json.dumps(result))
    else:
        facts = ", ".join(_counted(name, value) for name, value in note.items())
        print(f"{output}: {write_as} from {read_as}" + (f", {facts}" if facts else ""))
    return 0


_ONE = {"stages": "stage", "microbatches": "microbatch", "rows": "row", "requests": "request"}


def _counted(name: str, value: object) -> str:
    """Return `2 rows` of `num_rows`."""
    noun, *others = name.removeprefix("num_").split("_")
    return " ".join([str(value), _ONE.get(noun, noun) if value == 1 else noun, *others])


def _text_of(path: Path) -> str:
    try:
        return read_text(path)
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise CommandError(f"{path}: not UTF-8 text") from None


def _format_of_input(given: Given, text: str) -> str:
    """Return the format by name and content; a log may hold EnvPipe's plan and its profile."""
    path: Path = given.input
    if path.name.endswith(_SCHED_JSON_SUFFIX):
        return "sched-json"
    if path.suffix == ".json":
        document: object = json.loads(text)
        is_plan = isinstance(document, dict) and "blocking_power_w" in document
        return "plan" if is_plan else "order"
    if path.suffix == ".py":
        return "scheds" if path.name.startswith("scheds") else "freqs"
    return _format_of_csv(text) if path.suffix == ".csv" else _format_of_log(given, text)


def _format_of_csv(text: str) -> str:
    columns = [cell.strip() for cell in text.lstrip("\ufeff").partition("\n")[0].split(",")]
    if "instruction" not in columns:
        return "torch"
    return _KAREUS if kareus_files.is_kareus_header(columns) else _PROFILE


def _format_of_log(given: Given, text: str) -> str:
    if given.target in _PROFILE_FORMATS or not envpipe_files.has_plan(text):
        return _ENVPIPE_PROFILE
    is_for_csv = given.target is None and given.output.suffix == ".csv"
    return _ENVPIPE_PROFILE if is_for_csv and envpipe_files.has_profile(text) else "envpipe-plan"


def _format_of_output(path: Path, read_as: str) -> str:
    is_profile = read_as in _PROFILE_FORMATS
    if path.name.endswith(_SCHED_JSON_SUFFIX):
        return "sched-json"
    if path.suffix == ".py":
        return "scheds" if path.name.startswith("scheds") else "freqs"
    if path.suffix == ".json":
        return "order" if read_as in ("torch", "order") else "plan"
    if path.suffix == ".csv":
        return _PROFILE if is_profile else "torch"
    return _ENVPIPE_PROFILE if is_profile else "envpipe-plan"


def _converted(text: str, read_as: str, write_as: str, given: Given) -> tuple[str, dict[str, int]]:
    """Return the text to write, and counts to print."""
    if read_as in _PROFILE_FORMATS or write_as in _PROFILE_FORMATS:
        if not (read_as in _PROFILE_FORMATS and write_as in _PROFILE_FORMATS):
            raise CommandError(
                f"{given.input}: a {read_as} cannot become a {write_as}: the former holds measured"
                " points, the other a plan or an order; flyball plan makes a plan from a profile"
            )
        return _converted_profile(text, read_as, write_as, given)
    _check_no_profile_options(given)
    plan = _PLAN_FORMATS[read_as].read(text, given)
    if given.kernels is not None:
        plan = replace(plan, kernels=_kernels_of(given.kernels, plan))
    note = {
        "num_stages": plan.schedule.num_stages,
        "num_microbatches": plan.schedule.num_microbatches,
    }
    if read_as == "plan" and (num_early := _num_early_requests(json.loads(text), given.pipeline)):
        note["num_requests_left_out"] = num_early
    return _PLAN_FORMATS[write_as].write(plan, given), note


def _num_early_requests(plan: dict[str, Any], dp_rank: int | None) -> int:
    """Return the requests of a plan that is valid; of separate pipelines, of this rank's."""
    parts = [
        part
        for part in plan.get("pipelines", [plan])
        if dp_rank is None or dp_rank in (part["dp_rank"], *part.get("dp_ranks", ()))
    ]
    return sum(len(part.get("requests", ())) for part in parts)


def _converted_profile(
    text: str, read_as: str, write_as: str, given: Given
) -> tuple[str, dict[str, int]]:
    note: dict[str, int] = {}
    if read_as == _ENVPIPE_PROFILE:
        text = envpipe_files.profile_of_log(text, given.highest_clock, given.computing_power)
    elif read_as == _KAREUS:
        power_w = _power_of_kareus(given)
        kept = kareus_files.kareus_profile(text, given.keep, power_w)
        text, note = kept.text, {"num_rows_left_out": kept.num_left_out}
    elif write_as == _PROFILE:
        text = _in_another_form(given)
    if write_as == _ENVPIPE_PROFILE:
        return envpipe_files.profile_log_text(parse_stage_profile(text)), note
    return text, {"num_rows": len(parse_csv(text)[1]), **note}


def _power_of_kareus(given: Given) -> float:
    if given.blocking_power_w is None and given.gpu is None:
        return 0.0
    power_w = offline_inputs.blocking_power_w(
        given.blocking_power_w, offline_inputs.gpu_window(given.gpu)
    )
    if len(power_w) > 1:
        raise CommandError("--blocking-power: give one value for a profile's rows")
    return power_w[0]


def _labels_of(given: Given) -> dict[str, int]:
    labels = {column: getattr(given, column) for column in RANK_COLUMNS}
    return {column: value for column, value in labels.items() if value is not None}


def _in_another_form(given: Given) -> str:
    labels = _labels_of(given)
    if labels and (given.wide or given.merge):
        raise CommandError("a label marks one part of a profile; remove --wide and --merge")
    try:
        if given.merge:
            return merged_text(given.input)
        return wide_text(given.input) if given.wide else same_ranks_text(given.input, labels)
    except ProfileError as error:
        raise CommandError(str(error)) from None


def _check_no_profile_options(given: Given) -> None:
    if given.wide or given.merge or _labels_of(given):
        raise CommandError("--wide, --merge and labels are for profiles; remove them")


def _kernels_of(path: Path, plan: ForeignPlan) -> KernelSchedules:
    text = _text_of(path)
    with offline_inputs.naming(path):
        if path.suffix == ".csv":
            return kareus_files.kernels_of_profile(text, plan)
        return kareus_files.kernels_of_scheds(text, plan.schedule)


def _profile_and_power(given: Given) -> tuple[StageProfile, tuple[float, ...]]:
    if given.profile is None:
        raise CommandError(
            "a plan file holds predicted figures: give --profile PROFILE.csv and --blocking-power"
            " W, or --to order for the order alone"
        )
    profile = offline_inputs.read_profile(given.profile)
    gpu = offline_inputs.gpu_window(given.gpu)
    return profile, offline_inputs.blocking_power_w(given.blocking_power_w, gpu)


COMMAND = Command(configure=_configure, run=_run)
