"""`flyball guard` on records of ranks that live, have ended, and are another user's."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.false_nvml.library import FalseNvml
from tests.governed_rank.pretended_rank import RANK_NAME, leave_record, pretended_rank
from tests.governed_rank.processes import wait_until
from tests.governed_rank.running_guard import RunningGuard
from tests.integration.command_in_process import Done, flyball, refusal
from tests.planner.patience import PATIENCE_S

from flyball_client.governor import guard, lock_record
from flyball_client.governor.guard import GRACE_S, LONGEST_RETRY_S, Guard, find_guard
from flyball_client.governor.lock_record import find_records

pytestmark = pytest.mark.slow

USER, OTHER_USER = 1000, 1001
NO_PERMISSION = 4
RESET = "nvmlDeviceResetGpuLockedClocks"
READER = """
import fcntl, sys
file = open(sys.argv[1])
fcntl.lockf(file, fcntl.LOCK_SH, 1)
print("held", flush=True)
sys.stdin.read()
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be other users too")


class Watched:
    """A guard of a folder in this process, at a time of the test's choice."""

    def __init__(self, nvml: FalseNvml, node_dir: Path) -> None:
        self.nvml = nvml
        self.node_dir = node_dir
        self.own_dir = node_dir / str(os.geteuid())
        self.said: list[str] = []
        self.now_s = 0.0
        self._guard = Guard(node_dir, os.environ, self.said.append)

    def check(self, after_s: float = 0.0) -> list[str]:
        """Let the guard check once; return what it says."""
        self.now_s += after_s
        self.said.clear()
        self._guard.check()
        return [*self.said]


