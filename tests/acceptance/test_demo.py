"""`flyball demo` as a newcomer runs it: the whole loop, Ctrl-C, dying parts, missing tools."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.hostile_folder import HostileFolder
from tests.integration.command_in_process import refusal, run_apart

pytest.importorskip("deepspeed", reason="needs the extra 'demo'")

from flyball_lab.demo.run_folder import RunFolder

# What the planner had started hears of its end, and goes, moments later.
_GONE_WITHIN_S = 10.0
_MARKER = "DEMO_TEST_RUN"
_DEMO_TIMEOUT_S = 400
_REACHES_TIMEOUT_S = 150
_ENDS_TIMEOUT_S = 90
# Where the first step is waited for, and no figure is looked at; so many that they do not run out.
_SHORT_STEPS = ("--steps", "200", "--microbatches", "4", "--time-scale", "0.5")

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="finds processes by /proc/PID/environ"
)


@dataclass
class RunningDemo:
    """A demo in the background; its processes are found by a variable in their environment."""

    folder: RunFolder
    options: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    marker: str = field(default_factory=lambda: uuid.uuid4().hex)
    cwd: Path | None = None

    def __post_init__(self) -> None:
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "flyball_client", "demo"),
                *("--keep", str(self.folder.path), *self.options),
            ],
            cwd=self.cwd,
            env=os.environ | self.environment | {_MARKER: self.marker},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait_until(self, reached: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + _REACHES_TIMEOUT_S
        while not reached():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline_s, "the demo did not get so far"
            time.sleep(0.05)

    def end(self, *, timeout_s: float = _ENDS_TIMEOUT_S) -> tuple[int, str, str]:
        """Exit status, stdout and stderr."""
        output, errors = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, output, errors

    def processes(self) -> dict[int, str]:
        """Every living process of this demo: its pid and command line."""
        wanted = f"{_MARKER}={self.marker}".encode()
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and wanted in (entry / "environ").read_bytes():
                    found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue
        return found

    def left_behind(self) -> dict[int, str]:
        """Return what still lives some moments after the demo's end."""
        deadline_s = time.monotonic() + _GONE_WITHIN_S
        while self.processes() and time.monotonic() < deadline_s:
            time.sleep(0.05)
        return self.processes()

    def pid_of(self, part: str) -> int:
        """The process whose command line holds this, and no other of the demo's does."""
        (pid,) = [pid for pid, command in self.processes().items() if part in command]
        return pid

    def clear_away(self) -> None:
        """Whatever a failed test left behind."""
        for pid in (*self.processes(), self.process.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.communicate()


@pytest.fixture
def start_demo(tmp_path: Path) -> Iterator[Callable[..., RunningDemo]]:
    """Starts demos in the test's folder, and ends what is left of them."""
    started: list[RunningDemo] = []

    def start(*options: str, cwd: Path | None = None, **environment: str) -> RunningDemo:
        folder = RunFolder(tmp_path / "run")
        started.append(RunningDemo(folder, options, environment, cwd=cwd))
        return started[-1]

    yield start
    for demo in started:
        demo.clear_away()


@needs_proc
def test_the_demo_trains_on_a_plan_that_saves_energy_as_predicted(
    start_demo: Callable[..., RunningDemo], tmp_path: Path
) -> None:
    extensions = tmp_path / "extensions"
    hostile = HostileFolder(tmp_path / "hostile")
    demo = start_demo(
        # Other tests run beside it: the larger the scale, the less of their load it shows.
        *("--json", "--steps", "3", "--microbatches", "2", "--time-scale", "5"),
        cwd=hostile.path,
        PATH=str(tmp_path / "no compiler"),
        TORCH_EXTENSIONS_DIR=str(extensions),
    )

    status, output, errors = demo.end(timeout_s=_DEMO_TIMEOUT_S)

    assert status == 0, errors
    result = json.loads(output)
    assert result["emulated"] is True
    assert result["failed_condition"] is None
    for phase in ("baseline", "plan"):
        measured, predicted = result["measured"][phase], result["predicted"][phase]
        assert measured["num_steps"] >= 2
        # Of so short a run the counters of 100 ms hide 4 %.
        assert measured["energy_j"] == pytest.approx(predicted["energy_j"], rel=0.07)
        assert measured["iteration_time_s"] == pytest.approx(
            predicted["iteration_time_s"], rel=0.03
        )
    assert result["measured"]["plan"]["energy_j"] < result["measured"]["baseline"]["energy_j"]
    assert result["measured"]["plan"]["num_unplanned"] == 0
    assert result["losses"][-1] < result["losses"][0]
    assert json.loads(demo.folder.plan_json.read_text())["num_microbatches"] == 2
    assert demo.folder.database.exists()
    assert not extensions.exists(), "DeepSpeed compiled something"
    assert hostile.imported() == []
    assert "Traceback" not in errors
    assert demo.left_behind() == {}


@needs_proc
@pytest.mark.parametrize(
    ("reached", "number"),
    [
        pytest.param(
            lambda folder: folder.planner_log.exists(),
            signal.SIGTERM,
            id="terminated while the planner starts",
        ),
        pytest.param(
            lambda folder: bool(folder.trained_steps()),
            signal.SIGINT,
            id="Ctrl-C in the middle of training",
        ),
    ],
)
def test_a_demo_that_is_ended_leaves_no_process_behind(
    start_demo: Callable[..., RunningDemo],
    reached: Callable[[RunFolder], bool],
    number: signal.Signals,
) -> None:
    demo = start_demo(*_SHORT_STEPS)
    demo.wait_until(lambda: reached(demo.folder))

    demo.process.send_signal(number)
    status, output, errors = demo.end()

    assert status == 130
    assert output == ""
    assert "Traceback" not in errors
    assert demo.left_behind() == {}


@needs_proc
def test_a_rank_that_dies_ends_the_demo_and_is_named(
    start_demo: Callable[..., RunningDemo],
) -> None:
    demo = start_demo(*_SHORT_STEPS)
    demo.wait_until(lambda: bool(demo.folder.trained_steps()))
    rank_2 = next(
        pid
        for pid in demo.processes()
        if b"\0RANK=2\0" in Path(f"/proc/{pid}/environ").read_bytes()
    )

    os.kill(rank_2, signal.SIGKILL)
    status, _, errors = demo.end()

    assert status == 1
    assert errors.splitlines()[-1] == (
        "flyball demo: failed: training rank 2 was ended by signal 9"
    )
    assert demo.left_behind() == {}


@needs_proc
def test_a_planner_that_dies_ends_the_demo_with_one_line(
    start_demo: Callable[..., RunningDemo],
) -> None:
    demo = start_demo()
    demo.wait_until(lambda: demo.folder.rank_log(0).exists())

    os.kill(demo.pid_of("flyball_client serve"), signal.SIGKILL)
    status, _, errors = demo.end()

    assert status == 1
    assert errors.splitlines()[-1] == "flyball demo: failed: the planner ended with status -9"
    assert "Traceback" not in errors
    assert demo.left_behind() == {}


def test_a_missing_package_is_named_in_one_line() -> None:
    program = (
        "import sys; sys.modules['uvicorn'] = None;"
        " from flyball_client.__main__ import main; raise SystemExit(main())"
    )
    demo = subprocess.run(
        [sys.executable, "-c", program, "demo"],
        capture_output=True,
        text=True,
        timeout=_ENDS_TIMEOUT_S,
        check=False,
    )

    assert demo.returncode == 2
    assert demo.stdout == ""
    (line,) = demo.stderr.splitlines()
    assert line.startswith("flyball demo: missing: ")
    assert "uvicorn" in line


def test_a_folder_in_use_is_not_written_into(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("not yours")
    assert "is not empty" in refusal(run_apart("demo", "--keep", tmp_path))
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.txt"]
