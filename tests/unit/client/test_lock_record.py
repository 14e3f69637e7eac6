from __future__ import annotations

import fcntl
import os
import re
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.governed_rank.pretended_rank import pretended_rank
from tests.planner.patience import PATIENCE_S

from flyball_client.governor import lock_record, state_folder
from flyball_client.governor.lock_record import (
    ClockHeldError,
    ClockHolder,
    FoundRecord,
    LockRecord,
    RankLock,
    find_all_records,
    find_records,
)
from flyball_client.governor.state_folder import StateRefusedError, default_state_dir

pytestmark = pytest.mark.slow

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user too")

UUID = "GPU-1"
HOLDER = ClockHolder(uuid=UUID, control="zeusd", rank_name="job gpt rank 3", rank_byte=1 << 42)
UNKNOWN = ClockHolder(uuid=UUID, control="unknown means", rank_name="an unknown rank", rank_byte=0)
NOBODY = 65534


@pytest.fixture(autouse=True)
def _waits_shortly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_record, "_TAKE_TIMEOUT_S", 0.05)


def record_file(state_dir: Path) -> Path:
    return state_dir / f"{UUID}.clock"


def found_in(state_dir: Path) -> FoundRecord:
    (found,) = find_all_records(state_dir)
    return found


def test_a_record_that_is_taken_is_clean_and_only_its_user_can_reach_it(tmp_path: Path) -> None:
    state_dir = tmp_path / "run" / "flyball"
    record = LockRecord.take(state_dir, UUID)
    assert record.holder() is None
    assert record_file(state_dir).read_bytes() == b""
    assert not os.get_inheritable(record.fd)
    for path in (state_dir, record_file(state_dir)):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077
    # It stays held until everybody who inherited it has ended.
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[record.fd]) as standby:
        record.close()
        with pytest.raises(ClockHeldError):
            LockRecord.take(state_dir, UUID)
        standby.kill()
        standby.wait(PATIENCE_S)
        LockRecord.take(state_dir, UUID).close()
    with pytest.raises(OSError, match=r"exists: .*/GPU-1\.clock'"):
        LockRecord.take(record_file(state_dir) / "state", UUID)


def test_a_record_outlives_its_writer_until_it_is_overwritten_or_cleared(tmp_path: Path) -> None:
    for uuid in ("GPU-2", UUID):
        record = LockRecord.take(tmp_path, uuid)
        record.write(HOLDER)
        record.close()
    (tmp_path / "notes.txt").write_text("not a record")
    assert [found.uuid for found in find_records(tmp_path)] == [UUID, "GPU-2"]
    found = find_records(tmp_path)[0]
    assert (found.holder, found.is_left) == (HOLDER, True)
    record = LockRecord.take(tmp_path, UUID)
    assert record.holder() == HOLDER
    shorter = ClockHolder(uuid=UUID, control="nvml", rank_name="r", rank_byte=1 << 43)
    record.write(shorter)
    assert record.holder() == shorter
    record.clear()
    assert record.holder() is None
    record.close()
    assert [found.uuid for found in find_records(tmp_path)] == ["GPU-2"]
    assert find_records(tmp_path / "no-folder") == []


@pytest.mark.parametrize(
    ("is_clean", "whose"), [(False, "job 'llm' rank 0"), (True, "another rank")]
)
def test_a_record_that_another_process_holds_is_refused_by_name(
    tmp_path: Path, is_clean: bool, whose: str
) -> None:
    with pretended_rank(tmp_path, UUID, is_clean=is_clean):
        before = len(list(Path("/proc/self/fd").iterdir()))
        with pytest.raises(ClockHeldError, match=f"GPU-1 is already set for {whose}; give each"):
            LockRecord.take(tmp_path, UUID)
        assert len(list(Path("/proc/self/fd").iterdir())) == before
        LockRecord.take(tmp_path, "GPU-2").close()


