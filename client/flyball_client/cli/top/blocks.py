"""Blocks of a page: paragraphs and tables, and their plain text."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

from flyball_client.cli.figures import UNKNOWN, aligned

GAP = "   "
# A picture's characters, from low to high, and those for terminals without blocks.
LEVELS = "▁▂▃▄▅▆▇█"
ASCII = str.maketrans(LEVELS, "_.,-=+*#")


class Tone(StrEnum):
    """Style of a text, as Rich writes it; the words say the same without it."""

    PLAIN = ""
    MUTED = "dim"
    TITLE = "bold"
    GOOD = "green"
    ACCENT = "cyan"
    WARN = "bold yellow"
    BAD = "bold red"
    ALARM = "bold reverse"


class Span(NamedTuple):
    """Text in one tone."""

    text: str
    tone: Tone = Tone.PLAIN

    @property
    def drawable(self) -> str:
        """The text, without what could move a cursor or is not one column wide."""
        if self.text.isascii() and self.text.isprintable():
            return self.text
        return "".join(c if " " <= c <= "~" or c in LEVELS else "?" for c in self.text)


Paragraph = tuple[Span, ...]
"""Spans with gaps between them, broken where the line ends."""
Row = Mapping[str, Span | str]
"""Column -> its cell; a column is `<` or `>`, which aligns it, and one or two lines of heading."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of figures; what a narrow terminal can do without stands at the end."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Span, ...], ...]

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Table:
        """Return the table without the columns that have no figure in any row."""
        spans = [{c: x if isinstance(x, Span) else Span(x) for c, x in r.items()} for r in rows]
        figures = {c for row in spans for c, cell in row.items() if cell.text not in {UNKNOWN, ""}}
        columns = tuple(c for c in dict.fromkeys(c for row in rows for c in row) if c in figures)
        cells = (tuple(row.get(column, Span("")) for column in columns) for row in spans)
        return cls(columns=columns, rows=tuple(cells))

    @property
    def aligns(self) -> list[str]:
        """Alignment of each column."""
        return [column[0] for column in self.columns]

    @property
    def headings(self) -> list[list[str]]:
        """Each column's heading, in as many lines as the longest has."""
        lines = [column[1:].strip().splitlines() for column in self.columns]
        most = max(map(len, lines), default=0)
        return [[""] * (most - len(heading)) + heading for heading in lines]

    @property
    def shape(self) -> tuple[object, ...]:
        """Columns, their widths, and the number of rows."""
        return self.columns, self.widths, len(self.rows)

    @cached_property
    def widths(self) -> list[int]:
        """Columns of the terminal that each column takes."""
        return [
            max(map(len, (*heading, *(row[i].text for row in self.rows))))
            for i, heading in enumerate(self.headings)
        ]

    def lines(self, width: int) -> list[str]:
        """Return the table as plain text."""
        rows = [*zip(*self.headings, strict=True)]
        return aligned([*rows, *([c.drawable for c in r] for r in self.rows)], self.aligns, width)


Block = Paragraph | Table


@dataclass(frozen=True, kw_only=True)
class Page:
    """Blocks to show: `head` stays on top, `body` scrolls."""

    head: tuple[Paragraph, ...]
    body: tuple[Block, ...]

    def text(self, width: int) -> str:
        """Return the page as plain text."""
        lines: list[str] = []
        for block in (*self.head, *self.body):
            if isinstance(block, Table):
                lines += block.lines(width)
            else:
                text = GAP.join(span.drawable for span in block)
                lines += textwrap.wrap(text, width, break_on_hyphens=False) or [""]
        return "\n".join(lines)