@pytest.fixture
def watched(loaded_nvml: FalseNvml, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    monkeypatch.setenv("FLYBALL_CLOCK_CONTROL", "nvml")
    monkeypatch.setattr(lock_record, "_TAKE_TIMEOUT_S", 0.05)
    for index in (0, 1):
        loaded_nvml.set_range_mhz(510, 510, index)
    watched = Watched(loaded_nvml, state_dir.parent)
    monkeypatch.setattr(guard, "time", SimpleNamespace(monotonic=lambda: watched.now_s))
    return watched


def give_to(state_dir: Path, user_id: int) -> None:
    """Make a folder and its records another user's."""
    for path in (state_dir, *state_dir.iterdir()):
        os.chown(path, user_id, user_id)


def test_only_the_clocks_of_ranks_that_have_ended_are_restored_and_at_its_own_start(
    watched: Watched,
) -> None:
    nvml = watched.nvml
    # As before a restart of the machine: nobody of that time lives.
    leave_record(watched.own_dir, nvml.uuid(0))
    with pretended_rank(watched.own_dir, nvml.uuid(1)) as rank:
        (line,) = watched.check()
        assert line.startswith(f"{nvml.uuid(0)}: its SM clock was restored; it was set for")
        assert RANK_NAME in line
        assert (nvml.range_mhz(0), nvml.range_mhz(1)) == ((0, 0), (510, 510))
        assert watched.check() == []
        rank.kill()
        rank.wait(PATIENCE_S)
        assert len(watched.check()) == 1
    assert nvml.range_mhz(1) == (0, 0)
    assert find_records(watched.own_dir) == []
    assert nvml.calls(RESET) == [(0, 0), (1, 0)]


@needs_root
def test_users_cannot_claim_each_others_gpus(watched: Watched) -> None:
    nvml = watched.nvml
    live_dir, left_dir = watched.node_dir / str(USER), watched.node_dir / str(OTHER_USER)
    leave_record(watched.own_dir, nvml.uuid(0))
    leave_record(left_dir, nvml.uuid(1))
    give_to(left_dir, OTHER_USER)
    with (
        pretended_rank(live_dir, nvml.uuid(0)),
        pretended_rank(live_dir, nvml.uuid(1)),
    ):
        give_to(live_dir, USER)
        (line,) = watched.check()
    # Root's clock is restored whatever a user claims; a user's is superseded by a live rank's.
    assert line.startswith(nvml.uuid(0))
    assert (nvml.range_mhz(0), nvml.range_mhz(1)) == ((0, 0), (510, 510))
    assert find_records(left_dir, OTHER_USER) == find_records(watched.own_dir) == []


def test_a_lock_of_the_file_that_is_no_governors_keeps_no_clock_locked(watched: Watched) -> None:
    uuid = watched.nvml.uuid(0)
    leave_record(watched.own_dir, uuid)
    with (watched.own_dir / f"{uuid}.clock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        held, restored = watched.check()
        assert "is locked by a process that this process cannot end" in held
        assert "its SM clock was restored" in restored
        assert watched.nvml.range_mhz() == (0, 0)
        assert watched.check(GRACE_S) == []
    assert watched.nvml.calls(RESET) == [(0, 0)]


def test_a_gpu_that_refuses_is_told_once_and_tried_again(watched: Watched) -> None:
    watched.nvml.fail(RESET, NO_PERMISSION)
    leave_record(watched.own_dir, watched.nvml.uuid(0))
    (line,) = watched.check()
    assert "its SM clock may still be locked" in line
    assert "CAP_SYS_ADMIN" in line
    num_calls = len(watched.nvml.calls(RESET))
    assert watched.check() == []
    assert len(watched.nvml.calls(RESET)) == num_calls
    assert watched.check(LONGEST_RETRY_S) == []
    assert len(watched.nvml.calls(RESET)) == num_calls + 1
    watched.nvml.work_again()
    assert "was restored" in watched.check(LONGEST_RETRY_S)[0]
    assert find_records(watched.own_dir) == []


def test_names_that_anyone_can_choose_are_said_without_control_characters(
    watched: Watched,
) -> None:
    leave_record(watched.own_dir, "GPU-\x1b[2J")
    (line,) = watched.check()
    assert line.startswith("GPU-?[2J: its SM clock may still be locked")
    assert line.isprintable()


def _another_users_folder(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    os.chown(folder, OTHER_USER, OTHER_USER)


def _folder_with_fifo(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    os.mkfifo(folder / "GPU-1.clock")
    give_to(folder, USER)


@needs_root
@pytest.mark.parametrize("make", [_folder_with_fifo, _another_users_folder])
def test_what_is_refused_is_told_once_and_hides_no_other_record(
    watched: Watched, make: Callable[[Path], None]
) -> None:
    leave_record(watched.own_dir, watched.nvml.uuid(0))
    folder = watched.node_dir / str(USER)
    make(folder)
    refused, restored = watched.check()
    assert str(folder) in refused
    assert "is refused: " in refused
    assert "was restored" in restored
    assert watched.check() == []


# ------------------------------------------------------------------ the command


def test_one_guard_watches_a_folder_and_the_folder_is_its_groups(
    false_nvml: FalseNvml, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node_dir = state_dir.parent
    assert find_guard(node_dir) is None
    leave_record(state_dir, false_nvml.uuid(0))
    false_nvml.set_range_mhz(510, 510)
    with RunningGuard(false_nvml, node_dir) as running:
        wait_until(lambda: not find_records(state_dir), "the clock is restored")
        assert false_nvml.range_mhz() == (0, 0)
        assert find_guard(node_dir) == running.process.pid
        refused = f"flyball guard: another guard watches {node_dir}; run one per folder\n"
        assert flyball("guard") == Done(returncode=75, stdout="", stderr=refused)
    assert "was restored" in "".join(running.said)
    assert find_guard(node_dir) is None
    # The file that a guard locks can be locked for reading by all: that is no guard.
    command = [sys.executable, "-c", READER, str(node_dir / "guard")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"held\n"
        assert find_guard(node_dir) is None
        reader.kill()
    group_id = os.getgid()
    monkeypatch.setattr(signal, "pthread_sigmask", lambda *_: None)
    monkeypatch.setattr(signal, "sigtimedwait", lambda *_: SimpleNamespace())
    assert flyball("guard", "--group", str(group_id)).returncode == 0
    assert stat.S_IMODE(node_dir.stat().st_mode) == 0o1775
    assert node_dir.stat().st_gid == group_id


@pytest.mark.parametrize(
    ("arguments", "variable", "text"),
    [
        (["--group", "no-such-group"], "", "there is no group 'no-such-group'"),
        ([], "FLYBALL_RETURN_CLOCKS_MHZ", "FLYBALL_RETURN_CLOCKS_MHZ must be LOWEST:HIGHEST"),
        ([], "FLYBALL_STATE_DIR", "File exists"),
    ],
)
def test_a_guard_that_cannot_watch_says_so_in_one_line(
    state_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    variable: str,
    text: str,
) -> None:
    file = state_dir.parent.parent / "file"
    file.write_text("")
    if variable:
        monkeypatch.setenv(variable, str(file))
    assert text in refusal(flyball("guard", *arguments))