def test_a_record_shows_the_processes_that_live_and_not_only_their_numbers(
    tmp_path: Path,
) -> None:
    with pretended_rank(tmp_path, UUID) as process:
        found = found_in(tmp_path)
        assert (found.rank_pid, found.governor_pid) == (process.pid, process.pid)
        assert found.is_live
        process.kill()
        process.wait(PATIENCE_S)
    # A lock of the whole file, which whoever can open it can have, shows neither.
    with record_file(tmp_path).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = found_in(tmp_path)
    assert (found.rank_pid, found.governor_pid) == (None, None)
    assert found.is_left
    clean_dir = tmp_path / "clean"
    with pretended_rank(clean_dir, UUID, is_clean=True) as process:
        found = found_in(clean_dir)
        assert (found.holder, found.governor_pid) == (None, process.pid)
        assert found.is_live
        assert find_records(clean_dir) == []


def test_two_ranks_locks_of_one_process_end_each_by_itself(tmp_path: Path) -> None:
    first = RankLock(tmp_path, UUID)
    second = RankLock(tmp_path, UUID)
    script = f"""
import fcntl, sys
file = open({str(record_file(tmp_path))!r}, "r+")
for byte in ({first.byte}, {second.byte}):
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
        print("free")
    except BlockingIOError:
        print("held")
"""

    def states() -> list[str]:
        command = [sys.executable, "-c", script]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    assert states() == ["held", "held"]
    first.release()
    assert states() == ["free", "held"]
    second.release()


@pytest.mark.parametrize(
    "text",
    [
        b'{"uuid": "GPU-1", "control": "nv',
        b"\xff\xfe",
        b"{}",
        b'{"control": "nvml", "rank_name": "r", "rank_byte": -1}',
        b"[" * 4096,
        b'{"control": "nvml", "rank_name": "r", "rank_byte": Infinity}',
    ],
)
def test_a_record_that_was_half_written_counts_as_a_locked_clock(
    tmp_path: Path, text: bytes
) -> None:
    record_file(tmp_path).write_bytes(text)
    record_file(tmp_path).chmod(0o600)
    assert found_in(tmp_path).holder == UNKNOWN
    assert found_in(tmp_path).is_left
    record = LockRecord.take(tmp_path, UUID)
    assert record.holder() == UNKNOWN
    record.close()


def _as_link(record: Path) -> None:
    target = record.parent.parent / "precious"
    target.write_text("somebody's text")
    record.symlink_to(target)


def _as_another_users_file(record: Path) -> None:
    record.write_text("{}")
    record.chmod(0o600)
    os.chown(record, NOBODY, NOBODY)


def _as_readable_file(record: Path) -> None:
    record.write_text("{}")
    record.chmod(0o644)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (os.mkfifo, "it is not a regular file; remove it"),
        (Path.mkdir, "it is not a regular file; remove it"),
        (_as_link, "it is not a regular file; remove it"),
        (_as_readable_file, "other users can open it; run chmod 600"),
        pytest.param(_as_another_users_file, f"it belongs to user {NOBODY}", marks=needs_root),
    ],
)
def test_a_record_that_others_can_reach_or_that_is_none_is_refused_in_one_line(
    tmp_path: Path, make: Callable[[Path], object], why: str
) -> None:
    state_dir = tmp_path / "state"
    state_dir.mkdir(mode=0o700)
    make(record_file(state_dir))
    with pytest.raises(StateRefusedError, match=re.escape(why)):
        LockRecord.take(state_dir, UUID)
    (found,) = find_records(state_dir)
    assert found.refusal.startswith(f"{record_file(state_dir)} is refused: {why}")
    assert not (found.is_live or found.is_left)
    precious = tmp_path / "precious"
    assert not precious.exists() or precious.read_text() == "somebody's text"


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("a link", "it is a link or not a folder; remove it, or set FLYBALL_STATE_DIR"),
        ("a FIFO", "it is a link or not a folder; remove it, or set FLYBALL_STATE_DIR"),
        ("open to others", "other users can enter it; run chmod 700"),
        ("in a folder of all", "other users can replace it in"),
        pytest.param("another user's", f"it belongs to user {NOBODY}; remove", marks=needs_root),
    ],
)
def test_a_state_folder_that_others_can_reach_or_that_is_none_is_refused_in_one_line(
    tmp_path: Path, place: str, why: str
) -> None:
    state_dir, elsewhere = tmp_path / "flyball-1000", tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    match place:
        case "a link":
            state_dir.symlink_to(elsewhere)
        case "a FIFO":
            os.mkfifo(state_dir)
        case _:
            state_dir.mkdir(mode=0o755 if place == "open to others" else 0o700)
    if place == "another user's":
        os.chown(state_dir, NOBODY, NOBODY)
    if place == "in a folder of all":
        tmp_path.chmod(0o777)
    for use in (LockRecord.take, RankLock):
        with pytest.raises(StateRefusedError, match=re.escape(why)) as refused:
            use(state_dir, UUID)
        assert "\n" not in str(refused.value)
    assert list(elsewhere.iterdir()) == []


