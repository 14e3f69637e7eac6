"""Import contracts are kept, and no two public classes of the product share a name."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_PACKAGES = sorted(
    package
    for folder in ("client", "integrations", "profiles", "server")
    for package in (_ROOT / folder).glob("flyball_*")
    if package.is_dir()
)
_CLASS = re.compile(r"^ *class ([A-Z]\w*)[(:]", re.MULTILINE)


def test_no_public_class_name_is_defined_twice() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for package in _PACKAGES:
        for file in sorted(package.rglob("*.py")):
            for name in _CLASS.findall(file.read_text(encoding="utf-8")):
                places[name].append(str(file.relative_to(_ROOT)))
    assert len(places) > 100
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_every_import_contract_is_kept() -> None:
    checked = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
