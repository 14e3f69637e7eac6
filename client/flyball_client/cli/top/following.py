"""`flyball top` on its screen: draws what was read, until Ctrl-C, `q` or a signal ends it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

from flyball_client.cli.top.marks import Marks, Paper
from flyball_client.cli.top.polling import Poller, Seen
from flyball_client.cli.top.screen import Screen
from flyball_client.cli.top.scrolling import moved, visible
from flyball_client.cli.top.terminal import Event, Terminal
from flyball_client.cli.top.views import View, page_of

T = TypeVar("T")

# Ages and the time without a planner move on by themselves.
_DRAWN_EVERY_S = 1.0


def follow(
    view: View[T],
    first: Seen[T],
    *,
    address: str,
    interval_s: float,
    now: Callable[[], datetime],
    marks: Marks,
) -> None:
    """Show the page until somebody ends it; the terminal is as before afterwards.

    Args:
        view: what is shown.
        first: what was read of it already.
        address: the planner's, as it is shown.
        interval_s: between two readings, s.
        now: the time of day, with its zone.
        marks: what pictures are made of.
    """
    terminal = Terminal()
    poller = Poller(view.read, first, interval_s=interval_s, now=now, changed=terminal.notify)

    def draw(screen: Screen, offset: int) -> int:
        columns, rows = terminal.size()
        paper = Paper(now=now(), width=columns, marks=marks)
        page = page_of(view, poller.newest(), address, paper)
        lines, offset = visible(page, offset, columns=columns, rows=rows, marks=marks)
        screen.draw(lines, columns=columns, rows=rows)
        return offset

    try:
        with terminal.taken(), poller.running():
            _draw_on(terminal, draw)
    except OSError:
        # The terminal has gone: nothing has to be put right on it, and what was left to be
        # written has to go somewhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _draw_on(terminal: Terminal, draw: Callable[[Screen, int], int]) -> None:
    offset, is_over = 0, False
    while not is_over:
        with Screen() as screen:
            offset, is_over = _until_left(terminal, screen, draw, offset)
        if not is_over:
            terminal.suspend()


def _until_left(
    terminal: Terminal, screen: Screen, draw: Callable[[Screen, int], int], offset: int
) -> tuple[int, bool]:
    """Draw until the screen is to be left; where it was scrolled to, and whether for good."""
    while True:
        offset = draw(screen, offset)
        for event in terminal.wait(_DRAWN_EVERY_S):
            if event in {Event.END, Event.SUSPEND}:
                return offset, event is Event.END
            offset = moved(offset, event, rows=terminal.size()[1])
