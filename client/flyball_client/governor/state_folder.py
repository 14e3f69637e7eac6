"""State folders: where lock records are kept, and which folders and files are used.

The node's folder has one folder for each user, which only that user can enter: whoever can open a
record can lock it, and whoever can write one can misstate whose a clock is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from flyball_wire.errors import FlyballError

NODE_DIR = Path("/run/flyball")
ROOT = 0
"""User ID of root."""
_RUNTIME_DIRS = Path("/run/user")
_FOLDER_NAME = "flyball"
_OTHERS = 0o077
_NO_FILE = {errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EISDIR}


class StateRefusedError(FlyballError):
    """A state folder or a record that others can change, or that is none, is not used."""


def node_state_dir(environ: Mapping[str, str]) -> Path:
    """Return the node's folder: `FLYBALL_STATE_DIR`, else /run/flyball."""
    return Path(environ.get("FLYBALL_STATE_DIR") or NODE_DIR)


def default_state_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Return this user's folder, in the node's one where this user can use it."""
    variables = os.environ if environ is None else environ
    user_id = os.geteuid()
    own = node_state_dir(variables) / str(user_id)
    if variables.get("FLYBALL_STATE_DIR") or user_id == ROOT or _can_use(own):
        return own
    runtime = variables.get("XDG_RUNTIME_DIR")
    if runtime:
        return Path(runtime) / _FOLDER_NAME
    return Path(tempfile.gettempdir()) / f"{_FOLDER_NAME}-{user_id}"


def _can_use(own: Path) -> bool:
    try:
        return own.lstat().st_uid == os.geteuid()
    except OSError:
        return os.access(own.parent, os.W_OK | os.X_OK)


def all_state_dirs(environ: Mapping[str, str]) -> dict[Path, int]:
    """Return the folders whose records this user can read, with the user of each.

    Root reads those of all users.
    """
    folders = {default_state_dir(environ): os.geteuid()}
    if os.geteuid() != ROOT:
        return folders
    folders |= user_state_dirs(node_state_dir(environ))
    if not environ.get("FLYBALL_STATE_DIR"):
        in_runtime = {path / _FOLDER_NAME: path.name for path in _RUNTIME_DIRS.glob("[0-9]*")}
        prefix = f"{_FOLDER_NAME}-"
        temporary = Path(tempfile.gettempdir()).glob(f"{prefix}[0-9]*")
        in_temporary = {path: path.name.removeprefix(prefix) for path in temporary}
        folders |= _of_users(in_runtime | in_temporary)
    return folders


def user_state_dirs(node_dir: Path) -> dict[Path, int]:
    """Return the users' folders in the node's folder, each named by its user."""
    return _of_users({path: path.name for path in node_dir.glob("[0-9]*")})


def _of_users(names: Mapping[Path, str]) -> dict[Path, int]:
    return {path: int(names[path]) for path in sorted(names) if names[path].isdecimal()}


def make_state_dir(folder: Path) -> None:
    """Create a folder of this user, and its parents.

    Raises:
        StateRefusedError: Others can replace it, in its parent.
        OSError: It cannot be created.
    """
    folder.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    check_parent(folder)
    with contextlib.suppress(FileExistsError):  # whatever it is, opening it says so
        folder.mkdir(mode=0o700)


def check_parent(folder: Path) -> None:
    """Check that only root and this user can replace a folder in its parent.

    Raises:
        StateRefusedError: Others can.
        OSError: The parent is missing.
    """
    parent = folder.parent.stat()
    is_shared = parent.st_mode & 0o022 and not parent.st_mode & stat.S_ISVTX
    if parent.st_uid not in {ROOT, os.geteuid()} or is_shared:
        raise StateRefusedError(
            f"the state folder {folder} is refused: other users can replace it in"
            f" {folder.parent}; set FLYBALL_STATE_DIR to a folder that only root or this user"
            " can write"
        )


def open_state_dir(folder: Path, owner: int | None = None) -> int:
    """Return a descriptor of a user's folder; `owner` None: this user's.

    Raises:
        StateRefusedError: It is a link or no folder, another user's, or open to others.
        OSError: It cannot be opened.
    """
    remedy = "remove it, or set FLYBALL_STATE_DIR to another folder"
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        folder_fd = os.open(folder, flags)
    except PermissionError:
        raise StateRefusedError(
            f"the state folder {folder} is refused: it belongs to user {folder.lstat().st_uid} or"
            f" cannot be read; {remedy}"
        ) from None
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise
        raise StateRefusedError(
            f"the state folder {folder} is refused: it is a link or not a folder; {remedy}"
        ) from None
    status = os.fstat(folder_fd)
    fault = ""
    if status.st_uid != (os.geteuid() if owner is None else owner):
        fault = f"it belongs to user {status.st_uid}; {remedy}"
    elif status.st_mode & _OTHERS:
        fault = f"other users can enter it; run chmod 700 {folder}"
    return _checked(folder_fd, f"the state folder {folder}", fault)


def open_state_file(folder: Path, folder_fd: int, name: str, *, is_new: bool = False) -> int:
    """Return a descriptor of a file in an opened folder, for reading and writing.

    Raises:
        StateRefusedError: It is no regular file, of another user, or open to others.
        OSError: It cannot be opened.
    """
    path = ascii(str(folder / name))[1:-1]
    # O_NONBLOCK: a FIFO is opened without waiting. Without O_TRUNC: another process may use it.
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(name, flags | (os.O_CREAT if is_new else 0), 0o600, dir_fd=folder_fd)
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise
        raise StateRefusedError(f"{path} is refused: it is not a regular file; remove it") from None
    status = os.fstat(fd)
    fault = ""
    if not stat.S_ISREG(status.st_mode):
        fault = "it is not a regular file; remove it"
    elif status.st_uid != os.fstat(folder_fd).st_uid:
        fault = f"it belongs to user {status.st_uid}, its folder to another; remove it"
    elif status.st_mode & _OTHERS:
        fault = f"other users can open it; run chmod 600 {path}"
    return _checked(fd, path, fault)


def _checked(fd: int, what: str, fault: str) -> int:
    """Return the descriptor; close it and raise if its file or folder is refused."""
    if fault:
        os.close(fd)
        raise StateRefusedError(f"{what} is refused: {fault}")
    return fd
