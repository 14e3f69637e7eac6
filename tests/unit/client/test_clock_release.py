"""However a process ends that Python can see, its clock is given back."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import IO

import pytest
from tests.false_nvml.library import FalseNvml

from flyball_client.clock_release import ReleaseOnExit

Start = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def start_training(false_nvml: FalseNvml) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def start(way: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.unit.client.governed_training", way],
            env=false_nvml.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def output(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout is not None
    return process.stdout


def await_lock(process: subprocess.Popen[str], false_nvml: FalseNvml) -> None:
    line = output(process).readline()
    if line != "locked\n":
        raise AssertionError(process.communicate(timeout=60))
    assert false_nvml.locked_mhz() == 1410 or process.poll() is not None


@pytest.mark.parametrize(
    ("way", "status"), [("exit", 0), ("sys-exit", 7), ("exception", 1), ("restored", 0)]
)
def test_a_process_that_ends_by_itself_gives_the_clock_back(
    start_training: Start, false_nvml: FalseNvml, way: str, status: int
) -> None:
    process = start_training(way)
    process.communicate(timeout=60)
    assert process.returncode == status
    assert (0, 1410) in false_nvml.calls("nvmlDeviceSetGpuLockedClocks")
    assert false_nvml.locked_mhz() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_gives_the_clock_back_and_kills_as_before(
    start_training: Start, false_nvml: FalseNvml, number: signal.Signals
) -> None:
    process = start_training("wait")
    await_lock(process, false_nvml)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -number
    assert ("KeyboardInterrupt" in errors) == (number == signal.SIGINT)
    assert false_nvml.locked_mhz() == 0


def test_a_handler_of_the_script_is_called_after_the_clock_was_given_back(
    start_training: Start, false_nvml: FalseNvml
) -> None:
    process = start_training("own-handler")
    await_lock(process, false_nvml)
    process.send_signal(signal.SIGTERM)
    assert output(process).readline() == f"own handler {int(signal.SIGTERM)}\n"
    assert false_nvml.locked_mhz() == 0
    rest, _ = process.communicate("\n", timeout=60)
    assert rest == "goes on, active None\n"
    assert process.returncode == 0


def test_a_signal_that_is_ignored_stays_ignored(
    start_training: Start, false_nvml: FalseNvml
) -> None:
    process = start_training("ignored")
    await_lock(process, false_nvml)
    process.send_signal(signal.SIGTERM)
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    assert output(process).readline() == "goes on, active 1\n"
    process.communicate(timeout=60)
    assert false_nvml.locked_mhz() == 0


def test_a_forked_child_that_is_killed_leaves_the_clock_alone(
    start_training: Start, false_nvml: FalseNvml
) -> None:
    process = start_training("fork")
    await_lock(process, false_nvml)
    assert output(process).readline() == f"child {-signal.SIGTERM}\n"
    assert false_nvml.locked_mhz() == 1410
    process.communicate("\n", timeout=60)
    assert false_nvml.locked_mhz() == 0


def test_a_closed_session_leaves_the_handlers_as_they_were(start_training: Start) -> None:
    process = start_training("restored")
    text, _ = process.communicate(timeout=60)
    assert text.splitlines() == ["locked", "True", "True"]


def test_handlers_installed_since_are_left_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    mine: Callable[..., None] = lambda *_: None  # noqa: E731 - a handler in one line
    guard = ReleaseOnExit(lambda: None)
    try:
        guard.install()
        guard.install()
        signal.signal(signal.SIGTERM, mine)
        guard.uninstall()
        guard.uninstall()
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)
