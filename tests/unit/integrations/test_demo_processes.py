from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from flyball_lab.demo.processes import (
    ChildProcess,
    Interruption,
    check_training,
)
from flyball_lab.demo.run_folder import DemoFailedError, RunFolder, TrainedStep

pytestmark = pytest.mark.slow


def _wait_for_lines(file: Path, number: int) -> list[int]:
    deadline_s = time.monotonic() + 30
    while time.monotonic() < deadline_s:
        if file.exists() and len(file.read_text().splitlines()) == number:
            return [int(line) for line in file.read_text().splitlines()]
        time.sleep(0.02)
    raise AssertionError(f"{file} did not get {number} lines")


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
    ("ends", "message"),
    [
        (("exit(0)", "time.sleep(60)"), None),
        (("exit(0)", "exit(0)"), None),
        (("exit(1)", "time.sleep(60)"), "training rank 0 failed"),
        (("exit(1)", "os.kill(os.getpid(), 9)"), "training rank 1 was ended by signal 9"),
    ],
)
def test_failed_training_names_the_rank_that_was_killed_before_those_that_lost_it(
    tmp_path: Path, ends: tuple[str, str], message: str | None
) -> None:
    with Interruption() as interruption, ExitStack() as stack:
        ranks = [
            stack.enter_context(
                ChildProcess(
                    ["-c", f"import os, time; print('rank', {rank}, flush=True); {end}"],
                    environment=os.environ,
                    log=tmp_path / f"{rank}.log",
                )
            )
            for rank, end in enumerate(ends)
        ]
        for rank, end in zip(ranks, ends, strict=True):
            if "sleep" not in end:
                assert rank.wait(interruption, timeout_s=30) is not None
        if message is None:
            assert check_training(ranks) == ("sleep" not in ends[1])
            return
        with pytest.raises(DemoFailedError) as failure:
            check_training(ranks)
    assert str(failure.value) == message
    assert failure.value.log_tail == f"rank {message[14]}"


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
