"""Where the ranks of a node and their relay meet: a Unix socket in a folder of the user's own.

Nobody else can make a socket there, so what answers on it may be given the planner's token. A
lock beside it is held by the relay as long as it lives.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flyball_client.governor.lock_record import default_state_dir
from flyball_wire.errors import FlyballError
from flyball_wire.version import flyball_version

# Of a Unix socket's address on Linux, its final zero included.
_MAX_ADDRESS_BYTES = 108


class NoRelayError(FlyballError):
    """There can be no relay on this node; the text says why."""


@dataclass(frozen=True, kw_only=True)
class MeetingPlace:
    """A job's at one planner, for all its ranks on this node.

    Attributes:
        socket: that the relay listens on.
        lock: held by it.
    """

    socket: Path
    lock: Path


def meeting_place(
    planner_url: str, job_id: str, environ: Mapping[str, str] | None = None
) -> MeetingPlace:
    """The place, its folder made where it is missing.

    Clients of another Flyball version meet elsewhere.

    Raises:
        NoRelayError: the folder cannot be made, is not the user's alone, or its name is too long.
    """
    folder = default_state_dir(environ).absolute() / "relays"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise NoRelayError(f"{folder} cannot be made: {error.strerror}") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise NoRelayError(f"{folder} must be a folder that is this user's alone (mode 700)")
    identity = "\n".join((flyball_version(), planner_url, job_id))
    name = hashlib.sha256(identity.encode()).hexdigest()[:16]
    socket = folder / f"{name}.sock"
    if len(os.fsencode(socket)) >= _MAX_ADDRESS_BYTES:
        raise NoRelayError(f"{folder} has too long a name for a socket; set FLYBALL_STATE_DIR")
    return MeetingPlace(socket=socket, lock=folder / f"{name}.lock")


def take_lock(lock: Path) -> int | None:
    """Hold the lock for as long as the descriptor that is returned is open; None: it is held.

    Raises:
        OSError: the file cannot be made.
    """
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
