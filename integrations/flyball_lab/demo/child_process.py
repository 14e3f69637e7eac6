"""A process that the demo starts, logs and ends."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from flyball_lab.demo.interruption import Interruption
from flyball_lab.demo.process_tree import kill_tree

_POLL_S = 0.1


class ChildProcess:
    """A Python process in a session of its own, so that Ctrl-C reaches the demo alone.

    Leaving its `with` block ends it and all that it started.

    Args:
        arguments: after the Python interpreter.
        environment: its whole environment.
        log: takes its stdout and stderr.
        grace_s: how long it may take to end by itself after SIGTERM, s; 0: killed at once.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        log: Path,
        grace_s: float = 0.0,
    ) -> None:
        self.log = log
        self._grace_s = grace_s
        with log.open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, *arguments],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> ChildProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Its process number."""
        return self._process.pid

    def exit_status(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._process.poll()

    def wait(self, interruption: Interruption, *, timeout_s: float) -> int | None:
        """Its exit status, or None if it still runs after `timeout_s`.

        Raises:
            KeyboardInterrupt: a signal came meanwhile.
        """
        deadline_s = time.monotonic() + timeout_s
        while self.exit_status() is None and time.monotonic() < deadline_s:
            interruption.sleep(_POLL_S)
        return self.exit_status()

    def stop(self) -> None:
        """End it and all that it started; nothing if it has ended."""
        if self._grace_s > 0 and self.exit_status() is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(self._grace_s)
        kill_tree(self._process)
