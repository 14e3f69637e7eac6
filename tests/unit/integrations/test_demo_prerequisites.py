from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flyball_integrations.demo import prerequisites
from flyball_integrations.demo.prerequisites import child_environment, missing_prerequisites

pytest.importorskip("deepspeed", reason="needs the extra 'demo'")


def _folder_with(tmp_path: Path, *tools: str) -> str:
    for tool in tools:
        file = tmp_path / tool
        file.write_text("#!/bin/sh\n")
        file.chmod(0o755)
    return str(tmp_path)


def test_a_compiler_that_is_on_path_is_not_missing(tmp_path: Path) -> None:
    path = _folder_with(tmp_path, "g++", "ninja")

    assert not [line for line in missing_prerequisites({"PATH": path}) if "g++" in line]
    assert child_environment({"PATH": path})["CXX"] == "g++"


def test_a_missing_compiler_is_named(tmp_path: Path) -> None:
    path = _folder_with(tmp_path, "ninja")

    assert [line for line in missing_prerequisites({"PATH": path}) if "g++" in line]


def test_a_missing_package_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _folder_with(tmp_path, "g++", "ninja")
    monkeypatch.setattr(prerequisites, "find_spec", lambda name: None if name == "rich" else name)

    assert missing_prerequisites({"PATH": path}) == [
        "rich (of the extra 'demo': pip install '.[demo]' in a clone of Flyball)"
    ]


def test_the_compiler_that_the_user_names_wins(tmp_path: Path) -> None:
    path = _folder_with(tmp_path, "c++", "my-c++")

    assert child_environment({"PATH": path, "CXX": "my-c++"})["CXX"] == "my-c++"
    assert any("g++" in line for line in missing_prerequisites({"PATH": path, "CXX": "absent-c++"}))


def test_environments_and_compilers_do_not_share_what_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"PATH": _folder_with(tmp_path, "c++", "g++", "ninja")}

    def folder(**more: str) -> str:
        return child_environment(environ | more)["TORCH_EXTENSIONS_DIR"]

    own, others_compiler = folder(), folder(CXX="g++")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "another"))

    assert len({own, others_compiler, folder()}) == 3
    assert folder() == folder()


def test_the_demo_is_not_led_astray_by_another_planner_or_launcher() -> None:
    environment = child_environment(
        {
            "FLYBALL_TOKEN": "secret",
            "FLYBALL_DATABASE": "x",
            "RANK": "3",
            "LOCAL_SIZE": "4",
            "A": "b",
        }
    )

    assert not [name for name in environment if name.startswith("FLYBALL_")]
    assert "RANK" not in environment
    assert "LOCAL_SIZE" not in environment
    assert environment["A"] == "b"
    assert environment["DS_ACCELERATOR"] == "cpu"
