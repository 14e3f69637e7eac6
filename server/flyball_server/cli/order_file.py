"""An order in a file: JSON, or the CSV in which torch.distributed.pipelining writes a schedule."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from flyball_profiles.stage_profile import InstructionKind
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.schedules._base import ExplicitOrder, Instruction
from flyball_server.planning.schedules.explicit import explicit_order
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
