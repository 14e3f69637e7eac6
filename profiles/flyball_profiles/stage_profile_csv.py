"""Reading and writing stage profiles: CSV text, CSV files, and the rows of a JSON profile.

The columns are `stage,instruction,frequency,time,energy` (MHz, s, J). A profile of several
ranks adds any of `rank,dp_rank,pp_rank,tp_rank`, which then belong to a row's key; it is read
as one profile of all ranks merged, or as one for each data-parallel pipeline. Where a stage
holds several model chunks, the column `chunk` has the number of the chunk.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

from flyball_profiles.measured_row import (
    CHUNK_COLUMN,
    DP_RANK_COLUMN,
    NUM_RANKS_COLUMN,
    RANK_COLUMNS,
    REQUIRED_COLUMNS,
    MeasuredRow,
    parse_row,
)
from flyball_profiles.rank_merge import merge_rows
from flyball_profiles.stage_profile import InstructionKind, ProfileError, StageProfile


def split_rows(rows: Sequence[MeasuredRow], *, place: str) -> tuple[StageProfile, ...]:
    """Return the stage profile of each data-parallel pipeline, by `dp_rank`.

    Args:
        rows: in the order of the file.
        place: unit of `line` in messages: `line` or `row`.

    Raises:
        ProfileError: the rows have no `dp_rank`, a `dp_rank` is skipped, the rows of one are
            no usable profile, or pipelines differ in their stages and instructions; with the
            first line concerned where there is one.
    """
    by_dp_rank: dict[int, list[MeasuredRow]] = {}
    for row in rows:
        by_dp_rank.setdefault(_dp_rank(row), []).append(row)
    for expected, dp_rank in enumerate(sorted(by_dp_rank)):
        if dp_rank != expected:
            raise ProfileError(
                f"dp_rank {expected} is missing; data-parallel ranks count from 0 without gaps",
                line=by_dp_rank[dp_rank][0].line,
            )
    if not by_dp_rank:
        return (merge_rows(rows, place=place),)  # refuses a profile without rows
    profiles = tuple(
        _merged(dp_rank, by_dp_rank[dp_rank], place) for dp_rank in range(len(by_dp_rank))
    )
    _check_alike(profiles, rows)
    return profiles


def _dp_rank(row: MeasuredRow) -> int:
    dp_rank = dict(row.rank).get(DP_RANK_COLUMN)
    if dp_rank is None:
        raise ProfileError(
            f"the profile has no column {DP_RANK_COLUMN}, the number of a row's pipeline;"
            " data-parallel pipelines cannot be separated without it"
        )
    return dp_rank


def _merged(dp_rank: int, rows: Sequence[MeasuredRow], place: str) -> StageProfile:
    try:
        return merge_rows(rows, place=place)
    except ProfileError as error:
        raise ProfileError(
            f"dp_rank {dp_rank}: {error.message}", line=error.line, stage=error.stage
        ) from None


def _check_alike(profiles: Sequence[StageProfile], rows: Sequence[MeasuredRow]) -> None:
    """Check that all pipelines were measured at the same instructions."""
    if len({len(profile.chunks) for profile in profiles}) > 1:
        raise ProfileError("all pipelines must have been measured with the same number of chunks")
    for chunk, of_pipelines in enumerate(
        zip(*(profile.chunks for profile in profiles), strict=True)
    ):
        _check_same_instructions(
            of_pipelines, [row for row in rows if row.chunk == chunk], f"chunk {chunk} of "
        )
    _check_same_instructions(profiles, rows, "")


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


_HEADER = ",".join(REQUIRED_COLUMNS)
_BYTE_ORDER_MARK = "\ufeff"


def read_stage_profile(path: Path) -> StageProfile:
    """Read a stage profile from a CSV file, all ranks of a stage merged.

    Raises:
        ProfileError: the file cannot be read, is not UTF-8, or is no usable profile. Print
            `error.located(str(path))`.
    """
    return parse_stage_profile(_text_of(path))


def read_pipeline_profiles(path: Path) -> tuple[StageProfile, ...]:
    """Read the stage profile of each data-parallel pipeline from a CSV file, by `dp_rank`.

    Raises:
        ProfileError: as `read_stage_profile`, or pipelines cannot be separated or differ.
    """
    return parse_pipeline_profiles(_text_of(path))


def parse_stage_profile(text: str) -> StageProfile:
    """Read a stage profile from CSV text, all ranks of a stage merged.

    Raises:
        ProfileError: with the 1-based line where one applies.
    """
    return merge_rows(_measured_rows(text), place="line")


def parse_pipeline_profiles(text: str) -> tuple[StageProfile, ...]:
    """Read the stage profile of each data-parallel pipeline from CSV text, by `dp_rank`.

    Raises:
        ProfileError: with the 1-based line where one applies.
    """
    return split_rows(_measured_rows(text), place="line")


def parse_stage_profile_rows(rows: object) -> StageProfile:
    """Read a stage profile from JSON already decoded: a list of objects with the CSV's keys.

    Args:
        rows: any value; one that is not a list of mappings is refused like any other fault.

    Raises:
        ProfileError: `line` is the 1-based row, which the message names too.
    """
    if not isinstance(rows, list | tuple):
        raise ProfileError(f"the profile must be a list of rows with the keys {_HEADER}")
    cells = [
        _checked_mapping(row, line)
        for line, row in enumerate(cast("Sequence[object]", rows), start=1)
    ]
    rank_columns = tuple(column for column in RANK_COLUMNS if any(column in row for row in cells))
    try:
        parsed = [
            parse_row(row, line=line, rank_columns=rank_columns)
            for line, row in enumerate(cells, start=1)
        ]
        return merge_rows(parsed, place="row")
    except ProfileError as error:
        if error.line is None:
            raise
        message = f"row {error.line}: {error.message}"
        raise ProfileError(message, line=error.line, stage=error.stage) from None


def stage_profile_rows(profile: StageProfile) -> list[dict[str, int | float | str | None]]:
    """Return the profile as rows of JSON, the inverse of `parse_stage_profile_rows`.

    Rows run by stage, then instruction, then falling frequency; those of the whole stages come
    first, then chunk after chunk. Where a stage holds the energy of several ranks, every row has
    `num_ranks` too; where there are chunks, every row has `chunk`, None (an empty cell) for the
    whole stage.
    """
    rows = _rows_of_whole_stages(profile)
    if not profile.chunks:
        return rows
    of_chunks = [
        {**row, CHUNK_COLUMN: chunk}
        for chunk, of_chunk in enumerate(profile.chunks)
        for row in _rows_of_whole_stages(of_chunk)
    ]
    return [*({**row, CHUNK_COLUMN: None} for row in rows), *of_chunks]


def _rows_of_whole_stages(profile: StageProfile) -> list[dict[str, int | float | str | None]]:
    with_num_ranks = any(num_ranks > 1 for num_ranks in profile.num_ranks_per_stage)
    rows: list[dict[str, int | float | str | None]] = []
    for stage, num_ranks in enumerate(profile.num_ranks_per_stage):
        for kind in InstructionKind:
            for point in profile.points.get((stage, kind), ()):
                row: dict[str, int | float | str | None] = {
                    "stage": stage,
                    "instruction": kind.value,
                    "frequency": point.frequency_mhz,
                    "time": point.time_s,
                    "energy": point.energy_j,
                }
                rows.append(row | {NUM_RANKS_COLUMN: num_ranks} if with_num_ranks else row)
    return rows


def write_stage_profile(profile: StageProfile) -> str:
    """Return the profile as CSV text with all digits, the inverse of `parse_stage_profile`."""
    rows = stage_profile_rows(profile)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _text_of(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ProfileError(f"cannot read the profile: {error.strerror or error}") from None
    except ValueError as error:  # a NUL inside the path
        raise ProfileError(f"cannot read the profile: {error}") from None
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ProfileError("not UTF-8 text; save the profile as UTF-8 CSV", line=line) from None


def _measured_rows(text: str) -> list[MeasuredRow]:
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise ProfileError("a NUL byte in the text; save the profile as UTF-8 CSV", line=line)
    records = _records(text.removeprefix(_BYTE_ORDER_MARK))
    header_line, header = next(records, (1, ()))
    if not header:
        raise ProfileError(f"the profile is empty; its first line must be {_HEADER}")
    columns = _checked_columns(header, header_line)
    rank_columns = tuple(column for column in RANK_COLUMNS if column in columns)
    rows: list[MeasuredRow] = []
    for line, cells in records:
        if len(cells) != len(columns):
            raise ProfileError(
                f"{len(cells)} cells in the row for {len(columns)} columns in the header",
                line=line,
            )
        row = dict(zip(columns, cells, strict=True))
        rows.append(parse_row(row, line=line, rank_columns=rank_columns))
    return rows


def _records(text: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield each record that is not blank, with the line on which it begins."""
    reader = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True)
    line = 1
    try:
        for cells in reader:
            if len(cells) > 1 or (cells and cells[0].strip()):
                yield line, tuple(cells)
            line = reader.line_num + 1
    except csv.Error as error:
        raise ProfileError(f"not CSV: {error}", line=line) from None


def _checked_columns(header: tuple[str, ...], line: int) -> tuple[str, ...]:
    columns = tuple(cell.strip() for cell in header)
    missing = [column for column in REQUIRED_COLUMNS if column not in columns]
    if missing:
        plural = "s" if len(missing) > 1 else ""
        raise ProfileError(
            f"missing column{plural} {', '.join(missing)}; the header must have {_HEADER}",
            line=line,
        )
    for column in (*REQUIRED_COLUMNS, *RANK_COLUMNS, CHUNK_COLUMN, NUM_RANKS_COLUMN):
        if columns.count(column) > 1:
            raise ProfileError(f"the column {column} stands twice in the header", line=line)
    return columns


def _checked_mapping(row: object, line: int) -> Mapping[str, object]:
    if not isinstance(row, Mapping):
        raise ProfileError(f"row {line}: must be an object with the keys {_HEADER}", line=line)
    return cast("Mapping[str, object]", row)
