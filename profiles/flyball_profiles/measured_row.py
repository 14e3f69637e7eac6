"""One row of a stage profile, from the text of CSV cells or the values of a JSON mapping."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from flyball_pipeline.instruction import InstructionKind
from flyball_profiles.gpu_conditions import GpuConditions
from flyball_profiles.stage_profile import (
    MAX_JITTER,
    MAX_RANK_WAITING_S,
    MAX_TIME_ERROR_S,
    EnergyScope,
    OperatingPoint,
    ProfileError,
    quantity_fault,
)

REQUIRED_COLUMNS = ("stage", "instruction", "frequency", "time", "energy")
DP_RANK_COLUMN = "dp_rank"
RANK_COLUMNS = ("rank", DP_RANK_COLUMN, "pp_rank", "tp_rank")
# Flyball's own: number of ranks in a row's energy, where a profile is written after its ranks
# were merged. Other readers ignore it; without it a row counts as one rank.
NUM_RANKS_COLUMN = "num_ranks"
# Flyball's own too: time that these ranks wait for the slowest of them, s, all together; empty or
# absent: 0.
RANK_WAITING_COLUMN = "rank_waiting"
# How well the time is known, each empty or absent where it is not: its standard error, s, and the
# share by which single runs scatter about it, which without a column of its own follows from the
# standard error of the mean of so many repetitions.
TIME_ERROR_COLUMN, JITTER_COLUMN, REPETITIONS_COLUMN = "time_error", "jitter", "num_repetitions"
# What the energy counts, `gpu` or `module`, the same in all rows; empty or absent: not recorded.
SCOPE_COLUMN = "energy_scope"
# Conditions that the GPU was measured under, `NAME=VALUE` with spaces between; empty or absent: not
# recorded.
CONDITIONS_COLUMN = "conditions"
# Limit that kept the GPU below the locked clock, such as `power`; empty or absent: it was held.
# A row whose lock was lost says nothing of a limit.
HELD_COLUMN, LOST = "held_by", "lost"
# Model chunk of the stage; empty or absent: the whole stage.
CHUNK_COLUMN = "chunk"

RankKey = tuple[tuple[str, int], ...]

# Plain ASCII decimals: float() alone would also take 1_000, nan and digits of other scripts.
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_LARGEST_COUNT = 1_000_000
_LONGEST_SHOWN = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredRow:
    """One measured operating point of one rank, and its place in the file.

    Attributes:
        line: 1-based line of the file, or row of a JSON profile.
        stage: pipeline stage, from 0.
        kind: the instruction measured.
        rank: (column, value) of each rank column; empty in a profile of one pipeline.
        num_ranks: ranks whose energy the row holds, at least 1.
        chunk: the model chunk measured, from 0; None: the whole stage.
        point: clock, time and energy.
        energy_scope: what the energy counts; None: not recorded.
        conditions: conditions that the GPU was measured under; None: not recorded.
    """

    line: int
    stage: int
    kind: InstructionKind
    rank: RankKey
    num_ranks: int
    chunk: int | None
    point: OperatingPoint
    energy_scope: EnergyScope | None = None
    conditions: GpuConditions | None = None

    @property
    def named(self) -> str:
        """Key of the row in messages: `stage 0 forward at 1410 MHz`."""
        of_chunk = "" if self.chunk is None else f" chunk {self.chunk}"
        return f"stage {self.stage}{of_chunk} {self.kind} at {self.point.frequency_mhz} MHz"


def parse_row(
    cells: Mapping[str, object], *, line: int, rank_columns: tuple[str, ...]
) -> MeasuredRow:
    """Read one row.

    Args:
        cells: column -> text or number; further columns are ignored.
        line: line or row number for errors.
        rank_columns: the rank columns of the whole profile; the row must have them all.

    Raises:
        ProfileError: a value is missing or not valid in its column; with the line.
    """
    try:
        rank = tuple((column, _count(cells, column)) for column in rank_columns)
        num_ranks = _count(cells, NUM_RANKS_COLUMN) if NUM_RANKS_COLUMN in cells else 1
        if num_ranks < 1:
            raise ProfileError("num_ranks must be at least 1")
        return MeasuredRow(
            line=line,
            stage=_count(cells, "stage"),
            kind=_kind(cells),
            rank=rank,
            num_ranks=num_ranks,
            chunk=_chunk(cells),
            point=_point(cells),
            energy_scope=_scope(cells),
            conditions=_conditions(cells),
        )
    except ProfileError as error:
        raise ProfileError(error.message, line=line) from None


def rank_name(rank: RankKey) -> str:
    """Return a rank's name in messages: its global number, else its coordinates."""
    by_column = dict(rank)
    if "rank" in by_column:
        return f"rank {by_column['rank']}"
    return ", ".join(f"{column} {value}" for column, value in rank)


