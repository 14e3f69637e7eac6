"""A class name says which class is meant: no two public classes of the product share one."""

from __future__ import annotations

import re
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
