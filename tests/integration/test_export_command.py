"""`flyball export` from the command line: the trace file, what is printed, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.integration.command_in_process import (
    document_of,
    flyball,
    refusal,
    run_apart,
    two_pipelines,
)

ASKED = ("--microbatches", "2", "--blocking-power", "5", "--policy", "envelope")


def trace_in(path: Path) -> dict[str, Any]:
    """A file that must be JSON as RFC 8259 has it: no NaN, no Infinity."""
    text = path.read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text, parse_constant=pytest.fail)
    return document


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """Two pipelines of two equal stages."""
    return two_pipelines(tmp_path)


@pytest.fixture
def plan(profile: Path, tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    assert flyball("plan", profile, *ASKED, "-o", path).returncode == 0
    return path


def test_the_trace_has_the_plan_that_simulate_shows(
    profile: Path, plan: Path, tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    done = run_apart("export", profile, plan, "--chrome-trace", path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{path}: 8 instructions (predicted), ")
    simulated = document_of("simulate", profile, plan)
    trace = trace_in(path)
    assert trace["otherData"]["energy_j"] == simulated["energy_j"]
    instructions = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    ends_us = max(event["ts"] + event["dur"] for event in instructions)
    assert ends_us == simulated["iteration_time_s"] * 1e6 == 9e6
    critical = [event["name"] for event in instructions if event["args"]["on_critical_path"]]
    assert critical == ["F0", "F0", "B0", "F1", "B1", "B1"]


def test_clocks_that_come_late_stand_where_they_take_effect(
    profile: Path, plan: Path, tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    late = ("--transition-ms", "250", "--chrome-trace", path)
    assert flyball("export", profile, plan, *late).returncode == 0
    events = trace_in(path)["traceEvents"]
    clocks = [
        (event["ts"], event["args"]["MHz"]) for event in events if event["name"] == "stage 0 clock"
    ]
    # F1's clock is requested as F0 ends, B1's as B0 ends.
    simulated = document_of("simulate", profile, plan, "--transition-ms", "250")
    assert clocks[:2] == [(0, 1410), (1_250_000, 1000)]
    assert [mhz for _, mhz in clocks] == [1410, 1000, 1410]
    late_ms = [event["args"]["late_ms"] for event in events if event["ph"] == "X"]
    assert late_ms.count(250.0) == 1
    assert sum(late_ms) == pytest.approx(simulated["late_s"] * 1e3) == 250.0


def test_data_parallel_pipelines_are_processes_and_have_the_tail_and_the_transfers_given(
    profile: Path, plan: Path, tmp_path: Path
) -> None:
    path, separate = tmp_path / "trace.json", tmp_path / "separate.json"
    given = ("--tail-ms", "500", "--transfer-ms", "250")
    made = flyball("plan", profile, *ASKED, "--data-parallel", "separate", "-o", separate)
    assert made.returncode == 0
    for one in (plan, separate):
        assert flyball("export", profile, one, *given, "--chrome-trace", path).returncode == 0
        trace = trace_in(path)
        assert trace["otherData"]["iteration_time_s"] == 10.0
        ends_us = [event["ts"] + event["dur"] for event in trace["traceEvents"] if "dur" in event]
        assert max(ends_us) == 9.5e6
    events = trace["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["pipeline, dp_rank 0 (predicted)", "pipeline, dp_rank 1 (predicted)"]


def test_what_it_cannot_use_is_refused_in_one_line_and_nothing_is_written(
    profile: Path, plan: Path, tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    other_clocks = tmp_path / "other.csv"
    other_clocks.write_text(
        profile.read_text(encoding="utf-8").replace(",1000,", ",900,"), encoding="utf-8"
    )
    wanted = ("--chrome-trace", path)

    def said(*arguments: str | Path) -> str:
        return refusal(flyball("export", *arguments))

    assert "--chrome-trace" in said(profile, plan)
    assert f"{tmp_path / 'no.json'}: " in said(profile, tmp_path / "no.json", *wanted)
    assert "1000 MHz, which the profile does not have" in said(other_clocks, plan, *wanted)
    three = ("--blocking-power", "1,2,3")
    assert "--blocking-power: 3 values" in said(profile, plan, *wanted, *three)
    assert not path.exists()
