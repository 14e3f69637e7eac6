"""`flyball doctor --transitions`: measured clock changes against the table that plans use."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.integration.command_in_process import flyball

from flyball_client.cli.doctor.transition_checks import applied_table, compared
from flyball_client.gpu._base import GPU_VARIABLE
from flyball_profiles.clock_transitions import ClockTransitions
from flyball_profiles.examples import example_profile_path
from flyball_profiles.measured_transitions import ClockFacts, MeasuredTransitions
from flyball_wire.command.command import CommandError

TABLE = ClockTransitions(
    up_p5_s=0.004,
    up_p50_s=0.005,
    up_p95_s=0.007,
    down_p5_s=0.003,
    down_p50_s=0.004,
    down_p95_s=0.005,
    call_p50_s=0.004,
    call_p95_s=0.008,
    queues_in_node=True,
)


def states(measured: ClockTransitions, table: ClockTransitions | None = TABLE) -> dict[str, str]:
    found = MeasuredTransitions(times=measured, pairs=(), clocks=(), counts_cycles=True)
    return {check.name: f"{check.state}: {check.found}" for check in compared(found, table)}


@pytest.mark.parametrize(
    ("changes", "direction", "says"),
    [
        # Within a fifth of the table's percentiles.
        ({"up_p95_s": 0.0083, "down_p5_s": 0.0026}, "up", "ok"),
        ({"up_p95_s": 0.0083, "down_p5_s": 0.0026}, "down", "ok"),
        ({"up_p95_s": 0.0085}, "up", "warning: later than in the table"),
        ({"up_p5_s": 0.001, "up_p50_s": 0.0033}, "up", "warning: other times"),
        # An early up and a late down cost no time.
        ({"up_p5_s": 0.001}, "up", "ok"),
        ({"down_p95_s": 0.02}, "down", "ok"),
        ({"down_p5_s": 0.0024}, "down", "warning: earlier than in the table"),
        ({"down_p50_s": 0.0061, "down_p95_s": 0.007}, "down", "warning: other times"),
    ],
)
def test_late_ups_and_early_downs_are_warned_of(
    changes: dict[str, Any], direction: str, says: str
) -> None:
    state, _, text = says.partition(": ")
    found = states(replace(TABLE, **changes))[f"clock changes {direction}"]
    assert found.startswith(f"{state}: p5 ")
    assert text in found


def test_calls_that_queue_unlike_in_the_table_are_warned_of() -> None:
    name = "clock changes, calls"
    assert states(TABLE)[name].startswith("ok: p50 4.0, p95 8.0 ms; those of the node queue")
    other = replace(TABLE, queues_in_node=False)
    assert states(other)[name].endswith("do not queue, unlike in the table")
    for unknown in (None, replace(TABLE, queues_in_node=None)):
        assert states(other, unknown)[name].startswith("ok: ")
    assert states(replace(TABLE, queues_in_node=None))[name] == "ok: p50 4.0, p95 8.0 ms"


def test_a_clock_that_is_not_held_is_warned_of() -> None:
    clocks = (
        ClockFacts(mhz=1410, ran_mhz=1110, limit="power"),
        ClockFacts(mhz=900, ran_mhz=900, limit=None),
    )
    measured = MeasuredTransitions(times=TABLE, pairs=(), clocks=clocks, counts_cycles=True)
    *_, last = compared(measured, TABLE)
    assert (last.name, last.state) == ("clock changes, 1410 MHz", "warning")
    assert "ran at 1110 MHz (power)" in last.found


def test_the_table_is_that_of_the_option_else_of_the_ranks_variables(tmp_path: Path) -> None:
    file = tmp_path / "changes.toml"
    one = '{ p5 = 1, p50 = 2, p95 = 3, source = "measured" }'
    file.write_text(f"[transitions]\nup_ms = {one}\ndown_ms = {one}\n")
    variables = {"FLYBALL_TRANSITIONS": str(file), "FLYBALL_GPU_TYPE": "a40"}

    def p50_ms(given: str, environ: dict[str, str]) -> float | None:
        table = applied_table(given, environ)
        return None if table is None else 1e3 * table.times.up_p50_s

    assert p50_ms("a100", variables) == pytest.approx(5.8)
    assert p50_ms(str(file), {}) == pytest.approx(2)
    assert p50_ms("", variables) == pytest.approx(2)
    assert p50_ms("", {"FLYBALL_GPU_TYPE": "a40"}) == pytest.approx(4.6)
    assert p50_ms("", {"FLYBALL_GPU_TYPE": "h200"}) is None
    assert p50_ms("", {}) is None
    with pytest.raises(CommandError, match="--transitions: the table of h200 has no clock"):
        applied_table("h200", {})
    with pytest.raises(CommandError, match=r"FLYBALL_TRANSITIONS: none\.toml: No such file"):
        applied_table("", {"FLYBALL_TRANSITIONS": "none.toml"})


@pytest.mark.slow
def test_emulated_gpus_are_as_the_table_of_an_a100_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GPU_VARIABLE, f"emulated:{example_profile_path()}")
    done = flyball("doctor", "--transitions", "a100", "--json")
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    names = ("", " up", " down", ", calls")
    assert {checks[f"clock changes{name}"]["state"] for name in names} == {"ok"}
    assert "the table is that of --transitions a100" in checks["clock changes"]["found"]


def test_what_cannot_be_measured_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GPU_VARIABLE, "emulated:none.csv")
    done = flyball("doctor", "--transitions", "--json")
    assert done.returncode == 1
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["clock changes"]["state"] == "problem"
    assert "none.csv" in checks["clock changes"]["found"]
    assert flyball("doctor", "--transitions", "--planner-only").returncode == 2
