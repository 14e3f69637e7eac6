"""A class name says which class is meant: no two public classes of the product share one."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_PACKAGES = sorted(
    package
    for folder in ("client", "integrations", "profiles", "server")
    for package in (_ROOT / folder).glob("flyball_*")
    if package.is_dir()
)


def test_no_public_class_name_is_defined_twice() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for package in _PACKAGES:
        for file in sorted(package.rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(f"{file.relative_to(_ROOT)}:{node.lineno}")
    assert len(places) > 100
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
