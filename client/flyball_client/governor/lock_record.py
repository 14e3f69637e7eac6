"""Lock record: one file per GPU and user that names the rank whose clock may be locked.

Three locks on it show who lives. The kernel releases them at the end of their processes and shows
them in every PID namespace (docs/decisions/0016-the-kernel-shows-who-lives.md):

- `flock` of the whole file: a governor and its standby together; it keeps a second governor out.
- A byte whose number is in the record: its rank.
- The byte after it, and one of a fixed number: each process of its pair of governors.

A record with content whose rank has ended stands for a clock that may be locked.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import struct
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import ClassVar

from flyball_client.governor.process_watch import ProcessIdentity, ProcessWatch
from flyball_client.governor.state_folder import (
    ROOT,
    StateRefusedError,
    make_state_dir,
    open_state_dir,
    open_state_file,
)
from flyball_profiles.printable_text import printable
from flyball_wire.errors import FlyballError

_SUFFIX = ".clock"
_MAX_BYTES = 4096
# One user's; a node has fewer GPUs.
_MAX_RECORDS = 256
_TAKE_TIMEOUT_S = 0.5
_KILL_TIMEOUT_S = 0.5
_PAUSE_S = 0.01
_MAX_GOVERNORS = 8
# Bytes beyond the content; locked, never written.
_GOVERNOR_BYTE = 1 << 40
_FIRST_RANK_BYTE, _LAST_RANK_BYTE = 1 << 41, 1 << 62
# struct flock of 64-bit Linux: type, whence, start, length, process.
_FLOCK = struct.Struct("@hhqqi0q")


class ClockHeldError(FlyballError):
    """Another governor holds this GPU's clock."""


@dataclass(frozen=True, kw_only=True)
class ClockHolder:
    """Holder of a clock lock.

    Attributes:
        control: Clock control, as `nvml` or `zeusd`.
        rank_byte: Number of the byte that the rank has locked; 0: the record is incomplete.
    """

    uuid: str
    control: str
    rank_name: str
    rank_byte: int


@dataclass(frozen=True, kw_only=True)
class FoundRecord:
    """Record in a state folder, and the processes that live.

    Process numbers are those of this PID namespace; 0: the process lives in one that cannot be
    seen from here.

    Attributes:
        owner: User whose folder it is.
        holder: Content; None: no clock is recorded as locked.
        rank_pid: Process number of the rank; None: it has ended.
        governor_pid: Process number of a governor; None: none lives.
        refusal: Reason why the file is not used, in one line; empty: it is.
    """

    folder: Path
    uuid: str
    owner: int
    holder: ClockHolder | None = None
    rank_pid: int | None = None
    governor_pid: int | None = None
    refusal: str = ""

    @property
    def is_live(self) -> bool:
        """Return whether a live rank, or a governor without a locked clock, uses the GPU."""
        if self.holder is not None and self.holder.rank_byte:
            return self.rank_pid is not None
        # A record that is being written counts as its governor's.
        return self.governor_pid is not None

    @property
    def is_left(self) -> bool:
        """Return whether the clock may have been left locked."""
        return self.holder is not None and not self.is_live

    @property
    def is_ungoverned(self) -> bool:
        """Return whether the rank lives without a governor, which alone would restore its clock.

        A rank starts another governor within a second where it trains.
        """
        return self.is_live and self.holder is not None and self.governor_pid is None

    @property
    def is_unattended(self) -> bool:
        """Return whether no process will restore a clock that may be locked."""
        return self.is_left or self.is_ungoverned

    def is_taken(self, records: Sequence[FoundRecord]) -> bool:
        """Return whether another rank's clock is in force on the GPU, which restoring would undo.

        A user cannot claim a clock that root's rank has left locked.

        Args:
            records: All of the node.
        """
        return self.owner != ROOT and any(
            other.uuid == self.uuid and other.is_live and not other.is_ungoverned
            for other in records
        )

    @property
    def rank_name(self) -> str | None:
        """Job and rank, in one printable line; None: not known."""
        return None if self.holder is None else printable(self.holder.rank_name)

    @property
    def process(self) -> str:
        """Rank, else governor that lives, in words."""
        pid = self.rank_pid or self.governor_pid
        return f"process {pid}" if pid else "a process of another PID namespace"


