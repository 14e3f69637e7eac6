from __future__ import annotations

import argparse

import pytest

from flyball_lab.demo import command
from flyball_lab.demo.options import MAX_MICROBATCHES, MAX_STEPS, DemoOptions
from flyball_wire.command import CommandError


@pytest.mark.parametrize(
    ("option", "values", "rule"),
    [
        ("num_steps", (1, MAX_STEPS + 1), "--steps must be from 2 to 1000, not"),
        (
            "num_microbatches",
            (0, MAX_MICROBATCHES + 1),
            "--microbatches must be from 1 to 256, not",
        ),
        ("time_scale", (0.49, 100.1, float("nan"), float("inf")), "--time-scale must be from 0.5"),
    ],
)
def test_a_size_out_of_bounds_is_refused_by_its_option(
    option: str, values: tuple[float, ...], rule: str
) -> None:
    for value in values:
        with pytest.raises(ValueError, match=rule):
            DemoOptions(**{option: value})  # type: ignore[arg-type] # of either kind


def test_the_bounds_themselves_are_taken() -> None:
    DemoOptions(num_steps=2, num_microbatches=1, time_scale=0.5)
    DemoOptions(num_steps=MAX_STEPS, num_microbatches=MAX_MICROBATCHES, time_scale=100)


def test_the_longest_demo_sees_all_of_its_steps() -> None:
    assert DemoOptions(num_steps=MAX_STEPS).max_steps <= command._ALL_STEPS


@pytest.mark.parametrize(
    "arguments", [["--steps", "1001"], ["--microbatches", "257"], ["--time-scale", "101"]]
)
def test_a_bad_size_ends_the_command_before_anything_starts(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: object, **__: object) -> int:
        raise AssertionError("the demo was started")

    monkeypatch.setattr(command, "missing_prerequisites", list)
    monkeypatch.setattr(command, "_run_in", start)
    parser = argparse.ArgumentParser()
    command.COMMAND.configure(parser)
    with pytest.raises(CommandError, match=f"^{arguments[0]} must be from"):
        command.COMMAND.run(parser.parse_args(arguments))
