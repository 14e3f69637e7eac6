from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.planner.patience import PATIENCE_S

from flyball_client.governor.process_watch import ProcessIdentity, ProcessWatch, is_running

pytestmark = pytest.mark.slow

NO_SUCH_PID = 2**22 + 1  # above the kernel's highest pid_max


@contextmanager
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits for the end of its standard input."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


@pytest.fixture(params=["by descriptor", "refused", "not offered"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With descriptors of processes, and where the kernel or this Python has none for us."""

    def refuse(pid: int, flags: int = 0) -> int:
        raise PermissionError(1, "Operation not permitted")

    if request.param == "refused":
        monkeypatch.setattr(os, "pidfd_open", refuse)
    if request.param == "not offered":
        monkeypatch.delattr(os, "pidfd_open")
    return str(request.param)


def identity_of(pid: int) -> ProcessIdentity:
    identity = ProcessIdentity.of(pid)
    assert identity is not None
    return identity


def wait_for_zombie(process: subprocess.Popen[bytes]) -> None:
    """Until it has ended, leaving it to be waited for."""
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def test_a_killed_process_is_not_alive_also_before_anybody_waited_for_it(way: str) -> None:
    with child() as process:
        identity = identity_of(process.pid)
        watch = ProcessWatch(identity)
        assert (watch.fd is not None) == (way == "by descriptor")
        assert watch.is_alive()
        # A later process of the same number is another one.
        earlier = ProcessIdentity(pid=identity.pid, start_ticks=identity.start_ticks - 1)
        earlier_watch = ProcessWatch(earlier)
        assert not earlier.is_alive()
        process.kill()
        wait_for_zombie(process)
        assert not watch.is_alive()
        assert not identity.is_alive()
        zombie_watch = ProcessWatch(identity)
        process.wait(PATIENCE_S)
        assert not watch.is_alive()
        gone_watch = ProcessWatch(identity)
    for late in (earlier_watch, zombie_watch, gone_watch):
        assert late.fd is None
        assert not late.is_alive()
        late.close()
    watch.close()


def test_a_closed_watch_still_knows_and_leaves_no_descriptor() -> None:
    watch = ProcessWatch(ProcessIdentity.own())
    assert watch.identity.pid == os.getpid()
    fd = watch.fd
    assert fd is not None
    watch.close()
    watch.close()
    assert watch.fd is None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    assert watch.is_alive()


def test_a_number_that_nobody_has_is_nobody() -> None:
    assert ProcessIdentity.of(NO_SUCH_PID) is None
    assert not is_running(NO_SUCH_PID)
    assert not is_running(0)


def test_what_cannot_be_seen_is_not_taken_for_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    own = ProcessIdentity.own()

    def refuse(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "open", refuse)
    assert is_running(own.pid)
    assert own.is_alive()
    with pytest.raises(OSError, match="Too many open files"):
        ProcessIdentity.of(own.pid)


def test_one_that_ends_while_it_is_looked_at_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    own = ProcessIdentity.own()

    def has_ended(*_: object) -> bytes:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))

    monkeypatch.setattr(os, "read", has_ended)
    num_open = len(list(Path("/proc/self/fd").iterdir()))
    assert not is_running(own.pid)
    assert not own.is_alive()
    assert len(list(Path("/proc/self/fd").iterdir())) == num_open


def test_a_command_may_have_any_name(tmp_path: Path) -> None:
    program = tmp_path / ") Z 1 (x"
    program.symlink_to(sys.executable)
    command = [str(program), "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        assert identity_of(process.pid).start_ticks >= ProcessIdentity.own().start_ticks
        assert is_running(process.pid)
        process.kill()


# ------------------------------------------------------------------ niceness

_CHILD = """
import os
from pathlib import Path
from flyball_client.own_priority import set_own_niceness

set_own_niceness(os.getpriority(os.PRIO_PROCESS, 0) + 7, timeout_s=5.0)
print(os.getpriority(os.PRIO_PROCESS, 0), Path("/proc/self/autogroup").read_text())
"""
_CHILD_OF_A_SESSION = f"""
import subprocess, sys

subprocess.run([sys.executable, "-c", {_CHILD!r}], check=True)
"""
_AUTOGROUP_OF_A_SESSION = """
from pathlib import Path

autogroup = Path("/proc/self/autogroup")
print(autogroup.read_text() if autogroup.exists() else "")
"""


def _output_in_a_new_session(script: str) -> list[str]:
    run = subprocess.run(
        [sys.executable, "-c", script],
        start_new_session=True,
        check=True,
        capture_output=True,
        text=True,
    )
    return run.stdout.split()


@pytest.fixture(autouse=True, scope="module")
def niceness_of_a_new_session() -> int:
    """Return the niceness with which a session starts.

    The process that runs the tests may be outside of all autogroups, so its own says nothing.
    """
    autogroup = _output_in_a_new_session(_AUTOGROUP_OF_A_SESSION)
    if not autogroup:
        pytest.skip("the kernel puts sessions into no autogroups")
    return int(autogroup[-1])


def test_a_process_with_a_session_of_its_own_gives_way_to_other_sessions() -> None:
    niceness, _, _, of_session = _output_in_a_new_session(_CHILD)
    assert of_session == niceness


def test_a_session_that_belongs_to_others_keeps_its_niceness(
    niceness_of_a_new_session: int,
) -> None:
    niceness, _, _, of_session = _output_in_a_new_session(_CHILD_OF_A_SESSION)
    assert int(niceness) != niceness_of_a_new_session
    assert int(of_session) == niceness_of_a_new_session
