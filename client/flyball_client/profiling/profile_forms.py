"""Forms of a profile's file: labelled as one rank's part, wide, merged, joined from parts."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flyball_profiles.measured_row import (
    CHUNK_COLUMN,
    NUM_RANKS_COLUMN,
    RANK_COLUMNS,
    REQUIRED_COLUMNS,
    MeasuredRow,
    parse_row,
)
from flyball_profiles.stage_profile import InstructionKind, ProfileError
from flyball_profiles.stage_profile_csv import (
    parse_stage_profile,
    read_stage_profile,
    write_stage_profile,
)

_BYTE_ORDER_MARK = "\ufeff"


@dataclass(frozen=True, kw_only=True)
class ProfileRow:
    """One row: its cells as in the file, and their values."""

    cells: Mapping[str, str]
    measured: MeasuredRow


@dataclass(frozen=True, kw_only=True)
class ProfileRows:
    """All rows of a file, which may be a part of a profile.

    Attributes:
        file: File of the rows.
        columns: Columns in the file's order.
        rows: Rows in the file's order.
    """

    file: Path
    columns: tuple[str, ...]
    rows: tuple[ProfileRow, ...]

    @property
    def rank_columns(self) -> tuple[str, ...]:
        """Columns that identify the rank of a row, in the order of `RANK_COLUMNS`."""
        return tuple(column for column in RANK_COLUMNS if column in self.columns)


def read_rows(file: Path, *, only_whole_lines: bool = False) -> ProfileRows:
    """Read a CSV file with the columns of a profile.

    Args:
        file: File to read.
        only_whole_lines: True: an incomplete last line is skipped.

    Raises:
        ProfileError: The file cannot be read, or a row is invalid; print
            `error.located(str(file))`.
    """
    text = _text_of(file)
    if only_whole_lines:
        text = text[: text.rfind("\n") + 1]
    records = _records(text)
    if not records:
        raise ProfileError(
            f"the file is empty; its first line must have {','.join(REQUIRED_COLUMNS)}"
        )
    header_line, header = records[0]
    columns = tuple(cell.strip() for cell in header)
    missing = [column for column in REQUIRED_COLUMNS if column not in columns]
    if missing:
        raise ProfileError(f"missing column {', '.join(missing)}", line=header_line)
    if len(set(columns)) != len(columns):
        raise ProfileError("a column is in the header twice", line=header_line)
    rank_columns = tuple(column for column in RANK_COLUMNS if column in columns)
    rows: list[ProfileRow] = []
    for line, values in records[1:]:
        if len(values) != len(columns):
            raise ProfileError(
                f"{len(values)} cells in the row for {len(columns)} columns in the header",
                line=line,
            )
        cells = dict(zip(columns, values, strict=True))
        measured = parse_row(cells, line=line, rank_columns=rank_columns)
        rows.append(ProfileRow(cells=cells, measured=measured))
    return ProfileRows(file=file, columns=columns, rows=tuple(rows))


def rows_text(columns: Sequence[str], rows: Sequence[Mapping[str, object]]) -> str:
    """Return CSV text with a header; cells that are missing or None are empty."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _records(text: str) -> list[tuple[int, list[str]]]:
    """Return each record that is not blank, with its first line."""
    reader = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True)
    records: list[tuple[int, list[str]]] = []
    line = 1
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                records.append((line, cells))
            line = reader.line_num + 1
    except csv.Error as error:
        raise ProfileError(f"not CSV: {error}", line=line) from None
    return records


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").removeprefix(_BYTE_ORDER_MARK)
    except UnicodeDecodeError:
        raise ProfileError("not UTF-8 text; save the profile as UTF-8 CSV") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL inside the path
        reason = error.strerror if isinstance(error, OSError) else None
        raise ProfileError(f"cannot read the profile: {reason or error}") from None


_KNOWN_COLUMNS = (*RANK_COLUMNS, *REQUIRED_COLUMNS, CHUNK_COLUMN, NUM_RANKS_COLUMN)
_GPU_COLUMN = "gpu"

_Cells = dict[str, str]


def merged_text(file: Path) -> str:
    """Return the profile in this file with its ranks merged.

    Raises:
        ProfileError: The file is no whole profile.
    """
    try:
        return write_stage_profile(read_stage_profile(file))
    except ProfileError as error:
        raise ProfileError(error.located(str(file))) from None


def same_ranks_text(file: Path, labels: Mapping[str, int]) -> str:
    """Return the rows of this file in sorted order, with its rank columns and these labels.

    The file may be a part of a profile.

    Args:
        file: File to read.
        labels: Rank columns and their values for all rows; the file must not have them.

    Raises:
        ProfileError: A row cannot be used, or the file has such a column.
    """
    found = _read(file)
    rows = [{**_known_cells(row), **_texts(labels)} for row in found.rows]
    for column in labels:
        if column in found.columns:
            raise ProfileError(f"{file}: has a column {column} already; remove its option")
    return _sorted_text(_columns([found], labels), rows)


