"""A command on a terminal of its own, whose screen is looked at and whose keys are pressed."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyte
from tests.planner.live import serve_environment
from tests.planner.patience import PATIENCE_S

# The terminal becomes the command's own, so that Ctrl-C and Ctrl-Z are its signals.
_LAUNCH = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
    " os.execv(sys.argv[1], sys.argv[1:])"
)
FLYBALL = (
    sys.executable,
    "-c",
    "import sys; from flyball_client.__main__ import main; sys.exit(main())",
)


class CommandOnTerminal:
    """A process and what its terminal shows.

    Attributes:
        written: all that it wrote, escapes and all.
    """

    def __init__(
        self, command: Sequence[str], environment: dict[str, str], size: tuple[int, int]
    ) -> None:
        self.written = b""
        self._screen = pyte.Screen(*size)
        self._stream = pyte.ByteStream(self._screen)
        self._ours, self._theirs = pty.openpty()
        self._set_size(*size)
        self.settings_before = termios.tcgetattr(self._theirs)
        self.process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, *command],
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            env=environment,
            start_new_session=True,
        )

    @property
    def shown(self) -> str:
        """The screen's lines, without what is blank at their ends."""
        return "\n".join(line.rstrip() for line in self._screen.display)

    @property
    def settings(self) -> list[object]:
        """The terminal's, as tcgetattr has them."""
        return list(termios.tcgetattr(self._theirs))

    @property
    def has_unread(self) -> bool:
        """Return whether it has written what nobody has read."""
        return bool(select.select([self._ours], [], [], 0)[0])

    def wait_for(self, is_so: Callable[[str], bool]) -> None:
        """Read on until the screen is so."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not is_so(self.shown):
            assert time.monotonic() < deadline_s, f"it never came to be; shown:\n{self.shown}"
            assert self.process.poll() is None or self._read(0), f"it has ended:\n{self.shown}"
            self._read(0.05)

    def wait_for_text(self, text: str) -> None:
        """Read on until this is shown."""
        self.wait_for(lambda shown: text in shown)

    def press(self, keys: bytes) -> None:
        """As if they were typed."""
        os.write(self._ours, keys)

    def resize(self, columns: int, lines: int) -> None:
        """As when a window's corner is pulled."""
        self._screen.resize(lines, columns)
        self._set_size(columns, lines)

    def end(self, *, reading: bool = True) -> int:
        """Wait for its end, reading what it writes or not; its exit status."""
        deadline_s = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline_s, f"it does not end; shown:\n{self.shown}"
            if reading:
                self._read(0.05)
            else:
                time.sleep(0.01)
        while self._read(0):
            pass
        return self.process.returncode

    def close(self) -> None:
        """End it whatever it does, with all that it started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)
        os.close(self._ours)
        os.close(self._theirs)

    def _read(self, wait_s: float) -> bool:
        if not select.select([self._ours], [], [], wait_s)[0]:
            return False
        piece = os.read(self._ours, 65536)
        self.written += piece
        self._stream.feed(piece)
        return True

    def _set_size(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


@contextmanager
def on_a_terminal(
    *command: str,
    size: tuple[int, int] = (100, 40),
    environment: Mapping[str, str] | None = None,
) -> Iterator[CommandOnTerminal]:
    """Run `command` on a terminal of this many columns and lines, without our `FLYBALL_*`.

    The terminal knows 256 colours, unless TERM in the `environment` says otherwise.
    """
    plain = {
        name: value
        for name, value in serve_environment().items()
        if name not in {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "COLORTERM", "TERM"}
    }
    changes = {"TERM": "xterm-256color", "PYTHONUTF8": "1", **(environment or {})}
    running = CommandOnTerminal(command, {**plain, **changes}, size)
    try:
        yield running
    finally:
        running.close()