def _count(cells: Mapping[str, object], column: str) -> int:
    value = _number(cells, column)
    # The range is checked first: int() of an infinity would raise.
    if not 0 <= value <= _LARGEST_COUNT or value != int(value):
        raise ProfileError(
            f"{column} must be a whole number from 0 to {_LARGEST_COUNT},"
            f" not {_shown(cells[column])}"
        )
    return int(value)


def _chunk(cells: Mapping[str, object]) -> int | None:
    if _is_empty(cells.get(CHUNK_COLUMN)):
        return None
    return _count(cells, CHUNK_COLUMN)


def _scope(cells: Mapping[str, object]) -> EnergyScope | None:
    value = cells.get(SCOPE_COLUMN)
    if _is_empty(value):
        return None
    try:
        return EnergyScope(value.strip() if isinstance(value, str) else "")
    except ValueError:
        known = " or ".join(EnergyScope)
        raise ProfileError(f"{SCOPE_COLUMN} must be {known}, not {_shown(value)}") from None


def _conditions(cells: Mapping[str, object]) -> GpuConditions | None:
    value = cells.get(CONDITIONS_COLUMN)
    if _is_empty(value):
        return None
    if not isinstance(value, str):
        raise ProfileError(f"{CONDITIONS_COLUMN} must be text, not {_shown(value)}")
    return _parsed_conditions(value)


@functools.lru_cache(maxsize=256)
def _parsed_conditions(text: str) -> GpuConditions:
    """Return the conditions of a text, which many rows share."""
    try:
        return GpuConditions.parse(text)
    except ValueError as error:
        raise ProfileError(f"{CONDITIONS_COLUMN}: {error}") from None


def _optional(cells: Mapping[str, object], column: str, most: float) -> float:
    """Return a number from 0 to `most`; 0 where the cell is empty or absent."""
    if _is_empty(cells.get(column)):
        return 0.0
    value = _number(cells, column)
    if not 0 <= value <= most:
        raise ProfileError(f"{column} must be from 0 to {most:g}, not {_shown(cells[column])}")
    return value


def _point(cells: Mapping[str, object]) -> OperatingPoint:
    frequency_mhz = int(_quantity(cells, "frequency", "frequency_mhz"))
    time_s = _quantity(cells, "time", "time_s")
    energy_j = _quantity(cells, "energy", "energy_j")
    time_error_s = _optional(cells, TIME_ERROR_COLUMN, MAX_TIME_ERROR_S)
    return OperatingPoint(
        frequency_mhz=frequency_mhz,
        time_s=time_s,
        energy_j=energy_j,
        rank_waiting_s=_optional(cells, RANK_WAITING_COLUMN, MAX_RANK_WAITING_S),
        time_error_s=time_error_s,
        jitter=_jitter(cells, time_error_s / time_s),
        held_by=_held_by(cells),
    )


def _held_by(cells: Mapping[str, object]) -> str:
    value = cells.get(HELD_COLUMN)
    if _is_empty(value):
        return ""
    text = value.strip() if isinstance(value, str) else "?"
    return "" if text == LOST else text


def _jitter(cells: Mapping[str, object], time_error: float) -> float:
    if not _is_empty(cells.get(JITTER_COLUMN)):
        return _optional(cells, JITTER_COLUMN, MAX_JITTER)
    if _is_empty(cells.get(REPETITIONS_COLUMN)):
        return 0.0
    return min(MAX_JITTER, time_error * math.sqrt(_count(cells, REPETITIONS_COLUMN)))


def _is_empty(value: object) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _quantity(cells: Mapping[str, object], column: str, field: str) -> float:
    value = _number(cells, column)
    fault = quantity_fault(field, value)
    if fault is not None:
        raise ProfileError(f"{column} {fault}, not {_shown(cells[column])}")
    return value


def _kind(cells: Mapping[str, object]) -> InstructionKind:
    value = _cell(cells, "instruction")
    try:
        return InstructionKind(value.strip() if isinstance(value, str) else "")
    except ValueError:
        known = ", ".join(sorted(InstructionKind))
        raise ProfileError(f"unknown instruction {_shown(value)}; known: {known}") from None


def _number(cells: Mapping[str, object], column: str) -> float:
    value = _cell(cells, column)
    if isinstance(value, str):
        text = value.strip()
        if not text:
            raise ProfileError(f"{column} is empty; give a number")
        if _DECIMAL.fullmatch(text):
            return float(text)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return float("inf")
    raise ProfileError(f"{column} must be a finite number, not {_shown(value)}")


def _cell(cells: Mapping[str, object], column: str) -> object:
    if column not in cells:
        raise ProfileError(f"{column} is missing")
    return cells[column]


def _shown(value: object) -> str:
    # repr keeps a line feed inside a cell from breaking the one-line message; an int of
    # thousands of digits has no repr at all.
    try:
        text = ascii(value)
    except ValueError:
        return "a number far too large"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
