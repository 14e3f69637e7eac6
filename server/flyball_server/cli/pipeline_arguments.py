"""The arguments that describe a pipeline, shared by the offline commands that plan."""

from __future__ import annotations

import argparse
import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from flyball_profiles.stage_profile import InstructionKind
from flyball_server.cli import offline_inputs
from flyball_server.planning import request_options
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.model.data_parallel import DataParallelRequest, separate_pipelines
from flyball_server.planning.planner import PlanRequest
from flyball_server.planning.request_options import Effort
from flyball_server.planning.schedule_choice import AUTO
from flyball_server.planning.schedules import SCHEDULES
from flyball_server.planning.schedules._base import (
    MAX_NUM_MICROBATCHES,
    ActivationMemory,
    ExplicitOrder,
    Instruction,
)
from flyball_server.planning.schedules.explicit import EXPLICIT, explicit_order
from flyball_server.planning.schedules.gpipe import CHECKPOINT_MODES
from flyball_wire.command import CommandError

# torch's text of an action: virtual stage, what, microbatch; two at once stand in brackets.
_ACTION = re.compile(r"(\d+)(SEND_F|RECV_F|SEND_B|RECV_B|UNSHARD|RESHARD|REDUCE_GRAD|F|I|W|B)(\d*)")
_KINDS = {
    "F": InstructionKind.FORWARD,
    "B": InstructionKind.BACKWARD,
    "I": InstructionKind.BACKWARD_INPUT,
    "W": InstructionKind.BACKWARD_WEIGHT,
}


def read_order(path: Path) -> ExplicitOrder:
    """The order of a `.csv` file of torch's, or else of a JSON file.

    JSON is `{"stages": [[["forward", 0], ["backward", 0, CHUNK], ...], ...]}`, with
    `"virtual_stages": [[0, 4], ...]` beside it where stages hold several chunks.

    Raises:
        CommandError: it cannot be read, or is no order; one line that names the place.
    """
    try:
        text = path.read_text(encoding="utf-8")
        return _of_csv(text) if path.suffix.lower() == ".csv" else _of_json(json.loads(text))
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror or error}") from None
    except PlanningError as error:
        raise CommandError(f"{path}: {error}") from None
    except (ValueError, RecursionError, csv.Error) as error:
        raise CommandError(f"{path}: not an order ({error})") from None


def _of_json(document: object) -> ExplicitOrder:
    if not isinstance(document, dict) or not isinstance(document.get("stages"), list):
        raise PlanningError("must be an object with a list of stages", field="order")
    fields = cast("dict[str, Any]", document)
    for stage, entries in enumerate(fields["stages"]):
        if not isinstance(entries, list) or not all(isinstance(entry, list) for entry in entries):
            raise PlanningError("must be a list of instructions", field=f"stages[{stage}]")
    places = fields.get("virtual_stages")
    if places is None:
        return explicit_order(fields["stages"], None)
    is_list = isinstance(places, list) and all(isinstance(of_stage, list) for of_stage in places)
    if not is_list or not all(type(place) is int for of_stage in places for place in of_stage):
        raise PlanningError("must be a list of counts per stage", field="virtual_stages")
    return explicit_order(fields["stages"], tuple(tuple(of_stage) for of_stage in places))


def _of_csv(text: str) -> ExplicitOrder:
    """A row per rank; its virtual stages, lowest first, are its chunks."""
    rows = [
        [action for cell in row for action in _actions(cell, line)]
        for line, row in enumerate(csv.reader(io.StringIO(text, newline="")), start=1)
        if row
    ]
    places = tuple(tuple(sorted({virtual for virtual, _, _ in row})) for row in rows)
    return ExplicitOrder(
        stages=tuple(
            tuple(
                Instruction(kind, microbatch, of_rank.index(virtual))
                for virtual, kind, microbatch in row
            )
            for row, of_rank in zip(rows, places, strict=True)
        ),
        virtual_stages=places,
    )


def _actions(cell: str, line: int) -> Iterator[tuple[int, InstructionKind, int]]:
    """(virtual stage, kind, microbatch) of each computation in a cell; transfers are none."""
    for part in _parts(cell.strip()):
        match = _ACTION.fullmatch(part.strip())
        if match is None:
            raise PlanningError(f"{part!r} is no action such as 2F0", field=f"line {line}")
        virtual, what, microbatch = match.groups()
        if what in _KINDS:
            if not microbatch:
                raise PlanningError(f"{part!r} names no microbatch", field=f"line {line}")
            yield int(virtual), _KINDS[what], int(microbatch)


def _parts(cell: str) -> Sequence[str]:
    if not cell:
        return ()
    together = re.fullmatch(r"\((.*)\)OVERLAP_F_B", cell)
    return together[1].split(";") if together else (cell,)


# How data-parallel pipelines are planned: one plan for all, or one for each.
MERGED, SEPARATE = "merged", "separate"

OPTION_OF_FIELD = {
    "num_microbatches": "--microbatches",
    "blocking_power_w": "--blocking-power",
    "activation_bytes": "--activation-bytes",
    "free_memory_bytes": "--free-memory-bytes",
    "profile": "PROFILE.csv",
    "virtual_stages": "--order",
}


