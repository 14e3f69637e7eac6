"""Workloads of `flyball profile run`, its progress line, and its processes that answer lines."""

from __future__ import annotations

import io
import os
import platform
import pty
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from flyball_client.profiling.arguments import WorkLine
from flyball_client.profiling.line_process import LineProcess, LineProcessError
from flyball_client.profiling.workload import (
    Workload,
    WorkloadError,
    emulated_stage,
    load_workload,
)
from flyball_pipeline.instruction import InstructionKind
from flyball_profiles.examples import load_example_profile

USER_MODULE = """
from flyball_client.profiling.workload import Workload

not_a_function = 3

def stage(*, stage, chunk, device):
    return Workload(instructions={"backward": lambda: None, "forward": lambda: (stage, chunk)})

def failing(*, stage, chunk, device):
    raise RuntimeError("no such\\nlayer")

def wrong(*, stage, chunk, device):
    return 7

def leaving(*, stage, chunk, device):
    raise SystemExit("gone")

def positional(a):
    return a
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    (tmp_path / "users_own_module.py").write_text(USER_MODULE)
    (tmp_path / "users_broken_module.py").write_text("import no_such_module_at_all\n")
    return tmp_path


def test_a_function_of_the_working_folder_is_called_with_what_is_to_be_run(folder: Path) -> None:
    workload = load_workload("users_own_module:stage", stage=2, chunk=1, device=0)
    assert workload.kinds == (InstructionKind.FORWARD, InstructionKind.BACKWARD)
    assert workload.instructions["forward"]() == (2, 1)


@pytest.mark.parametrize(
    ("named", "text"),
    [
        ("users_own_module", "'users_own_module' is not MODULE:FUNCTION"),
        ("users_own_module:", "'users_own_module:' is not MODULE:FUNCTION"),
        ("no_such_module_at_all:f", "cannot import no_such_module_at_all: ModuleNotFoundError"),
        ("users_broken_module:f", r"No module named 'no_such_module_at_all' \(users_broken_modul"),
        ("users_own_module:absent", "users_own_module has no function absent"),
        ("users_own_module:not_a_function", "has no function not_a_function"),
        ("users_own_module:failing", r"RuntimeError: no such layer \(users_own_module.py:10\)"),
        ("users_own_module:wrong", "must return a .*Workload, not int"),
        ("users_own_module:leaving", "fails: SystemExit: gone"),
        ("users_own_module:positional", "fails: TypeError: "),
    ],
)
def test_what_cannot_be_had_is_told_in_one_line(folder: Path, named: str, text: str) -> None:
    with pytest.raises(WorkloadError, match=text) as raised:
        load_workload(named, stage=0, chunk=None, device=0)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("instructions", "text"),
    [
        ({}, "needs an instruction"),
        ({"fwd": print}, "unknown instruction 'fwd'; known: forward, "),
        ({"forward": 3}, "forward of the workload must be callable"),
    ],
)
def test_a_workload_that_cannot_be_run_does_not_exist(
    instructions: dict[str, object], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        Workload(instructions=instructions)  # type: ignore[arg-type]


def test_an_emulated_chunk_takes_its_own_time() -> None:
    whole = load_example_profile().select_stages((0, 1))
    profile = replace(whole, chunks=(whole, load_example_profile().select_stages((6, 7))))
    gpu, workload = emulated_stage(
        profile, stage=1, chunk=1, blocking_power_w=80.0, time_scale=0, source=Path("x.csv")
    )
    assert workload.kinds == (InstructionKind.FORWARD, InstructionKind.BACKWARD)
    workload.instructions["forward"]()
    highest = profile.chunks[1].points[1, InstructionKind.FORWARD][0]
    assert gpu.emulated_time_s() == pytest.approx(highest.time_s)
    assert gpu.exact_energy_j() == pytest.approx(highest.energy_j)


def test_nothing_is_drawn_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    with WorkLine(stream) as line:
        line.show("forward at 1410 MHz")
    with WorkLine(None) as line:
        line.show("forward at 1410 MHz")
    assert stream.getvalue() == ""
    with WorkLine(stream, prints_first=True) as line:
        line.show("comparing")
        line.show("comparing on")
    assert stream.getvalue() == "comparing\n"


def test_a_terminal_that_has_gone_ends_nothing() -> None:
    reading_fd, writing_fd = pty.openpty()
    with open(writing_fd, "w") as terminal, WorkLine(terminal) as line:  # noqa: PTH123
        os.close(reading_fd)
        line.show("forward at 1410 MHz")
        line.show("backward")


# ------------------------------------------------------------------ processes that answer lines


def test_a_line_is_read_and_the_end_after_it_is_an_error() -> None:
    with LineProcess("it", "platform", []) as process:
        assert process.has_output(60)
        assert process.line(60) == platform.platform()
        with pytest.raises(LineProcessError, match=r"^it ended: exit status 0$"):
            process.line(60)


def test_a_process_that_fails_says_why() -> None:
    with (
        LineProcess("it", "json.tool", ["none.json"]) as process,
        pytest.raises(LineProcessError, match=r"^it ended: .*none\.json"),
    ):
        process.line(60)


def test_a_process_that_does_not_answer_is_given_up_and_ends() -> None:
    with LineProcess("it", "json.tool", []) as process:
        process.write("{}")
        assert not process.has_output()
        with pytest.raises(LineProcessError, match=r"^it did not answer within 0\.01 s$"):
            process.line(0.01)
