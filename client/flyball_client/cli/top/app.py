"""`flyball top` on a terminal, drawn by Textual; the one module that imports it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import threading
from collections.abc import Sequence
from types import FrameType

from textual.app import App, ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from flyball_client.cli.top.lines import ASCII, Line, Paper, Span, Tone, clipped
from flyball_client.cli.top.pages import page_of
from flyball_client.cli.top.reading import Read, Seen, local_time, read_again

# Ages grow between two readings.
_DRAWN_EVERY_S = 1.0
_ENDS_WITHIN_S = 2.0
_FEWEST_BODY_LINES = 3


class _Body(VerticalScroll):
    """Lines that scroll, also by the keys of a pager."""

    BINDINGS = [  # noqa: RUF012 - as Textual declares it
        ("k", "scroll_up"),
        ("j", "scroll_down"),
        ("b", "page_up"),
        ("space", "page_down"),
        ("g", "scroll_home"),
        ("G", "scroll_end"),
    ]


class TopApp(App[None]):
    """Shows the newest reading, and reads again every `interval_s` in a thread.

    Args:
        read: one reading; may raise PlannerError.
        seen: first reading.
        address: the planner's, as it is shown.
        interval_s: time between two readings.
    """

    CSS = """
    Screen, Static, _Body { background: ansi_default; color: ansi_default; }
    Static { height: auto; text-wrap: nowrap; }
    _Body { height: 1fr; scrollbar-size: 0 0; }
    """
    BINDINGS = [("q,Q,ctrl+c", "quit"), ("ctrl+z", "suspend_process")]  # noqa: RUF012
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, read: Read, seen: Seen, address: str, *, interval_s: float) -> None:
        super().__init__(ansi_color=True)
        self.animation_level = "none"
        self._read, self._seen, self._address = read, seen, address
        self._interval_s = interval_s
        self._marks = {} if sys.stderr.encoding.lower().startswith("utf") else ASCII
        self._head, self._body, self._foot = (Static(markup=False) for _ in range(3))
        self._scroll = _Body(self._body)
        self._ended = threading.Event()

    def compose(self) -> ComposeResult:
        """Put the head above the lines that scroll, and the keys below them."""
        yield from (self._head, self._scroll, self._foot)

    def on_mount(self) -> None:
        """Start reading and drawing."""
        self._scroll.focus()
        self.watch(self._scroll, "scroll_y", self._draw_foot)
        self.set_interval(_DRAWN_EVERY_S, self._draw)
        # A daemon: a call that the planner keeps waiting must not delay the end.
        threading.Thread(target=self._poll, name="flyball top", daemon=True).start()

    def on_resize(self) -> None:
        """Draw for the new size."""
        self._draw()

    def on_unmount(self) -> None:
        """Stop reading."""
        self._ended.set()

    def _poll(self) -> None:
        seen = self._seen
        with contextlib.suppress(RuntimeError):  # the display has ended
            while not self._ended.wait(max(self._interval_s, seen.retry_after_s)):
                try:
                    seen = read_again(seen, self._read, local_time)
                except Exception as error:
                    self.call_later(self._show, error)
                    return
                self.call_later(self._show, seen)

    def _show(self, found: Seen | Exception) -> None:
        if isinstance(found, Exception):  # a fault of ours, which ends the display
            raise found
        self._seen = found
        self._draw()

    def _draw(self) -> None:
        page = page_of(self._seen, self._address, Paper(now=local_time(), width=self.size.width))
        # The foot takes one line.
        head = page.head[: max(0, self.size.height - 1 - _FEWEST_BODY_LINES)]
        self._head.update(self._content(head))
        self._head.display = bool(head)
        self._body.update(self._content(page.body))
        self.call_after_refresh(self._draw_foot)

    def _draw_foot(self) -> None:
        keys, first, rows = "q ends", round(self._scroll.scroll_y), self._scroll.size.height
        if rows < (num_lines := self._body.size.height):
            where = f"lines {first + 1} to {min(first + rows, num_lines)} of {num_lines}"
            keys = f"{where}, arrows scroll   {keys}"
        self._foot.update(self._content([(Span(keys, Tone.MUTED),)]))

    def _content(self, lines: Sequence[Line]) -> Content:
        return Content("\n").join(
            Content.assemble(*((s.text.translate(self._marks), s.tone.value) for s in line))
            for line in (clipped(line, self.size.width) for line in lines)
        )


def follow(read: Read, seen: Seen, address: str, *, interval_s: float) -> int:
    """Show the page until a key or a signal ends it; return the exit status."""
    app = TopApp(read, seen, address, interval_s=interval_s)
    settings = termios.tcgetattr(sys.stdin)

    def give_up() -> None:
        with contextlib.suppress(termios.error):
            termios.tcsetattr(sys.stdin, termios.TCSANOW, settings)
        os._exit(0)

    def end(number: int, frame: FrameType | None) -> None:
        # Textual waits for a terminal that takes no output.
        watchdog = threading.Timer(_ENDS_WITHIN_S, give_up)
        watchdog.daemon = True
        watchdog.start()
        loop.call_soon_threadsafe(app.exit)

    loop = asyncio.new_event_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    app.run(mouse=False, loop=loop)
    loop.close()
    return app.return_code or 0
