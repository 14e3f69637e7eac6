"""Process of a module of ours that answers lines with lines, such as a load that uses torch."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Sequence
from typing import Self

from flyball_wire.command.python_child import python_command, python_environment
from flyball_wire.errors import FlyballError

_ENDED_WITHIN_S = 10.0


class LineProcessError(FlyballError):
    """The process ended, or did not answer in time."""


class LineProcess:
    """Process for a `with` block, which ends at the end of its standard input."""

    def __init__(self, name: str, module: str, arguments: Sequence[str]) -> None:
        self._name = name
        self._command = python_command("-m", module, *arguments)
        self._buffer = b""

    def __enter__(self) -> Self:
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=python_environment(os.environ),
            # Ctrl-C is handled by this process.
            start_new_session=True,
        )
        assert self._process.stdin and self._process.stdout  # noqa: S101 - started with pipes
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        return self

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(OSError):
            self._stdin.close()
        try:
            self._process.wait(_ENDED_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stdout.close()
        self._errors.close()

    def write(self, line: str) -> None:
        """Write one line to its standard input."""
        with contextlib.suppress(BrokenPipeError):  # its end shows as a line is read
            self._stdin.write(f"{line}\n".encode())
            self._stdin.flush()

    def has_output(self, within_s: float = 0.0) -> bool:
        """Return whether there is a line, a part of one, or the end of its output."""
        return bool(self._buffer or select.select([self._stdout], (), (), within_s)[0])

    def line(self, within_s: float) -> str:
        """Return its next line.

        Raises:
            LineProcessError: It ended, or did not answer in time.
        """
        give_up_s = time.monotonic() + within_s
        while b"\n" not in self._buffer:
            left_s = max(0.0, give_up_s - time.monotonic())
            if not select.select([self._stdout], (), (), left_s)[0]:
                raise LineProcessError(f"{self._name} did not answer within {within_s:g} s")
            read = os.read(self._stdout.fileno(), 1 << 16)
            if not read:
                self._process.wait(_ENDED_WITHIN_S)
                said = self.last_error_line() or f"exit status {self._process.returncode}"
                raise LineProcessError(f"{self._name} ended: {said}")
            self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode("utf-8", "replace").strip()

    def last_error_line(self) -> str:
        """Return the last line of its standard error; empty: there is none."""
        self._errors.seek(0)
        text = self._errors.read().decode("utf-8", "replace")
        return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
