"""Lock record: one file per GPU that names the governor that may have locked its clock.

The file's advisory lock is held by a governor and its standby together, and released when both
have ended. A record with content and without a lock stands for a clock that was not restored: the
GPU's next governor restores it, and so does `flyball unlock`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from flyball_wire.errors import FlyballError

_SUFFIX = ".clock"
_MAX_BYTES = 4096
_TAKE_TIMEOUT_S = 0.5


class ClockHeldError(FlyballError):
    """Another governor holds this GPU's clock."""


@dataclass(frozen=True, kw_only=True)
class ClockHolder:
    """Holder of a clock lock.

    Attributes:
        uuid: UUID of the GPU.
        control: Clock control, `nvml` or `zeusd`.
        rank_name: Job and rank.
        rank_pid: Process number of the rank.
        governor_pid: Process number of the governor.
    """

    uuid: str
    control: str
    rank_name: str
    rank_pid: int
    governor_pid: int


@dataclass(frozen=True, kw_only=True)
class FoundRecord:
    """Record in a state folder; `is_held`: a governor is running."""

    holder: ClockHolder
    is_held: bool


def default_state_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Return `FLYBALL_STATE_DIR`, else /run/flyball for root, else a folder of the user."""
    variables = os.environ if environ is None else environ
    named = variables.get("FLYBALL_STATE_DIR")
    if named:
        return Path(named)
    if os.geteuid() == 0:
        return Path("/run/flyball")
    runtime = variables.get("XDG_RUNTIME_DIR")
    if runtime:
        return Path(runtime) / "flyball"
    return Path(tempfile.gettempdir()) / f"flyball-{os.geteuid()}"


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
        """Open and lock this GPU's record.

        Raises:
            ClockHeldError: Another governor holds it.
            OSError: The folder or the file cannot be created.
        """
        state_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
        # Without O_TRUNC, since another governor may hold it. Links are not followed.
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(state_dir / f"{uuid}{_SUFFIX}", flags, 0o644)
        record = cls(fd, uuid)
        try:
            if not _lock_within(fd, _TAKE_TIMEOUT_S):
                holder = record.holder()
                whose = "another rank" if holder is None else holder.rank_name
                raise ClockHeldError(
                    f"the clock of {uuid} is already set for {whose}; give each rank a GPU"
                )
        except BaseException:
            record.close()
            raise
        return record

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


def find_records(state_dir: Path) -> list[FoundRecord]:
    """Return all records of clocks that may be locked, by UUID."""
    found: list[FoundRecord] = []
    for path in sorted(state_dir.glob(f"*{_SUFFIX}")):
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                holder = _read_holder(fd, path.name.removesuffix(_SUFFIX))
                if holder is not None:
                    found.append(FoundRecord(holder=holder, is_held=_is_held(fd)))
            finally:
                os.close(fd)
    return found


def _lock_within(fd: int, timeout_s: float) -> bool:
    # `find_records` locks a record for a moment.
    give_up_s = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > give_up_s:
                return False
            time.sleep(0.01)
        else:
            return True


def _is_held(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _read_holder(fd: int, uuid: str) -> ClockHolder | None:
    text = os.pread(fd, _MAX_BYTES, 0)
    if not text:
        return None
    try:
        fields = json.loads(text)
        return ClockHolder(
            uuid=uuid,
            control=str(fields["control"]),
            rank_name=str(fields["rank_name"]),
            rank_pid=int(fields["rank_pid"]),
            governor_pid=int(fields["governor_pid"]),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        # Incomplete, written by a process that was killed: the clock may be locked.
        return ClockHolder(
            uuid=uuid, control="nvml", rank_name="an unknown rank", rank_pid=0, governor_pid=0
        )