def wide_text(file: Path) -> str:
    """Return the rows of this file with all four rank columns.

    Missing columns are filled in: `pp_rank` is the stage, `dp_rank` and `tp_rank` are 0, and
    `rank` counts tensor-parallel ranks first, then data-parallel ones, then stages.

    Raises:
        ProfileError: A row cannot be used, or ranks of a stage cannot be distinguished.
    """
    found = _read(file)
    if "rank" in found.columns and not {"dp_rank", "tp_rank"} & set(found.columns):
        raise ProfileError(
            f"{file}: rank alone does not distinguish data-parallel from tensor-parallel ranks;"
            " add dp_rank or tp_rank"
        )
    rows: list[_Cells] = []
    for row in found.rows:
        if row.measured.num_ranks > 1:
            raise ProfileError(
                f"{file}:{row.measured.line}: contains {row.measured.num_ranks} merged ranks,"
                " which cannot be separated"
            )
        placed = {"dp_rank": "0", "tp_rank": "0", "pp_rank": str(row.measured.stage)}
        cells = _known_cells(row)
        cells.pop(NUM_RANKS_COLUMN, None)
        rows.append({**placed, **cells})
    if "rank" not in found.columns:
        num_dp = 1 + max((int(row["dp_rank"]) for row in rows), default=0)
        num_tp = 1 + max((int(row["tp_rank"]) for row in rows), default=0)
        for cells in rows:
            pipeline_rank = int(cells["pp_rank"]) * num_dp + int(cells["dp_rank"])
            cells["rank"] = str(pipeline_rank * num_tp + int(cells["tp_rank"]))
    columns = [
        column
        for column in _columns([found], dict.fromkeys(RANK_COLUMNS, 0))
        if column != NUM_RANKS_COLUMN
    ]
    return _sorted_text(columns, rows)


def joined_text(files: Sequence[Path]) -> str:
    """Join parts of a profile: stages, chunks, instructions or ranks measured separately.

    Additional columns are kept.

    Raises:
        ProfileError: A part cannot be used, or the parts form no whole profile.
    """
    parts = [_read(file) for file in files]
    _check_ranks_alike(parts)
    _check_not_mixed(parts)
    _check_distinct(parts)
    has_num_ranks = any(NUM_RANKS_COLUMN in part.columns for part in parts)
    defaults = {NUM_RANKS_COLUMN: "1"} if has_num_ranks else {}
    rows = [{**defaults, **_stripped(row.cells)} for part in parts for row in part.rows]
    extra = dict.fromkeys(
        column for part in parts for column in part.columns if column not in _KNOWN_COLUMNS
    )
    text = _sorted_text([*_columns(parts, {}), *extra], rows)
    try:
        parse_stage_profile(text)
    except ProfileError as error:
        # Without the line, which refers to the joined text.
        raise ProfileError(f"the parts form no whole profile: {error.message}") from None
    return text


def _read(file: Path) -> ProfileRows:
    try:
        found = read_rows(file)
        if not found.rows:
            raise ProfileError("has no rows")
    except ProfileError as error:
        raise ProfileError(error.located(str(file))) from None
    _check_distinct([found])
    return found


def _check_ranks_alike(parts: Sequence[ProfileRows]) -> None:
    first = parts[0]
    for part in parts[1:]:
        if part.rank_columns != first.rank_columns:
            ours, theirs = (", ".join(each.rank_columns) or "none" for each in (first, part))
            raise ProfileError(
                f"{part.file}: has the rank columns {theirs}, but {first.file} has {ours};"
                " label every part alike, as with --dp-rank"
            )


def _check_not_mixed(parts: Sequence[ProfileRows]) -> None:
    is_emulated = {
        part.file: row.cells[_GPU_COLUMN].startswith("emulated")
        for part in parts
        if _GPU_COLUMN in part.columns
        for row in part.rows[:1]
    }
    if len(set(is_emulated.values())) > 1:
        emulated = next(file for file, is_one in is_emulated.items() if is_one)
        raise ProfileError(f"{emulated}: is emulated, and other parts are measured")


def _check_distinct(parts: Sequence[ProfileRows]) -> None:
    seen: dict[object, str] = {}
    for part in parts:
        for row in part.rows:
            measured = row.measured
            key = (
                measured.rank,
                measured.stage,
                measured.chunk,
                measured.kind,
                measured.point.frequency_mhz,
            )
            where = f"{part.file}:{measured.line}"
            first = seen.setdefault(key, where)
            if first != where:
                raise ProfileError(f"{where}: {measured.named} is given twice; first in {first}")


def _columns(parts: Sequence[ProfileRows], labels: Mapping[str, int]) -> list[str]:
    have = {column for part in parts for column in part.columns} | set(labels)
    return [column for column in _KNOWN_COLUMNS if column in have]


def _known_cells(row: ProfileRow) -> _Cells:
    return {
        column: cell for column, cell in _stripped(row.cells).items() if column in _KNOWN_COLUMNS
    }


def _stripped(cells: Mapping[str, str]) -> _Cells:
    return {column: cell.strip() for column, cell in cells.items()}


def _texts(labels: Mapping[str, int]) -> _Cells:
    return {column: str(value) for column, value in labels.items()}


def _sorted_text(columns: Sequence[str], rows: Sequence[_Cells]) -> str:
    in_order = sorted(rows, key=_place)
    return rows_text(columns, in_order)


def _place(cells: Mapping[str, str]) -> tuple[float, ...]:
    kinds = [kind.value for kind in InstructionKind]
    return (
        # -1: rows of whole stages precede those of their chunks.
        float(cells.get(CHUNK_COLUMN) or -1),
        float(cells["stage"]),
        *(float(cells[column]) for column in RANK_COLUMNS if column in cells),
        kinds.index(cells["instruction"]),
        -float(cells["frequency"]),
    )