class RankLock:
    """Lock that shows in a GPU's record that this process, a rank, lives.

    Attributes:
        byte: Number of the locked byte, different for each lock.
    """

    # One descriptor for each file, never closed: closing any descriptor of a file would release
    # all locks that this process has on it.
    _fds: ClassVar[dict[Path, int]] = {}

    def __init__(self, state_dir: Path, uuid: str) -> None:
        """Open this GPU's record and lock a byte.

        Raises:
            StateRefusedError: The folder or the file is refused.
            OSError: The folder or the file cannot be created or locked.
        """
        self.byte = random.SystemRandom().randrange(_FIRST_RANK_BYTE, _LAST_RANK_BYTE, 2)
        self._fd = self._opened(state_dir, uuid)
        fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self.byte)

    def release(self) -> None:
        """Release the lock; the process's other locks stay."""
        fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, self.byte)

    @classmethod
    def _opened(cls, state_dir: Path, uuid: str) -> int:
        path = state_dir.absolute() / f"{uuid}{_SUFFIX}"
        fd = cls._fds.get(path)
        if fd is None or not _is_same_file(path, fd):
            fd = cls._fds[path] = _open_own(state_dir, uuid)
        return fd


class LockRecord:
    """Held record of one GPU.

    Args:
        fd: Descriptor of the locked file; closed with the record.
        uuid: UUID of the GPU.
    """

    def __init__(self, fd: int, uuid: str) -> None:
        self.fd = fd
        self._uuid = uuid

    @classmethod
    def take(cls, state_dir: Path, uuid: str) -> LockRecord:
        """Open and lock this GPU's record in a folder of this user.

        Raises:
            ClockHeldError: Another governor holds it.
            StateRefusedError: The folder or the file is refused.
            OSError: The folder or the file cannot be created.
        """
        record = cls(_open_own(state_dir, uuid), uuid)
        try:
            if not _lock_within(record.fd, _TAKE_TIMEOUT_S):
                holder = record.holder()
                whose = "another rank" if holder is None else holder.rank_name
                raise ClockHeldError(
                    f"the clock of {uuid} is already set for {whose}; give each rank a GPU"
                )
        except BaseException:
            record.close()
            raise
        return record

    @classmethod
    def take_left(cls, found: FoundRecord) -> LockRecord | None:
        """Lock a record whose rank or governor has ended, and end governors of an ended rank.

        Returns:
            The record; None: it is another rank's or governor's by now, or was cleared.

        Raises:
            ClockHeldError: It is held by a process that cannot be ended.
            StateRefusedError: The folder or the file is refused.
            OSError: The file cannot be opened.
        """
        record = cls(_open_found(found), found.uuid)
        try:
            if found.is_left and record.holder() == found.holder:
                _kill_governors(record.fd, found.holder)
            is_locked = _lock_within(record.fd, _TAKE_TIMEOUT_S)
            is_same = record.holder() == found.holder and (is_locked or found.is_left)
            if is_same and not is_locked:
                raise ClockHeldError(
                    "its record is locked by a process that this process cannot end"
                )
        except BaseException:
            record.close()
            raise
        if is_same:
            return record
        record.close()
        return None

    def holder(self) -> ClockHolder | None:
        """Return the content; None: it is empty, the clock was restored."""
        return _read_holder(self.fd, self._uuid)

    def write(self, holder: ClockHolder) -> None:
        """Record that the clock may be locked."""
        text = json.dumps(asdict(holder)).encode()
        os.pwrite(self.fd, text, 0)
        os.ftruncate(self.fd, len(text))

    def clear(self) -> None:
        """Record that the clock was restored."""
        os.ftruncate(self.fd, 0)

    def close(self) -> None:
        """Release the record in this process."""
        os.close(self.fd)


def show_governor(record_fd: int, rank_byte: int) -> None:
    """Lock the bytes that show that this process, a governor of that rank, lives.

    Raises:
        OSError: The file system has no such locks.
    """
    for byte in (_GOVERNOR_BYTE, rank_byte + 1):
        fcntl.lockf(record_fd, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, byte)


def find_records(state_dir: Path, owner: int | None = None) -> list[FoundRecord]:
    """Return the records of clocks that may be locked, and refused files, by UUID."""
    return [
        found
        for found in find_all_records(state_dir, owner)
        if found.holder is not None or found.refusal
    ]


def find_all_records(state_dir: Path, owner: int | None = None) -> list[FoundRecord]:
    """Return all records, also those of clocks that are not locked, by UUID.

    Args:
        state_dir: Folder of a user; it may be missing.
        owner: User who must own it; None: this user.

    Raises:
        StateRefusedError: The folder is refused.
        OSError: The folder cannot be read.
    """
    try:
        folder_fd = open_state_dir(state_dir, owner)
    except FileNotFoundError:
        return []
    try:
        files = (entry.name for entry in os.scandir(folder_fd) if entry.name.endswith(_SUFFIX))
        names = sorted(islice(files, _MAX_RECORDS))
        records = [_find_record(state_dir, folder_fd, name) for name in names]
    finally:
        os.close(folder_fd)
    return [record for record in records if record is not None]


