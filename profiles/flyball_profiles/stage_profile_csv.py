"""Reading and writing stage profiles: CSV text, CSV files, and the rows of a JSON profile.

The columns are `stage,instruction,frequency,time,energy` (MHz, s, J). A profile of several
ranks adds any of `rank,dp_rank,pp_rank,tp_rank`, which then belong to a row's key; it is read
as one profile of all ranks merged, or as one for each data-parallel pipeline. Where a stage
holds several model chunks, the column `chunk` has the number of the chunk.
"""

from __future__ import annotations

import csv
import io
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import NamedTuple, cast

from flyball_pipeline.instruction import InstructionKind
from flyball_profiles.gpu_conditions import GpuConditions
from flyball_profiles.limited_file import read_bytes
from flyball_profiles.measured_row import (
    CHUNK_COLUMN,
    CONDITIONS_COLUMN,
    DP_RANK_COLUMN,
    HELD_COLUMN,
    JITTER_COLUMN,
    NUM_RANKS_COLUMN,
    RANK_COLUMNS,
    RANK_WAITING_COLUMN,
    REPETITIONS_COLUMN,
    REQUIRED_COLUMNS,
    SCOPE_COLUMN,
    TIME_ERROR_COLUMN,
    MeasuredRow,
    parse_row,
)
from flyball_profiles.rank_merge import merge_each, merge_rows
from flyball_profiles.stage_profile import ProfileError, StageProfile

_logger = logging.getLogger(__name__)

# Names that stand for one of ours without being like it.
_ABBREVIATIONS = {"f", "fw", "b", "bw", "bwd", "i", "w"}
_OTHER_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_HEADER = ",".join(REQUIRED_COLUMNS)
# Time in s of a forward at the highest clock from which on it is thought to be in ms.
_LONG_S = 5.0


class _LeftOutRows:
    """Rows of instructions that no plan knows, as `load` of a data loader; they are left out."""

    def __init__(self) -> None:
        self._lines: dict[str, list[int]] = {}

    def take(self, cells: Mapping[str, object], line: int) -> bool:
        """Return whether a row is left out; one that may be misspelt is not."""
        name = cells.get("instruction")
        name = name.strip() if isinstance(name, str) else ""
        lower = name.lower()
        is_ours = lower in _ABBREVIATIONS or get_close_matches(lower, list(InstructionKind))
        is_other = not is_ours and _OTHER_NAME.fullmatch(name) is not None
        if is_other:
            self._lines.setdefault(name, []).append(line)
        return is_other

    def log(self, place: str) -> None:
        """Log a line for each instruction; `place` is `line` or `row`."""
        for name, lines in self._lines.items():
            text = "rows of instruction %r are left out (%d, the first in %s %d)"
            _logger.warning(text, name, len(lines), place, lines[0])


def read_stage_profile(path: Path) -> StageProfile:
    """Read a stage profile from a CSV file, all ranks of a stage merged.

    Raises:
        ProfileError: the file cannot be read, is not UTF-8, or is no usable profile. Print
            `error.located(str(path))`.
    """
    return parse_stage_profile(profile_text(path))


def read_pipeline_profiles(path: Path) -> tuple[StageProfile, ...]:
    """Read the stage profile of each data-parallel pipeline from a CSV file, by `dp_rank`.

    Raises:
        ProfileError: as `read_stage_profile`, or pipelines cannot be separated or differ.
    """
    return parse_pipeline_profiles(profile_text(path))


def parse_stage_profile(text: str) -> StageProfile:
    """Read a stage profile from CSV text, all ranks of a stage merged.

    Raises:
        ProfileError: with the 1-based line where one applies.
    """
    profile = merge_rows(_measured_rows(text), place="line")
    _check_whole([profile])
    return profile


def parse_pipeline_profiles(text: str) -> tuple[StageProfile, ...]:
    """Read the stage profile of each data-parallel pipeline from CSV text, by `dp_rank`.

    Raises:
        ProfileError: the rows have no `dp_rank`, a `dp_rank` is skipped, the rows of one are
            no usable profile, or pipelines differ in their stages and instructions; with the
            first line concerned where there is one.
    """
    rows = _measured_rows(text)
    if not rows:
        return (merge_rows(rows, place="line"),)  # refuses a profile without rows
    by_dp_rank: dict[int, list[MeasuredRow]] = {}
    for row in rows:
        dp_rank = dict(row.rank).get(DP_RANK_COLUMN)
        if dp_rank is None:
            raise ProfileError(
                f"the profile has no column {DP_RANK_COLUMN}, the number of a row's pipeline;"
                " data-parallel pipelines cannot be separated without it"
            )
        by_dp_rank.setdefault(dp_rank, []).append(row)
    profiles = merge_each(
        by_dp_rank, DP_RANK_COLUMN, "data-parallel ranks", partial(merge_rows, place="line")
    )
    if len({len(profile.chunks) for profile in profiles}) > 1:
        raise ProfileError("all pipelines must have been measured with the same number of chunks")
    for chunk, of_pipelines in enumerate(zip(*(each.chunks for each in profiles), strict=True)):
        of_chunk = [row for row in rows if row.chunk == chunk]
        _check_same_instructions(of_pipelines, of_chunk, f"chunk {chunk} of ")
    _check_same_instructions(profiles, rows, "")
    _check_whole(profiles)
    return profiles


