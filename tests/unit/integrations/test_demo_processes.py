from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flyball_lab.demo.child_process import ChildProcess, DemoFailedError, Interruption, kill_tree
from flyball_lab.demo.run_folder import RunFolder, TrainedStep
from flyball_lab.demo.training_process import check_training

pytestmark = pytest.mark.slow

# Starts a child in a session of its own, which starts one too; each adds its pid to a file.
_NESTED = """
import os, subprocess, sys, time
depth, file = int(sys.argv[1]), sys.argv[2]
with open(file, "a") as pids:
    pids.write(f"{os.getpid()}\\n")
if depth > 0:
    subprocess.Popen([sys.executable, "-c", sys.argv[3], str(depth - 1), file, sys.argv[3]],
                     start_new_session=True)
time.sleep(60)
"""


def _wait_for_lines(file: Path, number: int) -> list[int]:
    deadline_s = time.monotonic() + 30
    while time.monotonic() < deadline_s:
        if file.exists() and len(file.read_text().splitlines()) == number:
            return [int(line) for line in file.read_text().splitlines()]
        time.sleep(0.02)
    raise AssertionError(f"{file} did not get {number} lines")


def _is_alive(pid: int) -> bool:
    """Return whether it runs; a killed orphan may stay a zombie until its new parent reaps it."""
    stat = Path(f"/proc/{pid}/stat")
    if Path("/proc/self/stat").exists():
        return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _assert_soon_dead(pids: list[int]) -> None:
    deadline_s = time.monotonic() + 10
    while any(_is_alive(pid) for pid in pids):
        assert time.monotonic() < deadline_s, "processes were left behind"
        time.sleep(0.02)


def test_killing_a_tree_reaches_descendants_in_sessions_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    root = subprocess.Popen([sys.executable, "-c", _NESTED, "2", str(file), _NESTED])
    pids = _wait_for_lines(file, 3)

    kill_tree(root)

    assert root.returncode == -signal.SIGKILL
    _assert_soon_dead(pids)


def test_a_child_process_logs_both_its_outputs_and_tells_its_status(tmp_path: Path) -> None:
    program = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(4)"
    log = tmp_path / "log"

    with (
        Interruption() as interruption,
        ChildProcess(["-c", program], environment=os.environ, log=log) as child,
    ):
        assert child.wait(interruption, timeout_s=30) == 4
    assert sorted(log.read_text().split()) == ["err", "out"]


def test_a_child_process_that_ignores_sigterm_is_killed_after_its_grace(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    program = (
        "import pathlib, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        " pathlib.Path(sys.argv[1]).write_text('1\\n'); time.sleep(60)"
    )
    with ChildProcess(
        ["-c", program, str(ready)], environment=os.environ, log=tmp_path / "log", grace_s=0.1
    ) as child:
        _wait_for_lines(ready, 1)
    assert child.exit_status() == -signal.SIGKILL


def test_a_signal_is_noticed_at_the_next_check_or_ends_a_pause() -> None:
    with Interruption() as interruption:
        interruption.check()
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interruption.check()
    with Interruption() as interruption:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        previous = signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        try:
            with pytest.raises(KeyboardInterrupt):
                interruption.sleep(60)
        finally:
            signal.signal(signal.SIGALRM, previous)


@pytest.mark.parametrize(
    ("torchrun_says", "message"),
    [
        (
            "E failed (exitcode: -9) local_rank: 2 (pid: 77) of binary: python\n",
            "training rank 2 was ended by signal 9",
        ),
        ("E failed (exitcode: 1) local_rank: 0 (pid: 77)\n", "training rank 0 failed"),
        ("no such option\n", "torchrun ended with status 1"),
    ],
)
def test_failed_training_names_the_rank_that_failed_first(
    tmp_path: Path, torchrun_says: str, message: str
) -> None:
    folder = RunFolder(tmp_path)
    program = f"import sys; sys.stdout.write({torchrun_says!r}); sys.exit(1)"
    with (
        Interruption() as interruption,
        ChildProcess(["-c", program], environment=os.environ, log=folder.torchrun_log) as training,
    ):
        training.wait(interruption, timeout_s=30)
        with pytest.raises(DemoFailedError) as failure:
            check_training(training, folder)
    assert str(failure.value) == message


def test_trained_steps_are_read_as_written_and_a_half_written_one_waits(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.trained_steps() == []
    steps = [
        TrainedStep(step=0, plan_version=None, loss=4.5),
        TrainedStep(step=1, plan_version=3, loss=4.25),
    ]
    for step in steps:
        folder.add_trained_step(step)
    with folder.trained_steps_file.open("a") as lines:
        lines.write('{"step": 2, "plan_ver')

    assert folder.trained_steps() == steps
