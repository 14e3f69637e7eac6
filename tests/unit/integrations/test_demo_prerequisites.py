from __future__ import annotations

import pytest

from flyball_lab.demo import options
from flyball_lab.demo.options import child_environment, missing_prerequisites

pytest.importorskip("deepspeed", reason="needs the extra 'demo'")


def test_where_everything_is_nothing_is_missing() -> None:
    assert missing_prerequisites() == []


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "find_spec", lambda name: None if name == "rich" else name)

    assert missing_prerequisites() == [
        "rich (of the extra 'demo': pip install '.[demo]' in a clone of Flyball)"
    ]


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
