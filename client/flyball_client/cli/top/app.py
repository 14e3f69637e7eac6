"""`flyball top` on a terminal: Textual's tables; the one module that imports it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import threading
from collections.abc import Callable
from itertools import zip_longest
from types import FrameType

from rich.console import JustifyMethod
from rich.text import Text
from textual.app import App, ComposeResult
from textual.containers import ScrollableContainer
from textual.coordinate import Coordinate
from textual.widgets import DataTable, Static

from flyball_client.cli.top.blocks import ASCII, GAP, Paragraph, Span, Table
from flyball_client.cli.top.pages import page_of
from flyball_client.cli.top.reading import Read, Seen, local_time, read_again

# Ages grow between two readings.
_DRAWN_EVERY_S = 1.0
_ENDS_WITHIN_S = 2.0
_JUSTIFY: dict[str, JustifyMethod] = {"<": "left", ">": "right"}


class _Body(ScrollableContainer):
    """Paragraphs and tables that scroll, also by the keys of a pager."""

    BINDINGS = [  # noqa: RUF012 - as Textual declares it
        ("k", "scroll_up"),
        ("j", "scroll_down"),
        ("h", "scroll_left"),
        ("l", "scroll_right"),
        ("b", "page_up"),
        ("space", "page_down"),
        ("g", "scroll_home"),
        ("G", "scroll_end"),
    ]


class _Table(DataTable[Text], can_focus=False):
    """Table without a cursor, of which only cells with other figures are drawn again."""

    _shown = Table(columns=(), rows=())

    def show(self, table: Table, text: Callable[[Span, str], Text]) -> None:
        """Show these rows; `text` returns a cell's, aligned."""
        old, self._shown = self._shown, table
        if old.shape == table.shape:
            for i, rows in enumerate(zip(old.rows, table.rows, strict=True)):
                for j, (before, cell) in enumerate(zip(*rows, strict=True)):
                    if before != cell:
                        self.update_cell_at(Coordinate(i, j), text(cell, table.aligns[j]))
            return
        self.clear(columns=True)
        self.cursor_type, self.header_height = "none", len(table.headings[0])
        self.show_header = self.header_height > 0
        columns = zip(table.headings, table.aligns, table.widths, strict=True)
        for heading, align, width in columns:
            self.add_column(Text("\n".join(heading), justify=_JUSTIFY[align]), width=width)
        for row in table.rows:
            self.add_row(*map(text, row, table.aligns))


class TopApp(App[None]):
    """Newest reading on the screen; read again every `interval_s` in a thread.

    Args:
        read: Returns a reading; may raise PlannerError.
        seen: First reading.
        address: Address of the planner, as shown.
        interval_s: Time between two readings.
    """

    CSS = """
    * {
        background: ansi_default; color: ansi_default;
        scrollbar-background: ansi_default; scrollbar-color: ansi_bright_black;
    }
    #head { height: auto; max-height: 50%; }
    Static { height: auto; }
    DataTable { width: auto; max-height: 100000; }
    DataTable > .datatable--header { background: ansi_default; text-style: dim; }
    DataTable > .datatable--even-row { background: ansi_default; }
    """
    BINDINGS = [("q,Q,ctrl+c", "quit"), ("ctrl+z", "suspend_process")]  # noqa: RUF012
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, read: Read, seen: Seen, address: str, *, interval_s: float) -> None:
        super().__init__(ansi_color=True)
        self.animation_level = "none"
        self._read, self._seen, self._address = read, seen, address
        self._interval_s = interval_s
        self._marks = {} if sys.stderr.encoding.lower().startswith("utf") else ASCII
        self._head, self.body = Static(id="head"), _Body()
        self._widgets: list[tuple[Static, _Table]] = []
        self._ended = threading.Event()

    def compose(self) -> ComposeResult:
        """Put the head above the blocks that scroll, and the keys below them."""
        yield from (self._head, self.body, Static("q ends, arrows scroll", id="foot"))

    def on_mount(self) -> None:
        """Start reading and drawing."""
        if self._marks:  # a scroll bar has characters that are not ASCII
            self.body.styles.scrollbar_size_horizontal = 0
            self.body.styles.scrollbar_size_vertical = 0
        self.body.focus()
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
        page = page_of(self._seen, self._address, local_time(), self.size.width)
        self._head.update(Text("\n").join(map(self._paragraph, page.head)))
        # Widgets that stay keep the place to which the body is scrolled.
        while len(self._widgets) < len(page.body):
            self._widgets.append((Static(), _Table()))
            self.body.mount(*self._widgets[-1])
        for (text, table), block in zip_longest(self._widgets, page.body):
            text.display, table.display = isinstance(block, tuple), isinstance(block, Table)
            if isinstance(block, Table):
                table.show(block, self._text)
            elif block is not None:
                text.update(self._paragraph(block))
        # All of the screen: others write on it too, as a shell while this is suspended.
        self.call_after_refresh(self.refresh)

    def _paragraph(self, spans: Paragraph) -> Text:
        return Text(GAP).join(map(self._text, spans))

    def _text(self, span: Span, align: str = "<") -> Text:
        return Text(span.drawable.translate(self._marks), span.tone, justify=_JUSTIFY[align])


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
