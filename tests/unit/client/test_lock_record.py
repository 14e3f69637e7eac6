from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flyball_client.governor import lock_record
from flyball_client.governor.lock_record import (
    ClockHeldError,
    ClockHolder,
    FoundRecord,
    LockRecord,
    default_state_dir,
    find_records,
)

pytestmark = pytest.mark.slow

UUID = "GPU-1"
HOLDER = ClockHolder(
    uuid=UUID, control="zeusd", rank_name="job gpt rank 3", rank_pid=12, governor_pid=34
)
UNKNOWN = ClockHolder(
    uuid=UUID, control="nvml", rank_name="an unknown rank", rank_pid=0, governor_pid=0
)
HOLD_IT = """
import sys
from pathlib import Path
from flyball_client.governor.lock_record import ClockHolder, LockRecord
record = LockRecord.take(Path(sys.argv[1]), "GPU-1")
if len(sys.argv) > 2:
    record.write(ClockHolder(
        uuid="GPU-1", control="nvml", rank_name=sys.argv[2], rank_pid=12, governor_pid=34
    ))
print("held", flush=True)
sys.stdin.read()
"""
PATIENCE_S = 20


@pytest.fixture(autouse=True)
def _waits_shortly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_record, "_TAKE_TIMEOUT_S", 0.05)


@contextmanager
def other_process(state_dir: Path, *rank_name: str) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that holds the record, and has written into it for the rank named."""
    command = [sys.executable, "-c", HOLD_IT, str(state_dir), *rank_name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def record_file(state_dir: Path) -> Path:
    return state_dir / f"{UUID}.clock"


def test_a_record_that_is_taken_is_clean_and_made_with_its_folder(tmp_path: Path) -> None:
    state_dir = tmp_path / "run" / "flyball"
    record = LockRecord.take(state_dir, UUID)
    assert record.holder() is None
    assert record_file(state_dir).read_bytes() == b""
    assert not os.get_inheritable(record.fd)
    for path in (state_dir, record_file(state_dir)):  # nobody else may write into it
        assert not stat.S_IMODE(path.stat().st_mode) & 0o022
    record.close()


def test_a_record_outlives_its_writer_until_it_is_overwritten_or_cleared(tmp_path: Path) -> None:
    record = LockRecord.take(tmp_path, UUID)
    record.write(HOLDER)
    record.close()
    assert find_records(tmp_path) == [FoundRecord(holder=HOLDER, is_held=False)]
    record = LockRecord.take(tmp_path, UUID)
    assert record.holder() == HOLDER
    assert find_records(tmp_path) == [FoundRecord(holder=HOLDER, is_held=True)]
    shorter = ClockHolder(uuid=UUID, control="nvml", rank_name="r", rank_pid=1, governor_pid=2)
    record.write(shorter)
    assert record.holder() == shorter
    record.clear()
    assert record.holder() is None
    record.close()


@pytest.mark.parametrize(
    ("rank_name", "whose"), [(("job gpt rank 7",), "job gpt rank 7"), ((), "another rank")]
)
def test_a_record_that_another_process_holds_is_refused_by_name(
    tmp_path: Path, rank_name: tuple[str, ...], whose: str
) -> None:
    with other_process(tmp_path, *rank_name):
        before = len(list(Path("/proc/self/fd").iterdir()))
        with pytest.raises(ClockHeldError, match=f"GPU-1 is already set for {whose}; give each"):
            LockRecord.take(tmp_path, UUID)
        assert len(list(Path("/proc/self/fd").iterdir())) == before
        LockRecord.take(tmp_path, "GPU-2").close()


def test_it_stays_held_until_everybody_who_inherited_it_has_ended(tmp_path: Path) -> None:
    record = LockRecord.take(tmp_path, UUID)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[record.fd]) as standby:
        record.close()
        with pytest.raises(ClockHeldError):
            LockRecord.take(tmp_path, UUID)
        standby.kill()
        standby.wait(PATIENCE_S)
        LockRecord.take(tmp_path, UUID).close()


@pytest.mark.parametrize(
    "text",
    [
        b'{"uuid": "GPU-1", "control": "nv',
        b"\xff\xfe",
        b"\0",
        b"[]",
        b"7",
        b"{}",
        b'{"control": "nvml", "rank_name": "r", "rank_pid": "x", "governor_pid": 1}',
        b'{"control": "nvml", "rank_name": "r", "rank_pid": null, "governor_pid": 1}',
        b"[" * 4096,
        b'{"control": "nvml", "rank_name": "r", "rank_pid": Infinity, "governor_pid": 1}',
    ],
)
def test_a_record_that_was_half_written_counts_as_a_locked_clock(
    tmp_path: Path, text: bytes
) -> None:
    record_file(tmp_path).write_bytes(text)
    assert find_records(tmp_path) == [FoundRecord(holder=UNKNOWN, is_held=False)]
    record = LockRecord.take(tmp_path, UUID)
    assert record.holder() == UNKNOWN
    record.close()


def test_records_are_found_by_uuid_and_clean_ones_and_others_files_are_not(
    tmp_path: Path,
) -> None:
    for uuid in ("GPU-b", "GPU-a", "GPU-clean"):
        record = LockRecord.take(tmp_path, uuid)
        if uuid != "GPU-clean":
            record.write(HOLDER)
        record.close()
    (tmp_path / "notes.txt").write_text("not a record")
    assert [found.holder.uuid for found in find_records(tmp_path)] == ["GPU-a", "GPU-b"]
    assert find_records(tmp_path / "no-folder") == []


def test_no_link_is_followed(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("somebody's text")
    state_dir = tmp_path / "state"
    state_dir.mkdir()
    record_file(state_dir).symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"):
        LockRecord.take(state_dir, UUID)
    assert find_records(state_dir) == []
    assert target.read_text() == "somebody's text"


def test_a_folder_that_cannot_be_made_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file/state"):
        LockRecord.take(tmp_path / "file" / "state", UUID)


@pytest.mark.parametrize(
    ("euid", "environ", "folder"),
    [
        (0, {}, "/run/flyball"),
        (0, {"XDG_RUNTIME_DIR": "/run/user/0"}, "/run/flyball"),
        (1000, {"XDG_RUNTIME_DIR": "/run/user/1000"}, "/run/user/1000/flyball"),
        (1000, {"TMPDIR": "ignored"}, "/temporary/flyball-1000"),
        (0, {"FLYBALL_STATE_DIR": "/var/lib/x"}, "/var/lib/x"),
        (1000, {"FLYBALL_STATE_DIR": "/x", "XDG_RUNTIME_DIR": "/run/user/1000"}, "/x"),
        (0, {"FLYBALL_STATE_DIR": ""}, "/run/flyball"),
    ],
)
def test_records_are_kept_where_the_environment_says_else_where_the_user_may(
    euid: int, environ: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: euid)
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/temporary")
    assert default_state_dir(environ) == Path(folder)
