"""Recorded steps: the time of each forward and backward of each rank, as CSV.

The columns are `step, dp_rank, stage, instruction, microbatch, begin_s, time_s`, and `chunk` where
stages hold several model chunks. Other columns are left out. A stage's order is that of the begins.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from flyball_pipeline.instruction import Instruction, InstructionKind
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
    """Read recorded steps from CSV text, in the order of the file.

    Raises:
        RecordingError: the text is no such file; begins with the line.
    """
    rows = list(_rows(text))
    if not rows:
        raise RecordingError("line 1: there are no rows after the header")
    return recorded_steps(rows)


def recorded_steps(rows: Iterable[StepRow]) -> tuple[RecordedStep, ...]:
    """Return the steps of rows, in their order.

    Raises:
        RecordingError: an instruction is there twice, or a stage is missing.
    """
    by_pipeline: dict[tuple[int, int], list[StepRow]] = {}
    for row in rows:
        by_pipeline.setdefault((row.step, row.dp_rank), []).append(row)
    by_step: dict[int, list[RecordedPipeline]] = {}
    for (step, dp_rank), of_pipeline in by_pipeline.items():
        by_step.setdefault(step, []).append(_pipeline(dp_rank, of_pipeline))
    return tuple(
        RecordedStep(step=step, pipelines=tuple(sorted(pipelines, key=lambda each: each.dp_rank)))
        for step, pipelines in by_step.items()
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


def _pipeline(dp_rank: int, rows: list[StepRow]) -> RecordedPipeline:
    first = rows[0]
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
    missing = next(stage for stage in itertools.count() if stage not in by_stage)
    if missing < len(by_stage):
        raise RecordingError(
            f"{first.source}: step {first.step}, dp_rank {dp_rank} has no stage {missing};"
            " stages count from 0 without gaps"
        )
    return RecordedPipeline(
        dp_rank=dp_rank,
        stages=tuple(
            tuple(row.timed for row in sorted(by_stage[stage], key=lambda row: row.begin_s))
            for stage in range(len(by_stage))
        ),
        source=first.source,
    )


def _rows(text: str) -> Iterator[StepRow]:
    reader = csv.DictReader(io.StringIO(text))
    try:
        header = [(name or "").strip() for name in reader.fieldnames or ()]
        missing = [name for name in COLUMNS if name not in header]
        if missing:
            raise RecordingError(
                f"line 1: column {missing[0]} is missing; the columns are {', '.join(COLUMNS)},"
                f" and {_CHUNK} where stages hold several model chunks"
            )
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
