"""`flyball profile online` against a planner: every state, the file, and what can be wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.integration.command_in_process import Done, flyball, refusal
from tests.planner.live import LivePlanner
from tests.planner.samples import profile_csv

from flyball_profiles.stage_profile_csv import parse_stage_profile
from flyball_wire.online_profiling import ProbedPoint, ProfilingResult, ProfilingState

Online = Callable[..., Done]


@pytest.fixture
def online(planner: LivePlanner) -> Online:
    return partial(flyball, "profile", "online", "job", "--planner", str(planner.http.base_url))


def point(frequency_mhz: int, num_probes: int) -> ProbedPoint:
    return ProbedPoint(
        stage=0,
        instruction="forward",
        chunk=0,
        frequency_mhz=frequency_mhz,
        time_s=0.1,
        time_error_s=0.0005,
        energy_j=20.0,
        energy_error_j=0.3,
        num_probes=num_probes,
    )


def test_a_job_with_a_given_profile_says_so_and_its_profile_can_be_kept(
    planner: LivePlanner, online: Online, tmp_path: Path
) -> None:
    planner.put_planned_job()
    file = tmp_path / "kept.csv"
    done = online("-o", file)
    assert done.returncode == 0
    assert "the profile was given" in done.stdout
    assert parse_stage_profile(file.read_text()) == parse_stage_profile(profile_csv())
    assert "exists already; --force overwrites it" in refusal(online("-o", file))


def test_what_was_found_is_shown_with_its_errors_and_called_emulated(
    planner: LivePlanner, online: Online, tmp_path: Path
) -> None:
    planner.put_job(profiling="online").raise_for_status()
    assert "waiting for all ranks to register" in online().stdout
    assert "job has no profile yet" in refusal(online("-o", tmp_path / "none.csv"))
    assert not (tmp_path / "none.csv").exists()
    result = ProfilingResult(
        state=ProfilingState.FINISHED,
        num_steps=150,
        points=(point(1410, 900), point(1395, 0)),
        blocking_power_w=(83.0, 84.0),
        blocking_power_error_w=(0.5, 0.6),
        largest_slowdown=0.08,
        extra_time_s=12.0,
        extra_energy_j=-500.0,
    )
    with planner.state.services.store.writing("job") as writer:
        writer.save_loop_state(writer.find_loop_state("job").evolve(profiling=result))
    done = online()
    out = done.stdout
    assert done.returncode == 0
    assert "online profiling of job (emulated): finished" in out
    assert "slowest step +8.0 % against the highest clocks (limit +10.0 %)" in out
    assert "it added +12.0 s and -500 J" in out
    assert "stage 1: blocking power 84.00 W +- 0.60" in out
    (line,) = [line for line in out.splitlines() if "0 forward" in line]
    assert line.split() == ["0", "forward", "1410..1395", "1/2", "0.50", "1.50"]
    document = json.loads(online("--json").stdout)
    assert document["points"][1]["num_probes"] == 0
    assert (document["state"], document["output"]) == ("finished", None)
