"""Recorded steps: the time of each forward and backward of each rank, as CSV.

The columns are `step, dp_rank, stage, instruction, microbatch, begin_s, time_s`, and `chunk` where
stages hold several model chunks. Other columns are left out. A stage's order is that of the begins.
Two chunks are in a V where a forward of the second begins on the last stage before the first stage.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from flyball_pipeline.instruction import Instruction, InstructionKind
from flyball_pipeline.schedule import VirtualStages, looped, v_shaped
from flyball_server.replay.recorded_runs import RecordingError

COLUMNS = ("step", "dp_rank", "stage", "instruction", "microbatch", "begin_s", "time_s")
_CHUNK = "chunk"
# Beyond these a number is a wrong unit or a broken file.
_MAX_NUMBER, _MAX_TIME_S = 10**9, 1e6


class TimedInstruction(NamedTuple):
    """An instruction and its time at the highest clock, s."""

    instruction: Instruction
    time_s: float


@dataclass(frozen=True, kw_only=True)
class RecordedPipeline:
    """One pipeline in one step."""

    #: Number of the pipeline.
    dp_rank: int
    #: Per stage, its instructions in the order of execution.
    stages: tuple[tuple[TimedInstruction, ...], ...]
    #: Per stage, the places of its chunks in the model.
    virtual_stages: VirtualStages
    #: Where its first instruction was read.
    source: str


@dataclass(frozen=True, kw_only=True)
class RecordedStep:
    """One step of all pipelines."""

    #: Number of the step.
    step: int
    #: The pipelines, by `dp_rank`.
    pipelines: tuple[RecordedPipeline, ...]


class StepRow(NamedTuple):
    """An instruction of one rank, as it was recorded."""

    step: int
    dp_rank: int
    stage: int
    begin_s: float
    timed: TimedInstruction
    #: Where it was read, for faults.
    source: str


def parse_recorded_steps(text: str) -> tuple[RecordedStep, ...]:
    """Read recorded steps from CSV text.

    Raises:
        RecordingError: the text is no such file; begins with the line.
    """
    rows = list(_rows(text))
    if not rows:
        raise RecordingError("line 1: there are no rows after the header")
    return recorded_steps(rows)


def recorded_steps(
    rows: Iterable[StepRow], *, is_v_shaped: bool | None = None
) -> tuple[RecordedStep, ...]:
    """Return the steps of rows, by number.

    Args:
        rows: their instructions, in any order.
        is_v_shaped: whether two chunks of a stage are in a V; None: as the begins say.

    Raises:
        RecordingError: an instruction is there twice, or a stage, chunk or microbatch is missing.
    """
    by_pipeline: dict[tuple[int, int], list[StepRow]] = {}
    for row in rows:
        by_pipeline.setdefault((row.step, row.dp_rank), []).append(row)
    every_row = [row for of_pipeline in by_pipeline.values() for row in of_pipeline]
    num_stages = 1 + max(row.stage for row in every_row)
    num_chunks = 1 + max(row.timed.instruction.chunk for row in every_row)
    by_step: dict[int, list[RecordedPipeline]] = {}
    for (step, _), of_pipeline in sorted(by_pipeline.items()):
        pipeline = _pipeline(of_pipeline, num_stages, num_chunks, is_v_shaped)
        by_step.setdefault(step, []).append(pipeline)
    return tuple(
        RecordedStep(step=step, pipelines=tuple(pipelines)) for step, pipelines in by_step.items()
    )


def has_chunks(steps: tuple[RecordedStep, ...]) -> bool:
    """Return whether a stage holds several model chunks."""
    return any(
        timed.instruction.chunk
        for recorded in steps
        for pipeline in recorded.pipelines
        for stage in pipeline.stages
        for timed in stage
    )


def _pipeline(
    rows: list[StepRow], num_stages: int, num_chunks: int, is_v_shaped: bool | None
) -> RecordedPipeline:
    first, dp_rank = rows[0], rows[0].dp_rank
    by_stage: dict[int, list[StepRow]] = {}
    seen: dict[tuple[int, Instruction], str] = {}
    for row in rows:
        key = (row.stage, row.timed.instruction)
        if key in seen:
            raise RecordingError(
                f"{row.source}: step {row.step}, dp_rank {dp_rank}, stage {row.stage} runs"
                f" {row.timed.instruction.kind} of microbatch {row.timed.instruction.microbatch}"
                f" twice; first in {seen[key]}"
            )
        seen[key] = row.source
        by_stage.setdefault(row.stage, []).append(row)
    microbatches = {row.timed.instruction.microbatch for row in rows}
    for name, numbers, num in (
        ("stage", set(by_stage), num_stages),
        ("chunk", {row.timed.instruction.chunk for row in rows}, num_chunks),
        ("microbatch", microbatches, 1 + max(microbatches)),
    ):
        missing = next(number for number in itertools.count() if number not in numbers)
        if missing < num:
            raise RecordingError(
                f"{first.source}: step {first.step}, dp_rank {dp_rank} has no {name} {missing};"
                f" {name} numbers count from 0 without gaps"
            )
    if is_v_shaped is None:
        is_v_shaped = num_stages > 1 and _begins_on_last(by_stage[0], by_stage[num_stages - 1])
    return RecordedPipeline(
        dp_rank=dp_rank,
        stages=tuple(
            tuple(row.timed for row in sorted(by_stage[stage], key=lambda row: row.begin_s))
            for stage in range(num_stages)
        ),
        virtual_stages=(
            v_shaped(num_stages)
            if is_v_shaped and num_chunks == 2
            else looped(num_stages, num_chunks)
        ),
        source=first.source,
    )


def _begins_on_last(first_stage: Sequence[StepRow], last_stage: Sequence[StepRow]) -> bool:
    """Return whether the first forward of chunk 1 begins on the last stage."""
    begins_s = [
        min(
            (
                row.begin_s
                for row in rows
                if row.timed.instruction.chunk == 1
                and row.timed.instruction.kind == InstructionKind.FORWARD
            ),
            default=math.inf,
        )
        for rows in (first_stage, last_stage)
    ]
    return begins_s[1] < begins_s[0]


def _rows(text: str) -> Iterator[StepRow]:
    reader = csv.DictReader(io.StringIO(text, newline=None))
    try:
        header = [(name or "").strip() for name in reader.fieldnames or ()]
        missing = [name for name in COLUMNS if name not in header]
        if missing:
            raise RecordingError(
                f"line 1: column {missing[0]} is missing; the columns are {', '.join(COLUMNS)},"
                f" and {_CHUNK} where stages hold several model chunks"
            )
        twice = [name for name in (*COLUMNS, _CHUNK) if header.count(name) > 1]
        if twice:
            raise RecordingError(f"line 1: column {twice[0]} is there twice")
        reader.fieldnames = header
        for cells in reader:
            yield _row(cells, reader.line_num)
    except csv.Error as error:
        raise RecordingError(f"line {reader.line_num}: not CSV ({error})") from None


def _row(cells: Mapping[str, str | None], line: int) -> StepRow:
    kind = (cells["instruction"] or "").strip()
    if kind not in set(InstructionKind):
        raise RecordingError(
            f"line {line}: unknown instruction {kind[:40]!a}; known: {', '.join(InstructionKind)}"
        )
    chunk = _count(cells, _CHUNK, line) if _CHUNK in cells else 0
    begin_s, time_s = _number(cells, "begin_s", line), _number(cells, "time_s", line)
    if not 0 < time_s <= _MAX_TIME_S:
        raise RecordingError(
            f"line {line}: time_s must be above 0, at most {_MAX_TIME_S:g}, not {time_s:g}"
        )
    return StepRow(
        step=_count(cells, "step", line),
        dp_rank=_count(cells, "dp_rank", line),
        stage=_count(cells, "stage", line),
        begin_s=begin_s,
        timed=TimedInstruction(
            Instruction(InstructionKind(kind), _count(cells, "microbatch", line), chunk), time_s
        ),
        source=f"line {line}",
    )


def _count(cells: Mapping[str, str | None], column: str, line: int) -> int:
    text = (cells[column] or "").strip()
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise RecordingError(
            f"line {line}: {column} must be a whole number from 0 to {_MAX_NUMBER - 1}, not"
            f" {text[:40]!a}"
        )
    return int(text)


def _number(cells: Mapping[str, str | None], column: str, line: int) -> float:
    text = (cells[column] or "").strip()
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise RecordingError(
            f"line {line}: {column} must be a number of seconds, not {text[:40]!a}"
        )
    return number
