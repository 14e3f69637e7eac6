"""Runs a process to its end: how long it took, how much memory it had, what it found."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parent
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
    """Run `command` without input, in a session of its own: what it leaves ends with it.

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
            start_new_session=True,
        )
        # wait4 and not communicate(): only it gives the figures of this child alone.
        watchdog = threading.Timer(give_up_s, process.kill)
        watchdog.start()
        try:
            _, status, usage = os.wait4(process.pid, 0)
            process_s = time.perf_counter() - began_s
            process.returncode = os.waitstatus_to_exitcode(status)
        finally:
            watchdog.cancel()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
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


def run_script(
    script: str,
    *arguments: str,
    problem: object,
    give_up_s: float,
    python: str = sys.executable,
    environment: Mapping[str, str] | None = None,
) -> tuple[Any, ProcessRun]:
    """Run `SCRIPT ARGUMENTS PROBLEM.json RESULT.json`, a script of this folder; return its result.

    Args:
        script: its name.
        arguments: before the files.
        problem: becomes JSON.
        give_up_s: after so long it is killed, s.
        python: the interpreter.
        environment: variables beside those of this process.

    Raises:
        BenchmarkError: it failed, or was killed.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder) / "problem.json", Path(folder) / "result.json"
        files[0].write_text(json.dumps(problem), encoding="utf-8")
        command = [python, str(BENCHMARKS / script), *arguments, *map(str, files)]
        process = run_process(command, give_up_s=give_up_s, environment=environment)
        return json.loads(files[1].read_text(encoding="utf-8")), process


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


def children_cpu_s() -> float:
    """Return the processor time of all processes that were started and waited for, s."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def cpu_time_ns(pid: int) -> int:
    """Return the CPU time that a process has used, ns, with its threads that have ended.

    Raises:
        ProcessLookupError: there is no such process.
    """
    clock = ctypes.c_int()
    # 0 would be this process.
    if pid <= 0 or ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock)) != 0:
        raise ProcessLookupError(pid)
    return time.clock_gettime_ns(clock.value)
