"""Pages drawn on a terminal by rich; the one module of the client that imports it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, ConsoleDimensions
from rich.live import Live
from rich.style import Style
from rich.text import Text

from flyball_client.cli.top.lines import Line, Tone

_STYLES = {
    Tone.PLAIN: Style(),
    Tone.MUTED: Style(dim=True),
    Tone.TITLE: Style(bold=True),
    Tone.HEADING: Style(underline=True),
    Tone.GOOD: Style(color="green"),
    Tone.ACCENT: Style(color="cyan"),
    Tone.WARN: Style(color="yellow", bold=True),
    Tone.BAD: Style(color="red", bold=True),
    Tone.ALARM: Style(reverse=True, bold=True),
}


def text_of(lines: Sequence[Line]) -> Text:
    """The lines as rich has them; nothing in them is markup."""
    text = Text(no_wrap=True, overflow="crop", end="")
    for i, line in enumerate(lines):
        if i:
            text.append("\n")
        for span in line:
            text.append(span.text, _STYLES[span.tone])
    return text


def print_once(lines: Sequence[Line], *, width: int) -> None:
    """Print the lines below each other; in a pipe without any escape."""
    is_terminal = sys.stdout.isatty()
    console = Console(
        width=width, force_terminal=is_terminal, color_system="auto" if is_terminal else None
    )
    console.print(text_of(lines), soft_wrap=True)


def is_drawable_on() -> bool:
    """Return whether stdout is a terminal on which a screen can be drawn."""
    return sys.stdout.isatty() and not Console(force_terminal=True).is_dumb_terminal


class Screen:
    """The alternate screen; used as a context manager, again and again."""

    def __init__(self) -> None:
        self._console = Console(force_terminal=True)
        self._live: Live | None = None

    def __enter__(self) -> Self:
        self._live = Live(console=self._console, screen=True, auto_refresh=False)
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def draw(self, lines: Sequence[Line], *, columns: int, rows: int) -> None:
        """Show these lines on all of the screen."""
        if self._live is not None:
            self._console.size = ConsoleDimensions(columns, rows)
            self._live.update(text_of(lines), refresh=True)
