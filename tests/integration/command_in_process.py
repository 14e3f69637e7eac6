"""`flyball` run in this process or in a process of its own, and profiles for it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flyball_client.__main__ import main

# Against hanging.
PROCESS_LIMIT_S = 180
HEADER = "stage,instruction,frequency,time,energy\n"
PROFILE_HEADER = HEADER.replace("\n", ",dp_rank\n")
_ROWS = "".join(
    f"{stage},forward,1410,1.0,10.0,{{0}}\n{stage},forward,1000,1.25,8.0,{{0}}\n"
    f"{stage},backward,1410,2.0,30.0,{{0}}\n{stage},backward,1000,2.5,20.0,{{0}}\n"
    for stage in range(2)
)


@dataclass(frozen=True, kw_only=True)
class Done:
    """Result of a command."""

    returncode: int
    stdout: str
    stderr: str


def flyball(*arguments: str | Path) -> Done:
    """Run a command within this process and capture its output."""
    pieces = [io.BytesIO(), io.BytesIO()]
    out, err = (io.TextIOWrapper(each, "utf-8", write_through=True) for each in pieces)
    with redirect_stdout(out), redirect_stderr(err):
        status = main([*map(str, arguments)])
    stdout, stderr = (each.getvalue().decode() for each in pieces)
    return Done(returncode=status, stdout=stdout, stderr=stderr)


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


def printed(done: Done) -> dict[str, Any]:
    """Return the JSON object on stdout of a command that must succeed."""
    assert (done.returncode, done.stderr) == (0, "")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def document_of(*arguments: str | Path) -> dict[str, Any]:
    """Return the JSON object of a command that must succeed."""
    return printed(flyball(*arguments, "--json"))


def refusal(done: Done) -> str:
    """Return the one line on stderr of a command that must be refused."""
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1, done.stderr
    return done.stderr.strip()


def one_pipeline(folder: Path) -> Path:
    """Write the profile of a pipeline of two equal stages: 1 s and 2 s, valley at 1000 MHz."""
    path = folder / "profile.csv"
    path.write_text(HEADER + _ROWS.replace(",{0}", ""), encoding="utf-8")
    return path


def two_pipelines(folder: Path) -> Path:
    """Write the profile of two data-parallel pipelines of two equal stages: 1 s and 2 s."""
    path = folder / "profile.csv"
    path.write_text(PROFILE_HEADER + _ROWS.format(0) + _ROWS.format(1), encoding="utf-8")
    return path
