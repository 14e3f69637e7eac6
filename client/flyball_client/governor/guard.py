"""Guard of a node: restores the clock of every record whose rank, or rank's governor, has ended.

Governor and standby of a rank end with it where the kernel kills all of them at once, as at the
end of a container. The guard runs outside, as root, and reads the records of all users. A driver
may hang on one GPU, so a process of its own restores each clock.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import stat
import time
from collections.abc import Callable, Iterator, Mapping
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
    ROOT,
    StateRefusedError,
    make_state_dir,
    user_state_dirs,
)
from flyball_client.gpu._base import GpuError
from flyball_client.gpu.registry import reset_clock
from flyball_profiles.printable_text import printable

# Time between two checks of all records, which read some small files.
PERIOD_S = 0.25
# Time that governors have to restore the clock themselves after the end of their rank.
GRACE_S = 1.0
# Time that a rank has to start another governor.
UNGOVERNED_GRACE_S = 5.0
# Time in which a check waits for the processes that it starts; a driver takes milliseconds.
_SOON_S = 0.5
# Time after which a driver hangs that has not answered.
DEADLINE_S = 10.0
FIRST_RETRY_S = 1.0
LONGEST_RETRY_S = 30.0
_GUARD_FILE = "guard"
_MAX_ANSWER_BYTES = 1 << 16

_Key = tuple[Path, str, int]


class OtherGuardError(StateRefusedError):
    """Another guard watches the same folder."""


@dataclass(frozen=True, kw_only=True)
class _Worker:
    """Forked process that restores one clock: number, pipe that it answers on, time limit, s."""

    pid: int
    fd: int
    until_s: float


@dataclass
class _Left:
    """Record to restore: since when, next attempt, and pause after it, s."""

    since_s: float
    next_s: float = 0.0
    pause_s: float = FIRST_RETRY_S
    is_done: bool = False
    worker: _Worker | None = None
    said: set[str] = field(default_factory=set[str])


class Guard:
    """Watch of the records in a node's folder, which has one folder for each user.

    Each event is passed to `say`, in one line.
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
        """Check all records once, and restore the clocks that were left locked.

        Waits a moment for drivers that answer at once; others are looked after at later checks.
        """
        found = self._find()
        left = {_key(gpu): gpu for gpu in found if gpu.is_unattended}
        self._left = {
            key: state
            for key, state in self._left.items()
            if key in left or state.worker is not None
        }
        now_s = time.monotonic()
        for key, record in left.items():
            state = self._left.setdefault(key, _Left(since_s=now_s))
            is_early = now_s - state.since_s < _grace_s(record)
            if state.is_done or state.worker or is_early or now_s < state.next_s:
                continue
            state.worker = self._begin(record, is_taken=record.is_taken(found))
        self._wait()
        for (_, uuid, _), state in self._left.items():
            self._end_late(uuid, state)

    def close(self) -> None:
        """Kill the processes of drivers that hang."""
        for state in self._left.values():
            if state.worker is not None:
                _kill(state.worker)

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
                self._say(printable(text))
        self._refusals = set(refusals)
        return found

    def _begin(self, found: FoundRecord, *, is_taken: bool) -> _Worker:
        """Fork a process that restores the clock; this process has a single thread."""
        reading_fd, writing_fd = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            try:
                lines, is_done = self._restored(found, is_taken=is_taken)
                os.write(writing_fd, json.dumps([lines, is_done]).encode())
            finally:
                os._exit(0)
        os.close(writing_fd)
        return _Worker(pid=pid, fd=reading_fd, until_s=time.monotonic() + DEADLINE_S)

    def _restored(self, found: FoundRecord, *, is_taken: bool) -> tuple[list[str], bool]:
        """Restore a clock; return what is to be said, and whether nothing is left to do."""
        lines: list[str] = []
        try:
            for line in self._restore(found, is_taken=is_taken):
                lines.append(line)
        except (GpuError, StateRefusedError, OSError, ValueError) as error:
            return [*lines, f"{found.uuid}: its SM clock may still be locked: {error}"], False
        return lines, True

    def _restore(self, found: FoundRecord, *, is_taken: bool) -> Iterator[str]:
        try:
            record = LockRecord.take_left(found)
        except ClockHeldError as error:
            # Its governors are stopped, or it is no governor that holds the record.
            advice = "a guard in the host's PID namespace can end stopped governors"
            yield f"{found.uuid}: {error}; {advice}"
            if not is_taken:
                yield self._reset(found)
            return
        if record is None:
            return
        with contextlib.closing(record):
            if not is_taken:
                yield self._reset(found)
            record.clear()

    def _reset(self, found: FoundRecord) -> str:
        reset_clock(found.uuid, self._environ)
        rank = found.rank_name or "an unknown rank"
        end = "lives without a governor" if found.is_ungoverned else "has ended"
        return f"{found.uuid}: its SM clock was restored; it was set for {rank}, which {end}"

    def _wait(self) -> None:
        """Wait until all processes have answered, at most a moment, and say what they say."""
        waiting = {state.worker.fd: state for state in self._left.values() if state.worker}
        while waiting:
            readable, _, _ = select.select(list(waiting), (), (), _SOON_S)
            for fd in readable:
                self._end(waiting.pop(fd))
            if not readable:
                return

    def _end(self, state: _Left) -> None:
        """Read the answer of a process that has ended."""
        worker, state.worker = state.worker, None
        if worker is None:
            return
        answer = os.read(worker.fd, _MAX_ANSWER_BYTES)
        os.close(worker.fd)
        os.waitpid(worker.pid, 0)
        lines, is_done = json.loads(answer) if answer else ((), False)
        for line in lines:
            self._once(state, line)
        state.is_done = is_done
        if not is_done:
            self._retry_later(state)

    def _end_late(self, uuid: str, state: _Left) -> None:
        """Kill a process whose driver hangs."""
        if state.worker is None or time.monotonic() < state.worker.until_s:
            return
        text = f"its SM clock may still be locked: the driver has not answered for {DEADLINE_S:g} s"
        self._once(state, f"{uuid}: {text}")
        # One that the driver keeps from ending is waited for, and no other is started.
        _kill(state.worker)

    def _retry_later(self, state: _Left) -> None:
        state.next_s = time.monotonic() + state.pause_s
        state.pause_s = min(2 * state.pause_s, LONGEST_RETRY_S)

    def _once(self, state: _Left, text: str) -> None:
        line = printable(" ".join(text.split()))
        if line not in state.said:
            state.said.add(line)
            self._say(line)


def _kill(worker: _Worker) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(worker.pid, signal.SIGKILL)


def _grace_s(record: FoundRecord) -> float:
    """Return the time in s in which the record may still be seen to by its own processes."""
    if record.is_ungoverned:
        return UNGOVERNED_GRACE_S
    return 0.0 if record.governor_pid is None else GRACE_S


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
        and status.st_uid in {ROOT, os.geteuid()}
        and not status.st_mode & 0o022
    )
