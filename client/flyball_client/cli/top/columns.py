"""Tables that leave out their less important columns until they fit into a width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from flyball_client.cli.top.lines import ELLIPSIS, RULE, Line, Span, Tone

MEASURED = "measured"

_GAP = 2
_SHORTEST_NAME = 8


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column.

    Attributes:
        group: heading above the columns of the same group.
        is_text: aligned to the left; figures are aligned to the right.
        rank: columns of a higher rank are left out earlier; of rank 0, never.
    """

    heading: str
    group: str = ""
    is_text: bool = False
    rank: int = 0


Columns = tuple[Column, ...]
# A cell for each column.
Rows = Sequence[Line]


def laid_out(
    columns: Columns, rows: Rows, width: int, *, measured: str = MEASURED, beside: Rows = ()
) -> list[Line]:
    """Return headings and rows within the width; the first column shrinks last.

    Args:
        columns: headings, and how their cells are aligned.
        rows: a cell for each column.
        width: columns of the terminal.
        measured: label of the measured figures.
        beside: rows of another table that is aligned with this one.
    """
    widths = _fitted(columns, [*rows, *beside], width)
    shown = [i for i, wide in enumerate(widths) if wide]
    headings = tuple(Span(column.heading, Tone.HEADING) for column in columns)
    lines = [_row(columns, row, widths, shown) for row in (headings, *rows)]
    groups: list[str] = []
    for group, members in groupby(shown, key=lambda i: columns[i].group):
        label = measured if group == MEASURED else group
        wide = _total([widths[i] for i in members])
        rule = RULE * max(0, wide - len(label) - 1) if group else ""
        groups.append(f"{f'{label} {rule}'[:wide]:<{wide}}")
    title = Span((" " * _GAP).join(groups), Tone.MUTED)
    return [(title,), *lines] if title.text.strip() else lines


def _fitted(columns: Columns, rows: Rows, width: int) -> list[int]:
    """Return the columns' widths; 0: left out, or empty."""
    widths = [max((len(row[i].text) for row in rows), default=0) for i in range(len(columns))]
    widths = [
        wide and max(wide, len(column.heading))
        for wide, column in zip(widths, columns, strict=True)
    ]
    for i in sorted(range(len(widths)), key=lambda i: (-columns[i].rank, -i)):
        if _total(widths) <= width or not columns[i].rank:
            break
        widths[i] = 0
    too_wide = _total(widths) - width
    if too_wide > 0:
        widths[0] = min(widths[0], max(widths[0] - too_wide, _SHORTEST_NAME))
    return widths


def _total(widths: Sequence[int]) -> int:
    shown = [width for width in widths if width]
    return sum(shown) + _GAP * max(0, len(shown) - 1)


def _row(columns: Columns, row: Line, widths: list[int], shown: list[int]) -> Line:
    spans: list[Span] = []
    for i in shown:
        text, wide = row[i].text, widths[i]
        if len(text) > wide:
            text = text[: wide - len(ELLIPSIS)] + ELLIPSIS
        align = "<" if columns[i].is_text else ">"
        spans += [Span(" " * _GAP), Span(f"{text:{align}{wide}}", row[i].tone)]
    return tuple(spans[1:])
