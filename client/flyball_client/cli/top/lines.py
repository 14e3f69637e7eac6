"""Lines of text with a tone for each part, and their figures and bars."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from flyball_wire.closed_loop import Estimate

ELLIPSIS, RULE = "…", "─"
_NARROWEST = 20
# A sparkline's characters, from low to high.
_LEVELS = "▁▂▃▄▅▆▇█"
# A bar's last character, by how full it is.
_FILLS = "▏▎▍▌▋▊▉█"
# For terminals without blocks.
ASCII = str.maketrans(_LEVELS + _FILLS[:-1] + RULE + ELLIPSIS, "_.,-=+*#" + "   ####" + "-~")
# Part of the mean: smaller variations look flat.
_SMALLEST_SPREAD = 0.01
UNKNOWN = "-"
# How figures are written; "z": never -0.00.
TIME_S, ENERGY_J, POWER_W, CLOCK_MHZ = ".4f", ".1f", ".1f", ".0f"
PERCENT, SIGNED_PERCENT = "z.2f", "+z.2f"
_TARGET_UNITS = {"slowdown": ("%", 100.0), "deadline": ("s", 1.0), "power": ("W", 1.0)}


class Tone(StrEnum):
    """Style of a part of a line, as Textual writes it; the words say the same without it."""

    PLAIN = ""
    MUTED = "dim"
    TITLE = "bold"
    HEADING = "underline"
    GOOD = "ansi_green"
    ACCENT = "ansi_cyan"
    WARN = "bold ansi_yellow"
    BAD = "bold ansi_red"
    ALARM = "bold reverse"


@dataclass(frozen=True, slots=True)
class Span:
    """Part of a line in one tone; each character takes one column."""

    text: str
    tone: Tone = Tone.PLAIN


Line = tuple[Span, ...]


@dataclass(frozen=True, kw_only=True)
class Page:
    """Lines to show: `head` stays on top, `body` scrolls."""

    head: tuple[Line, ...]
    body: tuple[Line, ...]


@dataclass(frozen=True, kw_only=True)
class Paper:
    """Space and time of a page.

    Attributes:
        now: time that ages count to; its zone is that of all times shown.
        width: columns.
    """

    now: datetime
    width: int


def texts(*cells: str) -> Line:
    """Return a plain span for each text."""
    return tuple(Span(cell) for cell in cells)


def plain_text(line: Line) -> str:
    """Return the line without its tones and the blanks at its end."""
    return "".join(span.text for span in line).rstrip()


def drawable(text: str) -> str:
    """Replace what could move a cursor or is not one column wide, in text of others."""
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in text)


def clipped(line: Line, width: int) -> Line:
    """Cut the line to `width` columns where it is longer."""
    if len(plain_text(line)) <= width:
        return line
    room = max(0, width - len(ELLIPSIS))
    kept: list[Span] = []
    for span in line:
        kept.append(Span(span.text[:room], span.tone))
        room -= len(kept[-1].text)
    return (*kept, Span(ELLIPSIS, Tone.MUTED))


def flowed(parts: Sequence[Span], width: int, gap: str = "   ") -> list[Line]:
    """Put the parts side by side, over as many lines as they need."""
    lines: list[Line] = [tuple(parts[:1])]
    for part in parts[1:]:
        if len(plain_text(lines[-1])) + len(gap) + len(part.text) > width:
            lines.append((part,))
        else:
            lines[-1] = (*lines[-1], Span(gap), part)
    return lines


def wrapped(text: str, width: int, tone: Tone, *, most_lines: int) -> list[Line]:
    """Break the text into at most `most_lines` lines."""
    lines = textwrap.wrap(text, max(_NARROWEST, width), max_lines=most_lines, placeholder=" [...]")
    return [(Span(line, tone),) for line in lines]


def sparkline(values: Sequence[float | None], width: int) -> str:
    """Draw the newest `width` values, one character each; a space for None."""
    shown = values[-width:] if width > 0 else ()
    known = [value for value in shown if value is not None]
    if not known:
        return " " * len(shown)
    low, high = min(known), max(known)
    middle, half = (low + high) / 2, (high - low) / 2
    half = max(half, abs(sum(known) / len(known)) * _SMALLEST_SPREAD / 2) or 1.0
    top = len(_LEVELS) - 1
    return "".join(
        " " if value is None else _LEVELS[round((value - middle + half) / (2 * half) * top)]
        for value in shown
    )


def bar(share: float, width: int) -> str:
    """Draw a bar of up to `width` characters, as long as the share from 0 to 1."""
    pieces = round(min(max(share, 0.0), 1.0) * width * len(_FILLS))
    whole, rest = divmod(pieces, len(_FILLS))
    return _FILLS[-1] * whole + (_FILLS[rest - 1] if rest else "")


def number_text(value: Estimate | float | None, form: str, unit: str = "") -> str:
    """Return the number, or the mean of an estimate."""
    number = value.mean if isinstance(value, Estimate) else value
    return UNKNOWN if number is None else f"{number:{form}}{unit}"


def power_text(power_w: float) -> str:
    """Return a power in the unit that suits it: `5.31 kW`."""
    if power_w >= 1e6:
        return f"{power_w * 1e-6:.4g} MW"
    return f"{power_w * 1e-3:.4g} kW" if power_w >= 1e4 else f"{power_w:.4g} W"


def target_text(target: str) -> str:
    """Return a target of the API, `deadline:2.8837280000000014`, as `deadline 2.88373 s`."""
    name, _, figure = target.partition(":")
    try:
        unit, factor = _TARGET_UNITS[name]
        is_percent = name == "slowdown" and figure.endswith("%")
        value = float(figure[:-1]) if is_percent else factor * float(figure)
    except (KeyError, ValueError):
        return drawable(target)
    return f"{name} {float(f'{value:.6g}'):.15g} {unit}"


def interval_text(estimate: Estimate | None, form: str) -> str:
    """Return the 95 % confidence interval; empty where there is none."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return ""
    return f"[{estimate.low:{form}}, {estimate.high:{form}}]"


def _moment(moment: datetime | str) -> datetime | None:
    """Parse a moment from the planner; None: not a moment with a time zone."""
    try:
        parsed = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    except ValueError:
        return None
    return None if parsed.tzinfo is None else parsed


def moment_text(moment: datetime | str, now: datetime) -> str:
    """Return the time of day in the zone of `now`, with the date where that is not today's."""
    then = _moment(moment)
    if then is None:
        return drawable(str(moment))
    here = then.astimezone(now.tzinfo)
    return f"{here:%H:%M:%S}" if here.date() == now.date() else f"{here:%Y-%m-%d %H:%M}"


def age_text(moment: datetime | str, now: datetime) -> str:
    """Return the time since then: `12 s`, `5 min`, `3 h`, `2 d`."""
    then = _moment(moment)
    if then is None:
        return UNKNOWN
    age_s = max(0.0, (now - then).total_seconds())
    for limit_s, unit_s, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if age_s < limit_s:
            return f"{age_s / unit_s:.0f} {unit}"
    return f"{age_s / 86_400:.0f} d"
