"""Guard of a node: restores the clock of every record whose rank has ended.

Governor and standby of a rank end with it where the kernel kills all of them at once, as at the
end of a container. The guard runs outside, as root, and reads the records of all users.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from flyball_client.governor.lock_record import (
    ClockHeldError,
    FoundRecord,
    LockRecord,
    find_records,
    hold_byte,
    writer_of_byte,
)
from flyball_client.governor.state_folder import (
    StateRefusedError,
    make_state_dir,
    user_state_dirs,
)
from flyball_client.gpu._base import GpuError
from flyball_client.gpu.open_gpu import reset_clock

# Time between two checks of all records, which read some small files.
PERIOD_S = 0.25
# Time that governors have to restore the clock themselves after the end of their rank.
GRACE_S = 1.0
FIRST_RETRY_S = 1.0
LONGEST_RETRY_S = 30.0
_GUARD_FILE = "guard"
_ROOT = 0

_Key = tuple[Path, str, int]


class OtherGuardError(StateRefusedError):
    """Another guard watches the same folder."""


@dataclass
class _Left:
    """Record whose rank has ended: since when, next attempt, and pause after it, s."""

    since_s: float
    next_s: float = 0.0
    pause_s: float = FIRST_RETRY_S
    is_done: bool = False
    said: set[str] = field(default_factory=set[str])


class Guard:
    """Watch of the records in a node's folder.

    Args:
        node_dir: Folder with one folder for each user.
        environ: Environment, with the settings of clocks.
        say: Called with each event, one line.
    """

    def __init__(
        self, node_dir: Path, environ: Mapping[str, str], say: Callable[[str], object]
    ) -> None:
        self._node_dir = node_dir
        self._environ = environ
        self._say = say
        self._left: dict[_Key, _Left] = {}
        self._refusals: set[str] = set()

    def check(self) -> None:
        """Check all records once, and restore the clocks that were left locked."""
        found = self._find()
        live = {record.uuid for record in found if record.is_live}
        left = {_key(record): record for record in found if record.is_left}
        self._left = {key: state for key, state in self._left.items() if key in left}
        now_s = time.monotonic()
        for key, record in left.items():
            state = self._left.setdefault(key, _Left(since_s=now_s))
            is_early = record.governor_pid is not None and now_s - state.since_s < GRACE_S
            if state.is_done or is_early or now_s < state.next_s:
                continue
            # A user cannot claim a clock that root's rank has left locked.
            is_taken = record.owner != _ROOT and record.uuid in live
            try:
                self._restore(record, state, is_taken=is_taken)
            except (GpuError, StateRefusedError, OSError, ValueError) as error:
                self._once(state, f"{record.uuid}: its SM clock may still be locked: {error}")
                state.next_s = time.monotonic() + state.pause_s
                state.pause_s = min(2 * state.pause_s, LONGEST_RETRY_S)

    def _find(self) -> list[FoundRecord]:
        found: list[FoundRecord] = []
        refusals: list[str] = []
        for folder, owner in user_state_dirs(self._node_dir).items():
            try:
                found += find_records(folder, owner)
            except (StateRefusedError, OSError) as error:
                refusals.append(str(error))
        refusals += [record.refusal for record in found if record.refusal]
        for text in refusals:
            if text not in self._refusals:
                self._say(text)
        self._refusals = set(refusals)
        return found

    def _restore(self, found: FoundRecord, state: _Left, *, is_taken: bool) -> None:
        try:
            record = LockRecord.take_left(found)
        except ClockHeldError as error:
            # Its governors are stopped, or it is no governor that holds the record.
            advice = "a guard in the host's PID namespace can end stopped governors"
            self._once(state, f"{found.uuid}: {error}; {advice}")
            if not is_taken:
                self._reset(found)
            state.is_done = True
            return
        if record is None:
            return
        with contextlib.closing(record):
            if not is_taken:
                self._reset(found)
            record.clear()

    def _reset(self, found: FoundRecord) -> None:
        reset_clock(found.uuid, self._environ)
        rank = found.rank_name or "an unknown rank"
        self._say(
            f"{found.uuid}: its SM clock was restored; it was set for {rank}, which has ended"
        )

    def _once(self, state: _Left, text: str) -> None:
        line = " ".join(text.split())
        if line not in state.said:
            state.said.add(line)
            self._say(line)


def _key(record: FoundRecord) -> _Key:
    return record.folder, record.uuid, 0 if record.holder is None else record.holder.rank_byte


def prepare_node_dir(node_dir: Path, group_id: int | None) -> int:
    """Create the folder and root's own, and hold the guard's file.

    Args:
        node_dir: Folder for all users.
        group_id: Group whose members can have a folder in it; None: root alone.

    Returns:
        Descriptor of the guard's file; other processes see that a guard runs until it is closed.

    Raises:
        OtherGuardError: Another guard holds it.
        StateRefusedError: Something in the folder's place cannot be used.
        OSError: The folder cannot be created or changed.
    """
    node_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
    # Root's folder and the file before others can create anything.
    make_state_dir(node_dir / str(os.geteuid()))
    path = node_dir / _GUARD_FILE
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    try:
        if not _is_trusted(fd):
            raise StateRefusedError(
                f"{path} is refused: it belongs to another user or is not a file; remove it"
            )
        try:
            hold_byte(fd)
        except BlockingIOError:
            raise OtherGuardError(f"another guard watches {node_dir}; run one per folder") from None
        if group_id is not None:
            os.chown(node_dir, -1, group_id)
            node_dir.chmod(0o1775)
    except BaseException:
        os.close(fd)
        raise
    return fd


def find_guard(node_dir: Path) -> int | None:
    """Return the process that guards a folder; 0: of another PID namespace; None: there is none."""
    try:
        fd = os.open(
            node_dir / _GUARD_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        )
    except OSError:
        return None
    try:
        return writer_of_byte(fd) if _is_trusted(fd) else None
    finally:
        os.close(fd)


def _is_trusted(fd: int) -> bool:
    status = os.fstat(fd)
    return (
        stat.S_ISREG(status.st_mode)
        and status.st_uid in {_ROOT, os.geteuid()}
        and not status.st_mode & 0o022
    )
