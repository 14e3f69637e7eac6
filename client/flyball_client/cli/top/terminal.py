"""The terminal that `flyball top` runs on: its keys, its size, and the signals that end it.

What was changed is given back however the command ends, and it ends within a moment even where
the terminal takes no output.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import threading
import tty
from collections.abc import Generator
from contextlib import contextmanager
from enum import StrEnum
from types import FrameType

# A terminal that takes nothing must not keep the command.
ENDS_WITHIN_S = 2.0
_DEFAULT_SIZE = (80, 24)
_KEY_BYTES = 64


class Event(StrEnum):
    """What happened; of keys those that mean something."""

    END = "end"
    SUSPEND = "suspend"
    UP = "up"
    DOWN = "down"
    PAGE_UP = "page-up"
    PAGE_DOWN = "page-down"
    TOP = "top"
    BOTTOM = "bottom"


# Longer ones first: an escape alone is no key here.
_KEYS = (
    (b"\x1b[5~", Event.PAGE_UP),
    (b"\x1b[6~", Event.PAGE_DOWN),
    (b"\x1b[1~", Event.TOP),
    (b"\x1b[4~", Event.BOTTOM),
    (b"\x1b[A", Event.UP),
    (b"\x1bOA", Event.UP),
    (b"\x1b[B", Event.DOWN),
    (b"\x1bOB", Event.DOWN),
    (b"\x1b[H", Event.TOP),
    (b"\x1bOH", Event.TOP),
    (b"\x1b[F", Event.BOTTOM),
    (b"\x1bOF", Event.BOTTOM),
    (b"k", Event.UP),
    (b"j", Event.DOWN),
    (b" ", Event.PAGE_DOWN),
    (b"b", Event.PAGE_UP),
    (b"g", Event.TOP),
    (b"G", Event.BOTTOM),
    (b"q", Event.END),
    (b"Q", Event.END),
)


def events_of(typed: bytes) -> list[Event]:
    """The keys in what was typed; what means nothing is passed over."""
    events: list[Event] = []
    while typed:
        for code, event in _KEYS:
            if typed.startswith(code):
                events.append(event)
                typed = typed[len(code) :]
                break
        else:
            typed = typed[1:]
    return events


class Terminal:
    """Stdin's keys and the process's signals as events; used as a context manager.

    Ctrl-C, SIGTERM and SIGHUP ask for the end. `notify` may be called from any thread.
    """

    def __init__(self) -> None:
        self._ears, self._mouth = os.pipe()
        os.set_blocking(self._ears, False)
        os.set_blocking(self._mouth, False)
        # Of the pipe, which the thread that notifies may outlive; a signal may come in between.
        self._lock = threading.RLock()
        self._is_open = True
        self._asked: list[Event] = []
        self._keys = sys.stdin.fileno() if sys.stdin and sys.stdin.isatty() else None
        self._before: list[int | list[bytes | int]] | None = None

    def notify(self) -> None:
        """Let a `wait` that is under way return."""
        with self._lock, contextlib.suppress(BlockingIOError):  # full, so it returns anyway
            if self._is_open:
                os.write(self._mouth, b".")

    def wait(self, timeout_s: float) -> list[Event]:
        """Return what happened, at the latest after so many s."""
        watched = [self._ears, *([] if self._keys is None else [self._keys])]
        ready = select.select(watched, [], [], 0 if self._asked else timeout_s)[0]
        if self._ears in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._ears, 4096)
        events, self._asked = self._asked, []
        if self._keys is not None and self._keys in ready:
            events += self._typed(self._keys)
        return events

    def _typed(self, keys: int) -> list[Event]:
        try:
            typed = os.read(keys, _KEY_BYTES)
        except OSError:  # the terminal has gone
            typed = b""
        return events_of(typed) if typed else [Event.END]

    def size(self) -> tuple[int, int]:
        """Columns and lines of stdout's terminal."""
        try:
            columns, lines = os.get_terminal_size(sys.stdout.fileno())
        except OSError:
            return _DEFAULT_SIZE
        return columns or _DEFAULT_SIZE[0], lines or _DEFAULT_SIZE[1]

    # ------------------------------------------------------------------ taking and giving back

    @contextmanager
    def taken(self) -> Generator[None]:
        """Keys come without Enter and are not shown; signals become events."""
        handlers = {
            signal.SIGINT: self._end,
            signal.SIGTERM: self._end,
            signal.SIGHUP: self._end,
            signal.SIGTSTP: self._suspend,
            signal.SIGWINCH: self._resized,
            signal.SIGALRM: self._give_up,
        }
        before = {number: signal.getsignal(number) for number in handlers}
        try:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            self.take_keys()
            yield
        finally:
            self.give_keys_back()
            signal.setitimer(signal.ITIMER_REAL, 0)
            for number, handler_before in before.items():
                signal.signal(number, handler_before)
            self._close()

    def _close(self) -> None:
        with self._lock:
            self._is_open = False
            os.close(self._ears)
            os.close(self._mouth)

    def take_keys(self) -> None:
        """No echo, no waiting for Enter; Ctrl-C and Ctrl-Z stay what they are."""
        if self._keys is None:
            return
        with contextlib.suppress(termios.error):
            self._before = termios.tcgetattr(self._keys)
            tty.setcbreak(self._keys, termios.TCSANOW)

    def give_keys_back(self) -> None:
        """As it was before; any number of times."""
        if self._keys is not None and self._before is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._keys, termios.TCSANOW, self._before)
            self._before = None

    def suspend(self) -> None:
        """Stop as Ctrl-Z stops any command; returns when the shell lets it go on."""
        self.give_keys_back()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._suspend)
        self.take_keys()

    def _end(self, number: int, frame: FrameType | None) -> None:
        self._asked.append(Event.END)
        self.notify()
        with contextlib.suppress(termios.error, OSError, ValueError):
            termios.tcflow(sys.stdout.fileno(), termios.TCOON)  # Ctrl-S may have stopped it
        signal.setitimer(signal.ITIMER_REAL, ENDS_WITHIN_S)

    def _suspend(self, number: int, frame: FrameType | None) -> None:
        self._asked.append(Event.SUSPEND)
        self.notify()

    def _resized(self, number: int, frame: FrameType | None) -> None:
        self.notify()

    def _give_up(self, number: int, frame: FrameType | None) -> None:
        self.give_keys_back()
        os._exit(0)
