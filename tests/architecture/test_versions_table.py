"""The documentation's table of versions says what the build pins and what the extras allow."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_ROW = re.compile(r"^\| ([\w-]+) \| ([^|]+) \|(?: `([\w-]+)`: `([^`]+)`)? \|$", re.MULTILINE)
_EXTRAS = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
_MAKEFILE = dict(
    re.findall(r"^(\w+) := (?:torch==)?([\d.]+)$", (_ROOT / "Makefile").read_text(), re.MULTILINE)
)
_PINNED_IN_DEV = dict(
    requirement.split("==") for requirement in _EXTRAS["dev"] if "==" in requirement
)
_PINS = {
    "torch": _MAKEFILE["TORCH"],
    "deepspeed": f"{_MAKEFILE['OLDEST_DEEPSPEED']}, and the newest",
    "megatron-core": _PINNED_IN_DEV["megatron-core"],
    "transformers": "the newest",
    "torchtitan": _MAKEFILE["TORCHTITAN_VERSION"],
    "zeus": _MAKEFILE["ZEUS_VERSION"],
}


def _rows() -> dict[str, tuple[str, str, str]]:
    _, _, section = (_ROOT / "docs" / "frameworks.md").read_text().partition("\n## Versions\n")
    return {
        package: (pinned, extra, allowed)
        for package, pinned, extra, allowed in _ROW.findall(section)
    }


def test_the_table_has_every_framework() -> None:
    assert _rows().keys() == _PINS.keys()


def test_the_newest_versions_are_those_that_the_build_tries() -> None:
    page = (_ROOT / "docs" / "frameworks.md").read_text()
    _, _, below = page.partition("`make test-newest` runs ")
    tried, _, _ = below.partition(".\n")
    versions = (
        f"torch {_MAKEFILE['NEWEST_TORCH']}, with torchtitan {_MAKEFILE['NEWEST_TORCHTITAN']}"
    )
    assert tried.endswith(versions)


@pytest.mark.parametrize("package", _PINS)
def test_a_row_says_what_is_pinned_and_allowed(package: str) -> None:
    pinned, extra, allowed = _rows()[package]
    assert pinned == _PINS[package]
    assert not extra or allowed in _EXTRAS[extra]
    assert package not in _PINNED_IN_DEV or _PINNED_IN_DEV[package] == pinned
