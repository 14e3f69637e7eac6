"""Files of orders without clocks: Flyball's JSON, and the CSV of torch.distributed.pipelining."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flyball_pipeline.instruction import InstructionKind
from flyball_pipeline.schedules.explicit import explicit_order
from flyball_pipeline.schedules.inputs import ExplicitOrder
from flyball_profiles.limited_file import read_text
from flyball_server.cli.offline_inputs import naming
from flyball_server.planning.documents.plan_document import read_part
from flyball_server.planning.errors import PlanningError
from flyball_wire.plan_options import Order

# torch's text of an action: virtual stage, what, microbatch; concurrent ones are in brackets.
_ACTION = re.compile(r"(\d+)(SEND_F|RECV_F|SEND_B|RECV_B|UNSHARD|RESHARD|REDUCE_GRAD|F|I|W|B)(\d*)")
_KINDS = {
    "F": InstructionKind.FORWARD,
    "B": InstructionKind.BACKWARD,
    "I": InstructionKind.BACKWARD_INPUT,
    "W": InstructionKind.BACKWARD_WEIGHT,
}
_LETTERS = {kind: letter for letter, kind in _KINDS.items()}


OrderOptions = tuple[Order, tuple[tuple[int, ...], ...] | None]
"""Options `order` and `virtual_stages` of a plan."""


def read_order(path: Path) -> OrderOptions:
    """Read the order of a torch `.csv` file, or else of a JSON file.

    JSON is `{"stages": [[["forward", 0], ["backward", 0, CHUNK], ...], ...]}`, with
    `"virtual_stages": [[0, 4], ...]` beside it if stages hold several chunks.

    Raises:
        CommandError: the file cannot be read or parsed; one line that names the place.
    """
    with naming(path, "not an order"):
        text = read_text(path)
        is_csv = path.suffix.lower() == ".csv"
        return order_of_torch_csv(text) if is_csv else order_of_document(json.loads(text))


@dataclass(frozen=True, kw_only=True)
class _OrderDocument:
    stages: tuple[tuple[tuple[Any, ...], ...], ...]
    virtual_stages: tuple[tuple[int, ...], ...] | None = None


def order_of_document(document: object) -> OrderOptions:
    """Read the JSON of an order.

    Raises:
        PlanningError: it is none; names the place.
    """
    read = read_part(_OrderDocument, document, "order")
    explicit_order(read.stages, read.virtual_stages)  # names the place of a wrong entry
    return read.stages, read.virtual_stages


def order_of_torch_csv(text: str) -> OrderOptions:
    """Read torch's CSV: a row per rank; its virtual stages, lowest first, are its chunks.

    Raises:
        PlanningError: a cell is no action; names the line.
        csv.Error: it is no CSV.
    """
    rows = [
        [action for cell in row for action in _actions(cell, line)]
        for line, row in enumerate(csv.reader(io.StringIO(text, newline="")), start=1)
        if row
    ]
    places = tuple(tuple(sorted({virtual for virtual, _, _ in row})) for row in rows)
    order = tuple(
        tuple((str(kind), microbatch, of_rank.index(virtual)) for virtual, kind, microbatch in row)
        for row, of_rank in zip(rows, places, strict=True)
    )
    return order, places


def _actions(cell: str, line: int) -> Iterator[tuple[int, InstructionKind, int]]:
    """Yield (virtual stage, kind, microbatch) of each computation in a cell, not of transfers."""
    for part in _parts(cell.strip()):
        match = _ACTION.fullmatch(part.strip())
        if match is None:
            raise PlanningError(f"{part[:40]!r} is not an action such as 2F0", field=f"line {line}")
        virtual, what, microbatch = match.groups()
        if what in _KINDS:
            if not microbatch:
                raise PlanningError(f"{part[:40]!r} names no microbatch", field=f"line {line}")
            yield int(virtual), _KINDS[what], int(microbatch)


def _parts(cell: str) -> Sequence[str]:
    if not cell:
        return ()
    together = re.fullmatch(r"\((.*)\)OVERLAP_F_B", cell)
    return together[1].split(";") if together else (cell,)


def order_document(order: ExplicitOrder) -> dict[str, Any]:
    """Return the JSON of an order, as `read_order` reads it."""
    stages = [
        [
            [str(kind), microbatch, chunk] if chunk else [str(kind), microbatch]
            for kind, microbatch, chunk in stage
        ]
        for stage in order.stages
    ]
    places = {"virtual_stages": [list(of_stage) for of_stage in order.virtual_stages]}
    return {"stages": stages, **(places if order.virtual_stages else {})}


def torch_csv_text(order: ExplicitOrder) -> str:
    """Return torch's CSV of an order: computations only, a row per rank.

    Raises:
        PlanningError: it recomputes, for which torch has no action.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    for stage, instructions in enumerate(order.stages):
        places = order.virtual_stages[stage] if order.virtual_stages else (stage,)
        cells: list[str] = []
        for kind, microbatch, chunk in instructions:
            if kind not in _LETTERS:
                raise PlanningError(f"torch's CSV has no action for {kind}", field="stages")
            cells.append(f"{places[chunk]}{_LETTERS[kind]}{microbatch}")
        writer.writerow(cells)
    return text.getvalue()
