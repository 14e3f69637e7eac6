"""Which lines of a page are on a screen, and how keys move them."""

from __future__ import annotations

from flyball_client.cli.top.lines import Line, Page, Span, Tone, clipped
from flyball_client.cli.top.marks import Marks
from flyball_client.cli.top.terminal import Event

_FEWEST_BODY_LINES = 3
_ALL_LINES = 1_000_000


def visible(
    page: Page, offset: int, *, columns: int, rows: int, marks: Marks
) -> tuple[list[Line], int]:
    """The lines on the screen, the last of them a foot, and the offset that they really have.

    Args:
        page: all of it.
        offset: lines of the body that are above what is shown.
        columns: of the terminal.
        rows: of the terminal.
        marks: what a cut is marked with.
    """
    head = page.head[: max(0, rows - 1 - _FEWEST_BODY_LINES)]
    room = max(0, rows - 1 - len(head))
    offset = max(0, min(offset, len(page.body) - room))
    shown = page.body[offset : offset + room]
    blank: list[Line] = [()] * (room - len(shown))
    lines = [*head, *shown, *blank, _foot(page, offset, len(shown))]
    return [clipped(line, columns, marks.ellipsis) for line in lines][:rows], offset


def moved(offset: int, event: Event, *, rows: int) -> int:
    """Return where a key leads; it may be beyond the page's end, which `visible` puts right."""
    page = max(1, rows - 2 - _FEWEST_BODY_LINES)
    steps = {
        Event.UP: -1,
        Event.DOWN: 1,
        Event.PAGE_UP: -page,
        Event.PAGE_DOWN: page,
        Event.TOP: -_ALL_LINES,
        Event.BOTTOM: _ALL_LINES,
    }
    return max(0, offset + steps.get(event, 0))


def _foot(page: Page, offset: int, num_shown: int) -> Line:
    keys = "q ends"
    if num_shown < len(page.body):
        where = f"lines {offset + 1} to {offset + num_shown} of {len(page.body)}"
        keys = f"{where}, arrows scroll   {keys}"
    return (Span(keys, Tone.MUTED),)
