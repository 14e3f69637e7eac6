"""Lines of text with a tone for each part, and how they fit into a width; no terminal here."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

_NARROWEST = 20


class Tone(StrEnum):
    """What a part of a line is to the eye; the words say the same without it."""

    PLAIN = "plain"
    MUTED = "muted"
    TITLE = "title"
    HEADING = "heading"
    GOOD = "good"
    ACCENT = "accent"
    WARN = "warn"
    BAD = "bad"
    ALARM = "alarm"


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a line in one tone; one column for each character."""

    text: str
    tone: Tone = Tone.PLAIN


Line = tuple[Span, ...]


@dataclass(frozen=True, kw_only=True)
class Page:
    """What is shown: `head` stays on top, `body` can be scrolled."""

    head: tuple[Line, ...]
    body: tuple[Line, ...]


def plain_text(line: Line) -> str:
    """The line without its tones."""
    return "".join(span.text for span in line)


def drawable(text: str) -> str:
    """Text of others as it may be drawn: nothing that moves a cursor, each character one column."""
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in text)


def clipped(line: Line, width: int, ellipsis: str) -> Line:
    """The line, cut to `width` columns where it is longer."""
    if len(plain_text(line)) <= width:
        return line
    room = max(0, width - len(ellipsis))
    kept: list[Span] = []
    for span in line:
        kept.append(Span(span.text[:room], span.tone))
        room -= len(kept[-1].text)
    return (*kept, Span(ellipsis[:width], Tone.MUTED))


def flowed(parts: Sequence[Span], width: int, gap: str = "   ") -> list[Line]:
    """The parts one after the other, over as many lines as they need."""
    lines: list[list[Span]] = [[]]
    column = 0
    for part in parts:
        if lines[-1] and column + len(gap) + len(part.text) > width:
            lines.append([])
            column = 0
        if lines[-1]:
            lines[-1].append(Span(gap))
            column += len(gap)
        lines[-1].append(part)
        column += len(part.text)
    return [tuple(line) for line in lines]


def wrapped(text: str, width: int, tone: Tone, *, most_lines: int) -> list[Line]:
    """The text over as many lines as it needs, up to so many."""
    lines = textwrap.wrap(text, max(_NARROWEST, width), max_lines=most_lines, placeholder=" [...]")
    return [(Span(line, tone),) for line in lines]
