"""Forms of a profile's file: labelled as one rank's part, wide, merged, joined from parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flyball_pipeline.instruction import InstructionKind
from flyball_profiles.measured_row import (
    CHUNK_COLUMN,
    JITTER_COLUMN,
    NUM_RANKS_COLUMN,
    RANK_COLUMNS,
    RANK_WAITING_COLUMN,
    REQUIRED_COLUMNS,
    TIME_ERROR_COLUMN,
)
from flyball_profiles.stage_profile import ProfileError
from flyball_profiles.stage_profile_csv import (
    CsvRow,
    csv_text,
    parse_csv,
    parse_stage_profile,
    profile_text,
    read_stage_profile,
    write_stage_profile,
)

_KNOWN_COLUMNS = (
    *RANK_COLUMNS,
    *REQUIRED_COLUMNS,
    CHUNK_COLUMN,
    NUM_RANKS_COLUMN,
    RANK_WAITING_COLUMN,
    TIME_ERROR_COLUMN,
    JITTER_COLUMN,
)
_GPU_COLUMN = "gpu"


@dataclass(frozen=True, kw_only=True)
class _Part:
    """Rows of a file, which may be a part of a profile; their cells without blanks around them."""

    file: Path
    columns: tuple[str, ...]
    rows: tuple[CsvRow, ...]


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
    part = _read(file)
    for column in labels:
        if column in part.columns:
            raise ProfileError(f"{file}: has a column {column} already; remove its option")
    texts = {column: str(value) for column, value in labels.items()}
    rows = [{**row.cells, **texts} for row in part.rows]
    return _sorted_text({*part.columns, *labels}, rows)


def wide_text(file: Path) -> str:
    """Return the rows of this file with all four rank columns.

    Missing columns are filled in: `pp_rank` is the stage, `dp_rank` and `tp_rank` are 0, and
    `rank` counts tensor-parallel ranks first, then data-parallel ones, then stages.

    Raises:
        ProfileError: A row cannot be used, or ranks of a stage cannot be distinguished.
    """
    part = _read(file)
    if "rank" in part.columns and not {"dp_rank", "tp_rank"} & set(part.columns):
        raise ProfileError(
            f"{file}: rank alone does not distinguish data-parallel from tensor-parallel ranks;"
            " add dp_rank or tp_rank"
        )
    rows: list[dict[str, str]] = []
    for row in part.rows:
        if row.measured.num_ranks > 1:
            raise ProfileError(
                f"{file}:{row.measured.line}: contains {row.measured.num_ranks} merged ranks,"
                " which cannot be separated"
            )
        placed = {"dp_rank": "0", "tp_rank": "0", "pp_rank": str(row.measured.stage)}
        rows.append({**placed, **row.cells})
    num_dp, num_tp = (
        1 + max(int(row[column]) for row in rows) for column in ("dp_rank", "tp_rank")
    )
    for cells in rows:
        pipeline_rank = int(cells["pp_rank"]) * num_dp + int(cells["dp_rank"])
        cells.setdefault("rank", str(pipeline_rank * num_tp + int(cells["tp_rank"])))
    return _sorted_text(
        {*part.columns, *RANK_COLUMNS} - {NUM_RANKS_COLUMN, RANK_WAITING_COLUMN}, rows
    )


def joined_text(files: Sequence[Path]) -> str:
    """Join parts of a profile: stages, chunks, instructions or ranks measured separately.

    Additional columns are kept.

    Raises:
        ProfileError: A part cannot be used, or the parts do not form a complete profile.
    """
    parts = [_read(file) for file in files]
    _check_ranks_alike(parts)
    _check_not_mixed(parts)
    _check_distinct(parts)
    columns = dict.fromkeys(column for part in parts for column in part.columns)
    defaults = {NUM_RANKS_COLUMN: "1"} if NUM_RANKS_COLUMN in columns else {}
    rows = [{**defaults, **row.cells} for part in parts for row in part.rows]
    extra = [column for column in columns if column not in _KNOWN_COLUMNS]
    text = _sorted_text(columns, rows, extra)
    try:
        parse_stage_profile(text)
    except ProfileError as error:
        # Without the line, which refers to the joined text.
        raise ProfileError(f"the parts do not form a complete profile: {error.message}") from None
    return text


def _read(file: Path) -> _Part:
    try:
        columns, found = parse_csv(profile_text(file))
        if len(set(columns)) != len(columns):
            raise ProfileError("a column is in the header twice", line=1)
        if not found:
            raise ProfileError("has no rows")
    except ProfileError as error:
        raise ProfileError(error.located(str(file))) from None
    rows = tuple(
        CsvRow({column: cell.strip() for column, cell in cells.items()}, measured)
        for cells, measured in found
    )
    part = _Part(file=file, columns=columns, rows=rows)
    _check_distinct([part])
    return part


def _check_ranks_alike(parts: Sequence[_Part]) -> None:
    first = parts[0]
    ours = [column for column in RANK_COLUMNS if column in first.columns]
    for part in parts[1:]:
        theirs = [column for column in RANK_COLUMNS if column in part.columns]
        if theirs != ours:
            raise ProfileError(
                f"{part.file}: has the rank columns {', '.join(theirs) or 'none'}, but"
                f" {first.file} has {', '.join(ours) or 'none'}; label every part alike, as with"
                " --dp-rank"
            )


def _check_not_mixed(parts: Sequence[_Part]) -> None:
    is_emulated = {
        part.file: row.cells[_GPU_COLUMN].startswith("emulated")
        for part in parts
        if _GPU_COLUMN in part.columns
        for row in part.rows[:1]
    }
    if len(set(is_emulated.values())) > 1:
        emulated = next(file for file, is_one in is_emulated.items() if is_one)
        raise ProfileError(f"{emulated}: is emulated, and other parts are measured")


def _check_distinct(parts: Sequence[_Part]) -> None:
    seen: dict[object, str] = {}
    for part in parts:
        for row in part.rows:
            measured = row.measured
            of_row = (measured.stage, measured.chunk, measured.kind, measured.point.frequency_mhz)
            key = (measured.rank, *of_row)
            where = f"{part.file}:{measured.line}"
            first = seen.setdefault(key, where)
            if first != where:
                raise ProfileError(f"{where}: {measured.named} is given twice; first in {first}")


def _sorted_text(
    columns: Iterable[str], rows: Sequence[Mapping[str, str]], extra: Sequence[str] = ()
) -> str:
    """Return CSV text with those of the columns that a profile has, and the extra ones."""
    shown = [*(column for column in _KNOWN_COLUMNS if column in set(columns)), *extra]
    in_order = sorted(rows, key=_place)
    return csv_text(shown, [{name: cells.get(name) for name in shown} for cells in in_order])


def _place(cells: Mapping[str, str]) -> tuple[float, ...]:
    return (
        # -1: rows of whole stages precede those of their chunks.
        float(cells.get(CHUNK_COLUMN) or -1),
        float(cells["stage"]),
        *(float(cells[column]) for column in RANK_COLUMNS if column in cells),
        list(InstructionKind).index(InstructionKind(cells["instruction"])),
        -float(cells["frequency"]),
    )