def _check_whole(profiles: Sequence[StageProfile]) -> None:
    """Refuse a profile without a choice of clocks, and warn of one whose times look like ms.

    Raises:
        ProfileError: every instruction has a single frequency.
    """
    forwards_s = [
        points[0].time_s
        for profile in profiles
        for (_, kind), points in profile.points.items()
        if kind == InstructionKind.FORWARD
    ]
    if forwards_s and min(forwards_s) >= _LONG_S:
        _logger.warning(
            "every forward of the profile takes %g s or more: times count as s, energies as J;"
            " divide a column in ms or mJ by 1000",
            min(forwards_s),
        )
    if all(len(points) == 1 for profile in profiles for points in profile.points.values()):
        raise ProfileError(
            "every instruction has a single frequency; at least one needs two to choose from"
        )


def _check_same_instructions(
    profiles: Sequence[StageProfile], rows: Sequence[MeasuredRow], of_chunk: str
) -> None:
    for stage, kind in sorted({key for profile in profiles for key in profile.points}):
        having = [(stage, kind) in profile.points for profile in profiles]
        if not all(having):
            with_it, without_it = having.index(True), having.index(False)
            raise ProfileError(
                f"{of_chunk}stage {stage} {kind} was measured on dp_rank {with_it} but not on"
                f" dp_rank {without_it}; all pipelines have the same stages and instructions",
                line=next(row.line for row in rows if (row.stage, row.kind) == (stage, kind)),
                stage=stage,
            )


def parse_stage_profile_rows(rows: object) -> StageProfile:
    """Read a stage profile from JSON already decoded: a list of objects with the CSV's keys.

    Args:
        rows: any value; one that is not a list of mappings is refused like any other fault.

    Raises:
        ProfileError: `line` is the 1-based row, which the message names too.
    """
    if not isinstance(rows, list | tuple):
        raise ProfileError(f"the profile must be a list of rows with the keys {_HEADER}")
    cells: list[Mapping[str, object]] = []
    for line, row in enumerate(cast("Sequence[object]", rows), start=1):
        if not isinstance(row, Mapping):
            raise ProfileError(f"row {line}: must be an object with the keys {_HEADER}", line=line)
        cells.append(cast("Mapping[str, object]", row))
    rank_columns = tuple(column for column in RANK_COLUMNS if any(column in row for row in cells))
    left_out = _LeftOutRows()
    try:
        parsed = [
            parse_row(row, line=line, rank_columns=rank_columns)
            for line, row in enumerate(cells, start=1)
            if not left_out.take(row, line)
        ]
        left_out.log("row")
        profile = merge_rows(parsed, place="row")
        _check_whole([profile])
        return profile
    except ProfileError as error:
        if error.line is None:
            raise
        message = f"row {error.line}: {error.message}"
        raise ProfileError(message, line=error.line, stage=error.stage) from None


def stage_profile_rows(profile: StageProfile) -> list[dict[str, int | float | str | None]]:
    """Return the profile as rows of JSON, the inverse of `parse_stage_profile_rows`.

    Rows run by stage, then instruction, then falling frequency; those of the whole stages come
    first, then chunk after chunk. Where a stage holds the energy of several ranks, every row has
    `num_ranks` too, and where these wait for one another `rank_waiting`; where the scatter of times
    is known, `time_error` and `jitter`; where clocks were not held, `held_by`; where it is known
    what the energies count, `energy_scope`; where the GPUs' conditions are known, `conditions`;
    where there are chunks, every row has `chunk`, None (an empty cell) for the whole stage.
    """
    every_point = [
        point
        for part in (profile, *profile.chunks)
        for points in part.points.values()
        for point in points
    ]
    with_waiting = any(point.rank_waiting_s for point in every_point)
    with_scatter = any(point.time_error_s or point.jitter for point in every_point)
    with_limits = any(point.held_by for point in every_point)
    with_num_ranks = any(num_ranks > 1 for num_ranks in profile.num_ranks_per_stage)
    rows: list[dict[str, int | float | str | None]] = []
    for chunk, of_chunk in ((None, profile), *enumerate(profile.chunks)):
        for stage, num_ranks in enumerate(of_chunk.num_ranks_per_stage):
            for kind in InstructionKind:
                for point in of_chunk.points.get((stage, kind), ()):
                    row: dict[str, int | float | str | None] = {
                        "stage": stage,
                        "instruction": kind.value,
                        "frequency": point.frequency_mhz,
                        "time": point.time_s,
                        "energy": point.energy_j,
                    }
                    if with_num_ranks:
                        row[NUM_RANKS_COLUMN] = num_ranks
                    if with_waiting:
                        row[RANK_WAITING_COLUMN] = point.rank_waiting_s
                    if with_scatter:
                        row[TIME_ERROR_COLUMN] = point.time_error_s
                        row[JITTER_COLUMN] = point.jitter
                    if with_limits:
                        row[HELD_COLUMN] = point.held_by or None
                    if profile.energy_scope is not None:
                        row[SCOPE_COLUMN] = profile.energy_scope.value
                    if profile.conditions:
                        row[CONDITIONS_COLUMN] = _conditions_text(profile.conditions[stage])
                    if profile.chunks:
                        row[CHUNK_COLUMN] = chunk
                    rows.append(row)
    return rows


