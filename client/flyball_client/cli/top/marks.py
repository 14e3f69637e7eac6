"""Bars and sparklines out of characters, of blocks or of ASCII."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

# Of the mean: what moves by less than this looks flat.
_SMALLEST_SPREAD = 0.01


@dataclass(frozen=True, kw_only=True)
class Marks:
    """The characters that pictures are made of.

    Attributes:
        levels: of a sparkline, from low to high.
        fills: the last character of a bar, by how full it is, the full one last.
        rule, ellipsis, star: a line, what stands for what was cut off, and what marks a row.
    """

    levels: str
    fills: str
    rule: str
    ellipsis: str
    star: str = "*"


@dataclass(frozen=True, kw_only=True)
class Paper:
    """What a page is drawn on.

    Attributes:
        now: what ages are told from; moments are told in its zone.
        width: columns.
    """

    now: datetime
    width: int
    marks: Marks


BLOCKS = Marks(
    levels="▁▂▃▄▅▆▇█",
    fills="▏▎▍▌▋▊▉█",
    rule="─",
    ellipsis="…",
)
ASCII = Marks(levels="_.-=+*#", fills="#", rule="-", ellipsis="~")


def marks_for(encoding: str) -> Marks:
    """Return what can be written in this encoding."""
    try:
        (BLOCKS.levels + BLOCKS.fills + BLOCKS.rule + BLOCKS.ellipsis).encode(encoding)
    except (UnicodeError, LookupError):
        return ASCII
    return BLOCKS


def sparkline(values: Sequence[float | None], width: int, marks: Marks) -> str:
    """The newest `width` values, one character each; a space where there is none."""
    shown = values[-width:] if width > 0 else ()
    known = [value for value in shown if value is not None]
    if not known:
        return " " * len(shown)
    low, high = min(known), max(known)
    middle, half = (low + high) / 2, (high - low) / 2
    half = max(half, abs(sum(known) / len(known)) * _SMALLEST_SPREAD / 2) or 1.0
    top = len(marks.levels) - 1
    return "".join(
        " " if value is None else marks.levels[round((value - middle + half) / (2 * half) * top)]
        for value in shown
    )


def bar(share: float, width: int, marks: Marks) -> str:
    """A bar of up to `width` characters, as long as the share from 0 to 1 says."""
    pieces = round(min(max(share, 0.0), 1.0) * width * len(marks.fills))
    whole, rest = divmod(pieces, len(marks.fills))
    return marks.fills[-1] * whole + (marks.fills[rest - 1] if rest else "")
