"""Runs one of the drivers of benchmarks/hooks.py, bounded, and leaves nothing of it behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from measured_process import STDERR_LINES_SHOWN, BenchmarkError

BENCHMARKS = Path(__file__).resolve().parent
ROOT = BENCHMARKS.parent


def run_driver(
    python: str,
    driver: str,
    problem: object,
    *,
    variables: Mapping[str, str],
    give_up_s: float,
) -> Any:  # noqa: ANN401 - JSON
    """Run `DRIVER PROBLEM.json RESULT.json`, and return the result.

    It has a session of its own: what it forked and left ends with it. A governor is in another
    one, and ends by itself.

    Args:
        python: the interpreter.
        driver: a script of this folder.
        problem: becomes JSON.
        variables: of its environment, beside those of this process.
        give_up_s: after so long it is killed, s.

    Raises:
        BenchmarkError: it failed, or was killed.
    """
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as stderr:
        problem_file, result_file = Path(folder) / "problem.json", Path(folder) / "result.json"
        problem_file.write_text(json.dumps(problem), encoding="utf-8")
        process = subprocess.Popen(
            [python, str(BENCHMARKS / driver), str(problem_file), str(result_file)],
            stdin=subprocess.DEVNULL,
            stdout=stderr,
            stderr=stderr,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables},
        )
        try:
            status: int | str = process.wait(give_up_s)
        except subprocess.TimeoutExpired:
            status = f"killed after {give_up_s:g} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if status != 0:
            raise BenchmarkError(f"{driver}: status {status}: {_last_lines(stderr)}")
        return json.loads(result_file.read_text(encoding="utf-8"))


def _last_lines(stderr: Any) -> str:  # noqa: ANN401 - a temporary file's wrapper
    stderr.seek(0)
    lines: Sequence[str] = stderr.read().decode("utf-8", "replace").strip().splitlines()
    return " | ".join(lines[-STDERR_LINES_SHOWN:])
