"""Tables that leave out their less important columns until they fit into a width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from flyball_client.cli.top.lines import Line, Span, Tone
from flyball_client.cli.top.marks import Marks

MEASURED = "measured"

_GAP = 2
_SHORTEST_NAME = 8


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column.

    Attributes:
        group: what stands above it and its neighbours of the same group.
        is_text: from the left; figures stand to the right.
        rank: columns of a higher rank are left out earlier; of rank 0, never.
    """

    heading: str
    group: str = ""
    is_text: bool = False
    rank: int = 0


Rows = tuple[tuple[Span, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Columns and their cells, each row as many as there are columns."""

    columns: tuple[Column, ...]
    rows: Rows

    def widths(self) -> list[int]:
        """Return what each column needs; 0: it is empty, and left out."""
        return [
            max(len(column.heading), *(len(row[i].text) for row in self.rows))
            if any(row[i].text for row in self.rows)
            else 0
            for i, column in enumerate(self.columns)
        ]


def emulated_columns(columns: tuple[Column, ...]) -> tuple[Column, ...]:
    """The columns for emulated GPUs: what was measured there is called so."""
    return tuple(
        replace(column, group=f"{MEASURED} (emulated)") if column.group == MEASURED else column
        for column in columns
    )


def narrowest_width(table: Table) -> int:
    """Return what the table needs with no column but those that are never left out."""
    widths = table.widths()
    return _total([0 if column.rank else widths[i] for i, column in enumerate(table.columns)])


def laid_out(
    table: Table, width: int, marks: Marks, *, beside: Table | None = None
) -> tuple[list[Line], list[Line]]:
    """Headings and rows, within the width; the first column gives way at last.

    Args:
        table: what is laid out.
        width: columns of the terminal.
        marks: what rules and cuts are made of.
        beside: a table of the same columns whose rows are to stand below or above these.
    """
    rows = table.rows if beside is None else (*table.rows, *beside.rows)
    widths = _fitted(Table(columns=table.columns, rows=rows), width)
    shown = [i for i, wide in enumerate(widths) if wide]
    if not shown:
        return [], []
    headings = [_headings(table, widths, shown)]
    if any(table.columns[i].group for i in shown):
        headings.insert(0, _groups(table, widths, shown, marks))
    return headings, [_row(table, row, widths, shown, marks) for row in table.rows]


def _fitted(table: Table, width: int) -> list[int]:
    """The columns' widths; 0: it is left out."""
    widths = table.widths()
    by_rank = sorted(range(len(widths)), key=lambda i: (-table.columns[i].rank, -i))
    for i in by_rank:
        if _total(widths) <= width or not table.columns[i].rank:
            break
        widths[i] = 0
    too_wide = _total(widths) - width
    if too_wide > 0 and widths:
        widths[0] = min(widths[0], max(widths[0] - too_wide, _SHORTEST_NAME))
    return widths


def _total(widths: Sequence[int]) -> int:
    shown = [width for width in widths if width]
    return sum(shown) + _GAP * max(0, len(shown) - 1)


def _groups(table: Table, widths: list[int], shown: list[int], marks: Marks) -> Line:
    texts: list[str] = []
    for group, members in groupby(shown, key=lambda i: table.columns[i].group):
        wide = _total([widths[i] for i in members])
        rule = marks.rule * max(0, wide - len(group) - 1)
        texts.append(f"{group} {rule}"[:wide] if group else " " * wide)
    return (Span((" " * _GAP).join(texts).rstrip(), Tone.MUTED),)


def _headings(table: Table, widths: list[int], shown: list[int]) -> Line:
    spans: list[Span] = []
    margin = 0
    for i in shown:
        column, spare = table.columns[i], widths[i] - len(table.columns[i].heading)
        margin += 0 if column.is_text else spare
        spans += [Span(" " * margin), Span(column.heading, Tone.HEADING)]
        margin = _GAP + (spare if column.is_text else 0)
    return _without_blank_end(spans)


def _row(
    table: Table, row: tuple[Span, ...], widths: list[int], shown: list[int], marks: Marks
) -> Line:
    spans: list[Span] = []
    for i in shown:
        text = row[i].text
        if len(text) > widths[i]:
            text = text[: widths[i] - len(marks.ellipsis)] + marks.ellipsis
        if spans:
            spans.append(Span(" " * _GAP))
        spans.append(Span(_padded(text, widths[i], table.columns[i]), row[i].tone))
    return _without_blank_end(spans)


def _without_blank_end(spans: list[Span]) -> Line:
    while spans and not spans[-1].text.strip():
        spans.pop()
    last = spans.pop() if spans else Span("")
    return (*spans, Span(last.text.rstrip(), last.tone))


def _padded(text: str, width: int, column: Column) -> str:
    return f"{text:<{width}}" if column.is_text else f"{text:>{width}}"