def _find_record(state_dir: Path, folder_fd: int, name: str) -> FoundRecord | None:
    uuid = name.removesuffix(_SUFFIX)
    owner = os.fstat(folder_fd).st_uid
    try:
        fd = open_state_file(state_dir, folder_fd, name)
    except (StateRefusedError, PermissionError) as error:
        return FoundRecord(folder=state_dir, uuid=uuid, owner=owner, refusal=str(error))
    except FileNotFoundError:  # removed just now
        return None
    try:
        holder = _read_holder(fd, uuid)
        return FoundRecord(
            folder=state_dir,
            uuid=uuid,
            owner=owner,
            holder=holder,
            rank_pid=None if holder is None else _locker(fd, holder.rank_byte),
            governor_pid=_locker(fd, _GOVERNOR_BYTE),
        )
    finally:
        os.close(fd)


def hold_byte(fd: int) -> None:
    """Lock the first byte of a file for this process.

    Raises:
        BlockingIOError: Another process holds it.
        OSError: The file system has no such locks.
    """
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)


def writer_of_byte(fd: int) -> int | None:
    """Return the process that has locked the first byte by `hold_byte`; see `FoundRecord`.

    Locks of processes that can only read the file are ignored.
    """
    return _locker(fd, 0, kind=fcntl.F_RDLCK)


def _open_own(state_dir: Path, uuid: str) -> int:
    make_state_dir(state_dir)
    folder_fd = open_state_dir(state_dir)
    try:
        return open_state_file(state_dir, folder_fd, f"{uuid}{_SUFFIX}", is_new=True)
    finally:
        os.close(folder_fd)


def _open_found(found: FoundRecord) -> int:
    folder_fd = open_state_dir(found.folder, found.owner)
    try:
        return open_state_file(found.folder, folder_fd, f"{found.uuid}{_SUFFIX}")
    finally:
        os.close(folder_fd)


def _is_same_file(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(fd))
    except OSError:
        return False


def _locker(fd: int, byte: int, *, kind: int = fcntl.F_WRLCK) -> int | None:
    """Return a process that keeps this process from locking a byte; None: there is none."""
    query = _FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0)
    found, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, query))
    return None if found == fcntl.F_UNLCK else max(0, pid)


def _kill_governors(fd: int, holder: ClockHolder | None) -> None:
    """Kill the governors of a rank that has ended, also stopped ones, as far as they are seen."""
    if holder is None or not holder.rank_byte:
        return
    byte = holder.rank_byte + 1
    for _ in range(_MAX_GOVERNORS):
        pid = _locker(fd, byte)
        identity = ProcessIdentity.of(pid) if pid else None
        if identity is None:
            return
        watch = ProcessWatch(identity)
        try:
            # Asked again: the number may have become another process's meanwhile.
            if _locker(fd, byte) == pid and watch.is_alive():
                with contextlib.suppress(PermissionError):
                    watch.kill()
            _wait_for_release(fd, byte, identity.pid)
        finally:
            watch.close()


def _wait_for_release(fd: int, byte: int, pid: int) -> None:
    give_up_s = time.monotonic() + _KILL_TIMEOUT_S
    while _locker(fd, byte) == pid and time.monotonic() < give_up_s:
        time.sleep(_PAUSE_S)


def _lock_within(fd: int, timeout_s: float) -> bool:
    # A process that restores a clock holds a record for a moment.
    give_up_s = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > give_up_s:
                return False
            time.sleep(_PAUSE_S)
        else:
            return True


def _read_holder(fd: int, uuid: str) -> ClockHolder | None:
    text = os.pread(fd, _MAX_BYTES, 0)
    if not text:
        return None
    try:
        fields = json.loads(text)
        rank_byte = int(fields["rank_byte"])
        if not _FIRST_RANK_BYTE <= rank_byte < _LAST_RANK_BYTE:
            raise ValueError("rank_byte")
        return ClockHolder(
            uuid=uuid,
            control=str(fields["control"]),
            rank_name=str(fields["rank_name"]),
            rank_byte=rank_byte,
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        # Incomplete, written by a process that was killed: the clock may be locked.
        return ClockHolder(
            uuid=uuid, control="unknown means", rank_name="an unknown rank", rank_byte=0
        )
