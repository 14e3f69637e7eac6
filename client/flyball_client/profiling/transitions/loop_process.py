"""Loops on a GPU, by a process that uses torch: `flyball_integrations.shared.clock_loops`."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import subprocess
import tempfile
import time
from typing import Protocol, Self

from flyball_client.profiling.transitions._base import Loop
from flyball_wire.errors import FlyballError
from flyball_wire.python_child import python_command, python_environment

_logger = logging.getLogger(__name__)

READY, COMPUTING = "ready", "computing"
CYCLES, PRODUCTS = "cycles", "products"

# Importing torch and compiling take long on a busy machine.
_READY_WITHIN_S = 180.0
_ANSWERED_WITHIN_S = 30.0
_ENDED_WITHIN_S = 10.0


class LoopError(FlyballError):
    """The load of loops failed."""


class LoopSource(Protocol):
    """Load of loops on one GPU, for a `with` block.

    Raises, from all methods:
        LoopError: The load failed.
    """

    @property
    def counts_cycles(self) -> bool:
        """True: the loops' work is their SM cycles."""
        ...

    def begin(self, time_s: float) -> None:
        """Compute for a time in s; return once the GPU computes."""
        ...

    def loops(self) -> tuple[Loop, ...]:
        """Wait for the end, and return the loops since the last `begin`."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exception: object) -> None: ...


class LoopProcess:
    """LoopSource in a process of its own, which ends with this one.

    Args:
        device: CUDA's number of the GPU; None: loops on the CPU.
        is_coarse: True: loops are timed matrix products, without a kernel of our own.
    """

    def __init__(self, device: int | None, *, is_coarse: bool = False) -> None:
        self._device = "cpu" if device is None else str(device)
        self._is_coarse = is_coarse
        self._way = ""
        self._buffer = b""

    @property
    def counts_cycles(self) -> bool:
        """True: the loops' work is their SM cycles."""
        return self._way == CYCLES

    def __enter__(self) -> Self:
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            [
                *python_command("-m", "flyball_integrations.shared.clock_loops"),
                *("--device", self._device),
                *(["--coarse"] if self._is_coarse else []),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=python_environment(os.environ),
            # Ctrl-C is handled by this process.
            start_new_session=True,
        )
        try:
            said, _, self._way = self._line(_READY_WITHIN_S).partition(" ")
            if said != READY:
                raise LoopError(f"the load of loops did not start: {said[:200]}")
            if self._way == PRODUCTS and not (self._is_coarse or self._device == "cpu"):
                _logger.warning("changes are measured coarsely: %s", self._last_line())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._end()

    def begin(self, time_s: float) -> None:
        """Compute for a time in s; return once the device computes."""
        stdin = self._process.stdin
        if stdin is None:
            raise AssertionError("started with a pipe")
        with contextlib.suppress(BrokenPipeError):  # its end is read below
            stdin.write(f"{time_s!r}\n".encode())
            stdin.flush()
        if (said := self._line(_ANSWERED_WITHIN_S)) != COMPUTING:
            raise LoopError(f"the load of loops did not begin: {said[:200]}")

    def loops(self) -> tuple[Loop, ...]:
        """Wait for the end, and return the loops since the last `begin`."""
        line = self._line(_ANSWERED_WITHIN_S)
        try:
            return tuple(Loop(*loop) for loop in json.loads(line))
        except (ValueError, TypeError):
            raise LoopError(f"the load of loops answered {line[:200]!r}") from None

    def _line(self, within_s: float) -> str:
        """Return the next line of the process."""
        stdout = self._process.stdout
        if stdout is None:
            raise AssertionError("started with a pipe")
        give_up_s = time.monotonic() + within_s
        while b"\n" not in self._buffer:
            left_s = give_up_s - time.monotonic()
            if left_s <= 0 or not select.select([stdout], (), (), left_s)[0]:
                raise LoopError(f"the load of loops did not answer within {within_s:g} s")
            read = os.read(stdout.fileno(), 1 << 16)
            if not read:
                raise LoopError(f"the load of loops ended: {self._last_words()}")
            self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode("utf-8", "replace").strip()

    def _last_words(self) -> str:
        self._process.wait(_ENDED_WITHIN_S)
        return self._last_line() or f"exit status {self._process.returncode}"

    def _last_line(self) -> str:
        """Return the last line of the process's errors; empty: there is none."""
        self._errors.seek(0)
        text = self._errors.read().decode("utf-8", "replace")
        return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")

    def _end(self) -> None:
        process = self._process
        with contextlib.suppress(OSError):
            if process.stdin is not None:
                process.stdin.close()
        try:
            process.wait(_ENDED_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
        self._errors.close()
