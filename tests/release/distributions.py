"""Check the distributions and the bill of materials that `make release` has built.

    python -m tests.release.distributions [TAG]

It ends with status 1 and one line at the first fault.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
UPLOADED, BUILT = ROOT / "dist", ROOT / "build/release"
# What the repository has and the source distribution leaves out.
LEFT_OUT = (".ci/",)
_RELATIVE_LINK = re.compile(r"\]\((?!https?:)[^)]*\)")
_VERSION_HEADING = re.compile(r"^## \[(\d[^\]]*)\]", re.MULTILINE)


class ReleaseError(Exception):
    """A fault of the release; the message says where."""


def check_release(tag: str | None) -> str:
    """Check everything, and return a line that names what may be uploaded.

    Args:
        tag: the tag of the release, `vVERSION`; None: not tagged yet.

    Raises:
        ReleaseError: something is wrong.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    version: str = project["project"]["version"]
    if tag not in (None, f"v{version}"):
        raise ReleaseError(f"pyproject.toml: the version is {version}, the tag {tag}")
    check_changelog(version)
    wheel, source = UPLOADED / f"flyball-{version}-py3-none-any.whl", _source(version)
    found = {file.name for file in UPLOADED.iterdir()}
    if found != {wheel.name, source.name}:
        raise ReleaseError(f"dist/: {sorted(found)}, not just {wheel.name} and {source.name}")
    tracked = tracked_files()
    check_source(source, tracked)
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    check_wheel(wheel, packages, tracked)
    if wheel.read_bytes() != (BUILT / "from-tree" / wheel.name).read_bytes():
        raise ReleaseError("the source distribution and the working tree make different wheels")
    metadata = metadata_of(wheel)
    check_description(metadata)
    num_components = check_materials(BUILT / "flyball.cdx.json", version, metadata)
    return f"release: {wheel.name}, {source.name}, bill of {num_components} materials"


def check_changelog(version: str) -> None:
    """Check that the newest version with an entry is this one.

    Raises:
        ReleaseError: it is another.
    """
    versions = _VERSION_HEADING.findall((ROOT / "CHANGELOG.md").read_text())
    if versions[:1] != [version]:
        raise ReleaseError(f"CHANGELOG.md: its newest version is not {version}")


def tracked_files() -> set[str]:
    """Return the paths of all files of the repository."""
    listed = subprocess.run(
        ("git", "ls-files", "-z"), cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(filter(None, listed.stdout.split("\0")))


def check_source(source: Path, tracked: set[str]) -> None:
    """Check that it holds the repository's files, each as it is, and nothing else.

    Raises:
        ReleaseError: a file is missing, foreign or different.
    """
    with tarfile.open(source) as archive:
        files = {
            member.name.partition("/")[2]: archive.extractfile(member)
            for member in archive
            if member.isfile()
        }
        wanted = {name for name in tracked if not name.startswith(LEFT_OUT)}
        _check_same(source.name, wanted | {"PKG-INFO"}, set(files))
        for name in wanted:
            packed = files[name]
            if packed is None or packed.read() != (ROOT / name).read_bytes():
                raise ReleaseError(f"{source.name}: {name} is not the one of the working tree")


def check_wheel(wheel: Path, packages: list[str], tracked: set[str]) -> None:
    """Check that it holds the packages' tracked files and the licences, and nothing else.

    Raises:
        ReleaseError: a file is missing or foreign.
    """
    names = set(zipfile.ZipFile(wheel).namelist())
    described = {name for name in names if ".dist-info/" in name}
    wanted = {
        name.removeprefix(f"{Path(package).parent}/")
        for package in packages
        for name in tracked
        if name.startswith(f"{package}/")
    }
    _check_same(wheel.name, wanted, names - described)
    licences = {name.partition("/licenses/")[2] for name in described if "/licenses/" in name}
    _check_same(wheel.name, {name for name in tracked if Path(name).name == "LICENSE"}, licences)


def metadata_of(wheel: Path) -> Message:
    """Return the core metadata."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(archive.read(name))


def check_description(metadata: Message) -> None:
    """Check that an index can show it: no link or picture of the repository.

    Raises:
        ReleaseError: one is left.
    """
    link = _RELATIVE_LINK.search(str(metadata.get_payload()))
    if link is not None:
        raise ReleaseError(f"README.md: {link.group()} leads nowhere on an index's page")


def check_materials(file: Path, version: str, metadata: Message) -> int:
    """Check that the bill names Flyball, all that `flyball[server]` requires, and no tools.

    Returns:
        number of components beside Flyball.

    Raises:
        ReleaseError: a component is missing, foreign, or without version or address.
    """
    bill = json.loads(file.read_text())
    root = bill["metadata"]["component"]
    if (root["name"], root["version"]) != ("flyball", version):
        raise ReleaseError(f"{file.name}: of {root['name']} {root['version']}, not of this release")
    components: list[dict[str, Any]] = bill["components"]
    for component in components:
        if not component.get("version") or not component.get("purl"):
            raise ReleaseError(f"{file.name}: {component['name']} without version or purl")
    named = {canonicalize_name(component["name"]) for component in components}
    required = map(Requirement, metadata.get_all("Requires-Dist", []))
    wanted = {
        canonicalize_name(one.name)
        for one in required
        if one.marker is None or one.marker.evaluate({"extra": "server"})
    }
    if not wanted <= named:
        raise ReleaseError(f"{file.name}: lacks {sorted(wanted - named)}")
    if tools := named & {"pip", "setuptools", "pytest", "torch"}:
        raise ReleaseError(f"{file.name}: has {sorted(tools)}, which no planner needs")
    return len(components)


def _source(version: str) -> Path:
    return UPLOADED / f"flyball-{version}.tar.gz"


def _check_same(where: str, wanted: set[str], found: set[str]) -> None:
    if missing := sorted(wanted - found):
        raise ReleaseError(f"{where}: lacks {missing[0]} ({len(missing)} files)")
    if foreign := sorted(found - wanted):
        raise ReleaseError(f"{where}: has {foreign[0]}, not in the repository ({len(foreign)})")


if __name__ == "__main__":
    try:
        print(check_release(sys.argv[1] if len(sys.argv) > 1 else None))
    except ReleaseError as error:
        sys.exit(f"release: {error}")
