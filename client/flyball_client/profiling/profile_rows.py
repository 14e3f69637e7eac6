"""A profile's CSV row by row: for files that are only a part of a profile, and extra columns.

The readers of `flyball_profiles` want whole profiles and drop what they do not know.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flyball_profiles.measured_row import RANK_COLUMNS, REQUIRED_COLUMNS, MeasuredRow, parse_row
from flyball_profiles.stage_profile import ProfileError

_BYTE_ORDER_MARK = "\ufeff"


@dataclass(frozen=True, kw_only=True)
class ProfileRow:
    """One row: its cells as they stand in the file, and what they mean."""

    cells: Mapping[str, str]
    measured: MeasuredRow


@dataclass(frozen=True, kw_only=True)
class ProfileRows:
    """All rows of a file, which need not be a whole profile.

    Attributes:
        file: where they stand.
        columns: in the file's order.
        rows: in the file's order.
    """

    file: Path
    columns: tuple[str, ...]
    rows: tuple[ProfileRow, ...]

    @property
    def rank_columns(self) -> tuple[str, ...]:
        """The columns that say which rank a row is of, in the order of `RANK_COLUMNS`."""
        return tuple(column for column in RANK_COLUMNS if column in self.columns)


def read_rows(file: Path, *, only_whole_lines: bool = False) -> ProfileRows:
    """Read a CSV file with the columns of a profile.

    Args:
        file: to read.
        only_whole_lines: pass over a last line without its end, which was cut off.

    Raises:
        ProfileError: it cannot be read, or a row is none; print `error.located(str(file))`.
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
        raise ProfileError("a column stands twice in the header", line=header_line)
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
    """CSV text with a header; a cell that a row lacks, or that is None, is empty."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _records(text: str) -> list[tuple[int, list[str]]]:
    """Each record that is not blank, with the line on which it begins."""
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
