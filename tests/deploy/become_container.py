"""Process 1 of a container: makes its mounts, gives up every right, becomes the command.

Run by container.py in namespaces that are new; nothing that is mounted here is seen outside.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TypedDict

_STASH = Path("/mnt")


class Plan(TypedDict):
    """Settings of the container: see container.py's `container`.

    Attributes:
        binds: by where it is on this machine, where it is in the container.
        kept: folders that must stay where they are, whatever is mounted above them.
        writable: folders that become a tmpfs of the user's.
        user: `UID`, `GID`.
        folder: the working folder.
        command: with arguments.
    """

    binds: dict[str, str]
    kept: list[str]
    writable: list[str]
    user: list[str]
    folder: str
    command: list[str]


def become(plan: Plan) -> None:
    """Does not come back."""
    subprocess.run(("ip", "link", "set", "lo", "up"), check=True)
    kept = _stash(plan["kept"])
    for top in {"/".join(target.split("/")[:2]) for target in plan["binds"].values()}:
        _mount("-t", "tmpfs", "tmpfs", top)
    for folder in plan["writable"]:
        if not Path(folder).exists():
            # Made on a tmpfs: this is still the machine's own file system.
            _mount("-t", "tmpfs", "tmpfs", str(Path(folder).parent))
            Path(folder).mkdir()
        uid, gid = plan["user"]
        # As an engine mounts them: nothing on it can be executed.
        options = f"noexec,nosuid,nodev,uid={uid},gid={gid},mode=0700"
        _mount("-t", "tmpfs", "-o", options, "tmpfs", folder)
    for folder in kept.values():
        closed = _closed_folder_above(folder, int(plan["user"][0]))
        if closed is not None:
            _mount("-t", "tmpfs", "-o", "mode=0755", "tmpfs", closed)
    for source, target in {**kept, **plan["binds"]}.items():
        place = Path(target)
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.mkdir() if Path(source).is_dir() else place.touch()
        _mount("--bind", source, target)
        _mount("-o", "remount,bind,ro", target)
    _mount("-o", "remount,bind,ro", "/")
    os.chdir(plan["folder"])
    os.execvp(plan["command"][0], plan["command"])  # noqa: S606 - no shell is wanted


def _stash(folders: list[str]) -> dict[str, str]:
    """Bind each aside: where it is then, and where it belongs."""
    _mount("-t", "tmpfs", "tmpfs", str(_STASH))
    places = {str(_STASH / str(i)): folder for i, folder in enumerate(folders)}
    for place, folder in places.items():
        Path(place).mkdir()
        _mount("--bind", folder, place)
    return places


def _closed_folder_above(folder: str, uid: int) -> str | None:
    """The topmost one that the user may not pass through, as /root."""
    for parent in reversed(Path(folder).parents):
        status = parent.stat() if parent.exists() else None
        if status is not None and not status.st_mode & 0o001 and status.st_uid != uid:
            return str(parent)
    return None


def _mount(*arguments: str) -> None:
    subprocess.run(("mount", *arguments), check=True)


if __name__ == "__main__":
    become(json.loads(sys.argv[1]))