def _conditions_text(conditions: GpuConditions | None) -> str | None:
    return None if conditions is None else str(conditions)


def write_stage_profile(profile: StageProfile) -> str:
    """Return the profile as CSV text with all digits, the inverse of `parse_stage_profile`."""
    rows = stage_profile_rows(profile)
    return csv_text(list(rows[0]), rows)


def csv_text(columns: Sequence[str], rows: Sequence[Mapping[str, object]]) -> str:
    """Return CSV text with a header; cells that are missing or None are empty."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def profile_text(path: Path) -> str:
    """Return the text of a file.

    Raises:
        ProfileError: the file cannot be read or is not UTF-8.
    """
    try:
        content = read_bytes(path)
    except (OSError, ValueError) as error:  # ValueError: a NUL inside the path
        reason = error.strerror if isinstance(error, OSError) else None
        raise ProfileError(f"cannot read the profile: {reason or error}") from None
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ProfileError("not UTF-8 text; save the profile as UTF-8 CSV", line=line) from None


class CsvRow(NamedTuple):
    """One row: its cells as in the file, and their values."""

    cells: Mapping[str, str]
    measured: MeasuredRow


def parse_csv(text: str) -> tuple[tuple[str, ...], list[CsvRow]]:
    """Return the columns and the rows of CSV text, which may be a part of a profile.

    Raises:
        ProfileError: with the 1-based line where one applies.
    """
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise ProfileError("a NUL byte in the text; save the profile as UTF-8 CSV", line=line)
    records = _records(text.removeprefix("\ufeff"))
    header_line, header = next(records, (1, ()))
    if not header:
        raise ProfileError(f"the profile is empty; its first line must be {_HEADER}")
    columns = tuple(cell.strip() for cell in header)
    missing = [column for column in REQUIRED_COLUMNS if column not in columns]
    if missing:
        plural = "s" if len(missing) > 1 else ""
        raise ProfileError(
            f"missing column{plural} {', '.join(missing)}; the header must have {_HEADER}",
            line=header_line,
        )
    for column in (
        *REQUIRED_COLUMNS,
        *RANK_COLUMNS,
        CHUNK_COLUMN,
        NUM_RANKS_COLUMN,
        RANK_WAITING_COLUMN,
        TIME_ERROR_COLUMN,
        JITTER_COLUMN,
        REPETITIONS_COLUMN,
        HELD_COLUMN,
        SCOPE_COLUMN,
    ):
        if columns.count(column) > 1:
            raise ProfileError(f"the column {column} is in the header twice", line=header_line)
    rank_columns = tuple(column for column in RANK_COLUMNS if column in columns)
    rows: list[CsvRow] = []
    left_out = _LeftOutRows()
    for line, values in records:
        if len(values) != len(columns):
            raise ProfileError(
                f"{len(values)} cells in the row for {len(columns)} columns in the header",
                line=line,
            )
        cells = dict(zip(columns, values, strict=True))
        if not left_out.take(cells, line):
            rows.append(CsvRow(cells, parse_row(cells, line=line, rank_columns=rank_columns)))
    left_out.log("line")
    return columns, rows


def _measured_rows(text: str) -> list[MeasuredRow]:
    return [row.measured for row in parse_csv(text)[1]]


def _records(text: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield each record that is not blank, with its first line."""
    reader = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True)
    line = 1
    try:
        for cells in reader:
            if len(cells) > 1 or (cells and cells[0].strip()):
                yield line, tuple(cells)
            line = reader.line_num + 1
    except csv.Error as error:
        raise ProfileError(f"not CSV: {error}", line=line) from None
