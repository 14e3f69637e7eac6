"""Comparison of a command's output with the output that a page shows."""

from __future__ import annotations

import difflib
import re

_ELLIPSIS = "..."
# What is shown of JSON is broken into lines as the page needs it.
_JSON = re.compile(r"[{\[]")
_FIGURE = re.compile(r"[\w.+-]*\d[\w.+-]*")
# The verdict of a measurement depends on the machine: on a busy one the intervals are wider.
_VERDICT = re.compile(r"(\S+: ).*(, measured on )")
_LONGEST_SHOWN = 6000
# Tokens and their public parts are made anew each time, and used again on the page.
_ID = re.compile(r"[0-9a-f]{16}")
_NAME = re.compile(rf"fb_{_ID.pattern}_[\w-]{{43}}|{_ID.pattern}")


def difference(shown: str, printed: str, *, figures_vary: bool = False) -> str | None:
    """Return how what was printed differs from what is shown; None: it doesn't.

    `...` stands for anything within its line, and alone on a line for any number of lines. In
    JSON it stands for anything, and spaces and line breaks do not count.

    Args:
        shown: on the page.
        printed: by the command.
        figures_vary: a word with a digit in it may be any other such word, and the space between
            words any other. So may the verdict of a report.
    """
    if _JSON.match(shown):
        is_as_shown = _fits_json(shown, printed, figures_vary=figures_vary)
    else:
        is_as_shown = _fit(shown, _lines(printed), figures_vary=figures_vary)
    if is_as_shown:
        return None
    lines = difflib.unified_diff(
        _lines(shown), _lines(printed), "shown", "printed", lineterm="", n=1
    )
    return "\n".join(lines)[:_LONGEST_SHOWN]


def is_within(shown: str, printed: str, *, figures_vary: bool = False) -> bool:
    """Return whether what is shown was printed, among other lines."""
    around = f"{_ELLIPSIS}\n{shown}\n{_ELLIPSIS}" if shown else _ELLIPSIS
    return _fit(around, _lines(printed), figures_vary=figures_vary)


def names_made(shown: str, printed: str) -> dict[str, str]:
    """Return what stands in the place of each name on the page that was made anew, in its order."""
    pairs = list(zip(_NAME.findall(shown), _NAME.findall(printed), strict=False))
    # Longest first, as a token holds its public part.
    parts = [(_ID.findall(one)[0], _ID.findall(other)[0]) for one, other in pairs]
    return dict([*pairs, *parts])


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip("\n").splitlines()]


def _fit(shown: str, printed: list[str], *, figures_vary: bool) -> bool:
    """Line by line: at which of the printed lines each shown one may end."""
    ends = {0}
    for line in _lines(shown):
        if line.strip() == _ELLIPSIS:
            ends = set(range(min(ends), len(printed) + 1)) if ends else ends
            continue
        pattern = re.compile(_line(line, figures_vary=figures_vary))
        ends = {end + 1 for end in ends if end < len(printed) and pattern.fullmatch(printed[end])}
    return len(printed) in ends


def _line(line: str, *, figures_vary: bool) -> str:
    if not figures_vary:
        return _literal(line)
    line = _VERDICT.sub(rf"\1{_ELLIPSIS}\2", line)
    words = (
        r"[^\s\d]*\d\S*" if any(map(str.isdigit, word)) else _literal(word) for word in line.split()
    )
    return rf" *{' +'.join(words)}"


def _literal(text: str) -> str:
    return ".*?".join(map(re.escape, text.split(_ELLIPSIS)))


def _fits_json(shown: str, printed: str, *, figures_vary: bool) -> bool:
    """Part by part between the ellipses, each at its first place: a later one fits no better."""
    wanted, got = "".join(shown.split()), "".join(printed.split())
    first, *others = wanted.split(_ELLIPSIS)
    if figures_vary:
        first, *others = (_FIGURE.sub("#", part) for part in (first, *others))
        got = _FIGURE.sub("#", got)
    if not others:
        return got == first
    if not got.startswith(first):
        return False
    at = len(first)
    for part in others[:-1]:
        found = got.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return len(got) - at >= len(others[-1]) and got.endswith(others[-1])
