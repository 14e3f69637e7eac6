"""Runs a command to its end and says how long the whole process took and how much memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

STDERR_LINES_SHOWN = 5


class BenchmarkError(Exception):
    """A benchmark that cannot be run; the message is one line for people."""


@dataclass(frozen=True, kw_only=True)
class ProcessRun:
    """One process, from its start to its exit.

    Attributes:
        stdout: what it printed, UTF-8.
        process_s: from starting it to its exit, s.
        peak_memory_bytes: its largest resident set, as the kernel counted it. The kernel begins
            the count at what this process held when it started the other.
    """

    stdout: str
    process_s: float
    peak_memory_bytes: int


@dataclass(frozen=True, kw_only=True)
class FlyballRun:
    """Output of a `flyball` command with `--json`, and the resources of its process."""

    document: dict[str, Any]
    process: ProcessRun

    @property
    def solve_s(self) -> float:
        """Return what the command itself reports for the planning alone, s."""
        return float(self.document["solve_s"])


def run_process(
    command: Sequence[str], *, give_up_s: float, environment: Mapping[str, str] | None = None
) -> ProcessRun:
    """Run `command` without input.

    Args:
        command: program and arguments.
        give_up_s: after so long it is killed, s.
        environment: variables beside those of this process.

    Raises:
        BenchmarkError: it failed, or was killed.
    """
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        began_s = time.perf_counter()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env={**os.environ, **(environment or {})},
        )
        # wait4 and not communicate(): only it gives the figures of this child alone.
        watchdog = threading.Timer(give_up_s, process.kill)
        watchdog.start()
        try:
            _, status, usage = os.wait4(process.pid, 0)
            process_s = time.perf_counter() - began_s
            process.returncode = os.waitstatus_to_exitcode(status)
        except BaseException:
            process.kill()
            raise
        finally:
            watchdog.cancel()
        if process.returncode != 0:
            stderr.seek(0)
            last = stderr.read().decode("utf-8", "replace").strip().splitlines()
            raise BenchmarkError(
                f"{' '.join(command)}: status {process.returncode} after {process_s:.1f} s"
                f" (limit {give_up_s:g} s): {' | '.join(last[-STDERR_LINES_SHOWN:])}"
            )
        stdout.seek(0)
        return ProcessRun(
            stdout=stdout.read().decode("utf-8"),
            process_s=process_s,
            peak_memory_bytes=usage.ru_maxrss * 1024,
        )


def run_flyball(
    arguments: Sequence[str], *, give_up_s: float, environment: Mapping[str, str] | None = None
) -> FlyballRun:
    """Run `flyball ARGUMENTS --json` of the environment that runs the benchmark.

    Raises:
        BenchmarkError: it failed, or took longer than `give_up_s` (s).
    """
    command = [sys.executable, "-m", "flyball_client", *arguments, "--json"]
    process = run_process(command, give_up_s=give_up_s, environment=environment)
    return FlyballRun(document=json.loads(process.stdout), process=process)