@needs_root
def test_another_user_can_neither_open_nor_lock_a_record(tmp_path: Path) -> None:
    # The folders above are open to all, as /run and /run/flyball are.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        state_dir = Path(folder) / "flyball" / "0"
        LockRecord.take(state_dir, UUID).close()
        command = ["flock", "--nonblock", "--shared", str(record_file(state_dir)), "true"]
        done = subprocess.run(command, user=NOBODY, capture_output=True, text=True, check=False)
        assert "Permission denied" in done.stderr
        script = f"""
import os
from pathlib import Path
from flyball_client.governor.lock_record import LockRecord, StateRefusedError
os.setuid({NOBODY})
try:
    LockRecord.take(Path({str(state_dir)!r}), "GPU-1")
except StateRefusedError as error:
    print(error)
"""
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    refusal = f"the state folder {state_dir} is refused: it belongs to user 0 or cannot be read; "
    assert done.stdout.startswith(refusal), done.stderr


@pytest.mark.parametrize(
    ("euid", "environ", "folder"),
    [
        (0, {"XDG_RUNTIME_DIR": "/run/user/0"}, "/run/flyball/0"),
        (1000, {"XDG_RUNTIME_DIR": "/run/user/1000"}, "/run/user/1000/flyball"),
        (1000, {"TMPDIR": "ignored"}, "/temporary/flyball-1000"),
        (1000, {"FLYBALL_STATE_DIR": "/x", "XDG_RUNTIME_DIR": "/run/user/1000"}, "/x/1000"),
        (0, {"FLYBALL_STATE_DIR": ""}, "/run/flyball/0"),
    ],
)
def test_records_are_kept_where_the_environment_says_else_where_the_user_may(
    euid: int,
    environ: dict[str, str],
    folder: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: euid)
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/temporary")
    with monkeypatch.context() as patched:
        # This machine's /run/flyball, if there is one, is not this user's.
        patched.setattr(state_folder, "_can_use", lambda _: False)
        assert default_state_dir(environ) == Path(folder)
    # The node's folder is used where that is possible.
    monkeypatch.setattr(state_folder, "NODE_DIR", tmp_path)
    assert default_state_dir({}) == tmp_path / str(euid)


@pytest.mark.parametrize(
    ("owner", "other", "expected"),
    [
        (1000, {"holder": HOLDER, "rank_pid": 5, "governor_pid": 6}, True),
        (1000, {"governor_pid": 6}, True),  # its clock is not locked now
        (1000, {"holder": HOLDER, "rank_pid": 5}, False),  # nobody will restore it
        (1000, {"holder": HOLDER}, False),  # it has ended
        (1000, {"holder": HOLDER, "rank_pid": 5, "governor_pid": 6, "uuid": "GPU-2"}, False),
        (0, {"holder": HOLDER, "rank_pid": 5, "governor_pid": 6}, False),
    ],
)
def test_a_clock_that_is_in_force_for_another_users_rank_is_taken_but_for_roots(
    owner: int, other: dict[str, Any], expected: bool
) -> None:
    left = FoundRecord(folder=Path("/left"), uuid=UUID, owner=owner, holder=HOLDER)
    fields: dict[str, Any] = {"uuid": UUID, "owner": 1001} | other
    assert left.is_taken([left, FoundRecord(folder=Path("/other"), **fields)]) is expected