def add_pipeline_arguments(parser: argparse.ArgumentParser) -> None:
    """Profile, microbatches, schedule, blocking power, memory, data parallelism and effort."""
    offline_inputs.add_profile_argument(parser)
    _add_order(parser)
    offline_inputs.add_blocking_power_argument(parser, "or name a --gpu whose table has it")
    parser.add_argument("--gpu", metavar="NAME", help="entry of the GPU table, as a100")
    _add_bytes(parser, "--activation-bytes", "held per microbatch in flight")
    _add_bytes(parser, "--free-memory-bytes", "free beside what 1F1B holds")
    parser.add_argument(
        "--data-parallel",
        choices=[MERGED, SEPARATE],
        default=MERGED,
        help="merged: one plan for all data-parallel pipelines; separate: one for each, by the"
        f" profile's column dp_rank, all done when the slowest is (default {MERGED})",
    )
    _add_solving(parser)


def _add_order(parser: argparse.ArgumentParser) -> None:
    """Dependencies between instructions."""
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
        help=f"{', '.join(names)} (default {request_options.DEFAULT_SCHEDULE}); auto: the one of"
        " least energy at the target among those that the profile and memory allow; auto:NAME,NAME:"
        " among these and 1f1b",
    )
    parser.add_argument(
        "--order",
        metavar="FILE",
        type=Path,
        help="an order in the place of a schedule: JSON, or torch.distributed.pipelining's CSV",
    )
    parser.add_argument(
        "--checkpoint",
        metavar="MODE",
        help=f"schedule torchgpipe: which microbatches are computed forward again before their"
        f" backward: {', '.join(CHECKPOINT_MODES)} (default {CHECKPOINT_MODES[0]})",
    )


def _add_solving(parser: argparse.ArgumentParser) -> None:
    """Options of policy `frontier`."""
    parser.add_argument(
        "--effort",
        choices=list(map(str, Effort)),
        default=str(Effort.NORMAL),
        help="policy frontier: how long to search for clocks near the bound (default normal)",
    )
    parser.add_argument(
        "--reserve",
        metavar="SHARE",
        type=float,
        default=0.0,
        help="policy frontier: by how much instructions may take longer than profiled without a"
        " longer iteration, as far as the pipeline allows: 0.01, say (default %(default)s)",
    )


def add_choice(
    parser: argparse.ArgumentParser, option: str, names: Iterable[str], default: str
) -> None:
    """An option whose names the planning core knows, and refuses in one line itself."""
    parser.add_argument(option, default=default, help=f"{', '.join(names)} (default {default})")


def request_of(
    arguments: argparse.Namespace, *, policy: str, reconfigure: str, target: str
) -> PlanRequest | DataParallelRequest:
    """Return what `add_pipeline_arguments` describes, for this policy and target.

    Raises:
        PlanningError: a part of it cannot be used; names its field.
    """
    is_separate = arguments.data_parallel == SEPARATE
    profiles = (
        offline_inputs.read_pipelines(arguments.profile)
        if is_separate
        else (offline_inputs.read_profile(arguments.profile),)
    )
    order = read_order(arguments.order) if arguments.order else None
    gpu = offline_inputs.gpu_window(arguments.gpu)
    granularity_mhz = gpu.reconfigure_granularity_mhz if gpu else None
    request = PlanRequest(
        profile=profiles[0],
        num_microbatches=arguments.microbatches,
        blocking_power_w=offline_inputs.blocking_power_w(arguments.blocking_power, gpu),
        schedule=arguments.schedule or (EXPLICIT if order else request_options.DEFAULT_SCHEDULE),
        policy=policy,
        reconfigure=reconfigure,
        target=target,
        activation_memory=_activation_memory(arguments, profiles[0].num_stages),
        reconfigure_granularity_mhz=(
            granularity_mhz or request_options.DEFAULT_RECONFIGURE_GRANULARITY_MHZ
        ),
        effort=Effort(arguments.effort),
        checkpoint=arguments.checkpoint,
        order=order,
        reserve=arguments.reserve,
    )
    return separate_pipelines(request, profiles) if is_separate else request


def refused(error: PlanningError) -> CommandError:
    """The planning core's refusal, with the option in the place of the field."""
    option = OPTION_OF_FIELD.get(error.field, f"--{error.field}")
    return CommandError(f"{option}: {error.message}")


def _add_bytes(parser: argparse.ArgumentParser, option: str, what: str) -> None:
    parser.add_argument(
        option,
        metavar="N",
        type=_sizes,
        help=f"bytes {what}, one value or one per stage: bounds the extra forwards of envpipe, and"
        " an order that does not fit is refused",
    )


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of bytes, nor one per stage as in 1000,2000"
        ) from None


def _activation_memory(arguments: argparse.Namespace, num_stages: int) -> ActivationMemory | None:
    sizes, free = arguments.activation_bytes, arguments.free_memory_bytes
    if sizes is None and free is None:
        return None
    if sizes is None or free is None:
        raise CommandError("give --activation-bytes and --free-memory-bytes together, or neither")
    return ActivationMemory(
        activation_bytes=_per_stage("--activation-bytes", sizes, num_stages),
        free_bytes=_per_stage("--free-memory-bytes", free, num_stages),
    )


def _per_stage(option: str, sizes: tuple[int, ...], num_stages: int) -> tuple[int, ...]:
    if len(sizes) not in {1, num_stages}:
        raise CommandError(
            f"{option}: {len(sizes)} values for {num_stages} stages; give one, or one per stage"
        )
    return sizes * num_stages if len(sizes) == 1 else sizes
