"""Runs that Perseus's authors recorded on real GPUs, predicted: the limits that are promised."""

from __future__ import annotations

import statistics
from functools import cache

import pytest
from tests.shared_data import needs_shared_data, recorded_runs

from flyball_server.cli.replay import read_recording
from flyball_server.replay.fit_rule import parse_fit
from flyball_server.replay.replayed_runs import Replay, replay

pytestmark = needs_shared_data

# Workload: mean absolute errors of time and energy, %, of every second run from the others.
LIMITS = {
    "gpt3-xl+a100": (0.06, 0.25),
    "bert-huge-uncased+a100": (0.25, 0.25),
    "wide-resnet101_8+a40": (0.5, 0.25),
}


@cache
def replays(rule: str = "every-second") -> dict[str, Replay]:
    found: dict[str, Replay] = {}
    for path in recorded_runs():
        recording = read_recording(path)
        names = [run.name for run in recording.runs]
        found[path.stem] = replay(recording, parse_fit(rule).chosen(names))
    return found


@pytest.mark.parametrize("workload", LIMITS)
def test_the_errors_of_held_out_plans_are_within_their_limits(workload: str) -> None:
    errors, unchanged = replays()[workload].absolute_errors, replays()[workload].unchanged
    time_limit, energy_limit = LIMITS[workload]
    assert errors.mean_time <= time_limit
    assert errors.mean_energy <= energy_limit
    assert errors.mean_time < 0.1 * unchanged.mean_time
    assert errors.mean_energy < 0.05 * unchanged.mean_energy


def test_90_percent_intervals_hold_out_of_sample_and_are_not_wide() -> None:
    held_out = [run for each in replays().values() for run in each.held_out]
    covered = [each.covered for each in replays().values()]
    assert sum(times for times, _ in covered) >= 0.8 * len(held_out)
    assert sum(energies for _, energies in covered) >= 0.8 * len(held_out)
    for each in replays().values():
        errors = each.absolute_errors
        times = [200 * run.time_half_width_s / run.run.iterations.mean_s for run in each.held_out]
        energies = [200 * run.energy_half_width_j / run.run.energy_j for run in each.held_out]
        assert statistics.fmean(times) <= 4 * errors.mean_time
        assert statistics.fmean(energies) <= 4 * errors.mean_energy


def test_few_runs_that_are_spread_are_enough_for_a_good_guess() -> None:
    for each in replays("spread:5").values():
        assert each.absolute_errors.mean_time <= 0.35
        assert each.absolute_errors.mean_energy <= 0.35


def test_backwards_at_the_highest_clocks_are_named_as_limited_by_power() -> None:
    for each in replays().values():
        limited = {
            (stage, mhz) for stage, kind, mhz in each.fit.limited_points() if kind == "backward"
        }
        highest = each.fit.workload.points.clocks_mhz[0]
        assert {stage for stage, mhz in limited if mhz == highest} == set(
            range(each.recording.num_stages)
        )
        assert min(mhz for _, mhz in limited) > 1150


def test_runs_with_an_outlying_iteration_are_named() -> None:
    scattered = [
        run.run.name
        for run in replays()["wide-resnet101_8+a40"].runs
        if any(note.startswith("iterations scatter") for note in run.notes)
    ]
    assert len(scattered) == 17
    assert "perseus-2" in scattered
    assert "perseus-3" not in scattered
