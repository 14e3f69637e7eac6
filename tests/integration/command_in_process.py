"""`flyball` run inside this process or in one of its own, and a profile of two pipelines for it."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

from flyball_client.__main__ import main

# Against hanging; numba compiles where nothing is cached yet.
PROCESS_LIMIT_S = 180
PROFILE_HEADER = "stage,instruction,frequency,time,energy,dp_rank\n"
_ROWS = "".join(
    f"{stage},forward,1410,1.0,10.0,{{0}}\n{stage},forward,1000,1.25,8.0,{{0}}\n"
    f"{stage},backward,1410,2.0,30.0,{{0}}\n{stage},backward,1000,2.5,20.0,{{0}}\n"
    for stage in range(2)
)


@dataclass(frozen=True, kw_only=True)
class Done:
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


Flyball = Callable[..., Done]


def in_process(capsys: pytest.CaptureFixture[str]) -> Flyball:
    """Runs a command within this process."""

    def run(*arguments: str | Path) -> Done:
        status = main([*map(str, arguments)])
        printed = capsys.readouterr()
        return Done(returncode=status, stdout=printed.out, stderr=printed.err)

    return run


def run_here(*arguments: str | Path) -> Done:
    """Run a command within this process, and catch what it prints without a fixture."""
    with redirect_stdout(io.StringIO()) as printed, redirect_stderr(io.StringIO()) as said:
        status = main([*map(str, arguments)])
    return Done(returncode=status, stdout=printed.getvalue(), stderr=said.getvalue())


def run_apart(*arguments: str | Path, **environment: str) -> Done:
    """Run a command in a process of its own, as a shell does."""
    done = subprocess.run(
        [sys.executable, "-m", "flyball_client", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PROCESS_LIMIT_S,
        check=False,
        env={**os.environ, **environment},
    )
    return Done(returncode=done.returncode, stdout=done.stdout, stderr=done.stderr)


def refusal(done: Done) -> str:
    """The one line on stderr of what must be refused."""
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1, done.stderr
    return done.stderr.strip()


def two_pipelines(folder: Path) -> Path:
    """The profile of two data-parallel pipelines of two equal stages: 1 s and 2 s."""
    path = folder / "profile.csv"
    path.write_text(PROFILE_HEADER + _ROWS.format(0) + _ROWS.format(1), encoding="utf-8")
    return path
