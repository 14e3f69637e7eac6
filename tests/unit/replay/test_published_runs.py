"""Runs that Perseus's authors recorded on real GPUs, predicted: the limits that are promised."""

from __future__ import annotations

from functools import cache

import pytest
from tests.shared_data import needs_shared_data, recorded_runs

from flyball_server.cli.replay import read_recording
from flyball_server.replay.replayed_runs import Replay, fitted_places, replay

pytestmark = needs_shared_data

# RecordedWorkload: mean absolute errors of time and energy, %, of every second run from the others.
LIMITS = {
    "gpt3-xl+a100": (0.06, 0.25),
    "bert-huge-uncased+a100": (0.2, 0.2),
    "bert-huge-uncased+a40": (0.2, 0.2),
    "wide-resnet101_8+a40": (0.5, 0.25),
}


@cache
def replays(rule: str = "every-second") -> dict[str, Replay]:
    found: dict[str, Replay] = {}
    for path in recorded_runs():
        recording = read_recording(path)
        names = [run.name for run in recording.runs]
        found[path.stem] = replay(recording, fitted_places(rule, names))
    return found


@pytest.mark.parametrize("workload", LIMITS)
def test_the_errors_of_held_out_plans_are_within_their_limits(workload: str) -> None:
    replayed = replays()[workload]
    errors, unchanged = replayed.mean_absolute_error_percent, replayed.unchanged
    time_limit, energy_limit = LIMITS[workload]
    assert errors.time <= time_limit
    assert errors.energy <= energy_limit
    assert errors.time < 0.1 * unchanged.time
    assert errors.energy < 0.05 * unchanged.energy


def test_90_percent_intervals_hold_out_of_sample_and_are_not_wide() -> None:
    held_out = [run for each in replays().values() for run in each.held_out]
    covered = [each.covered for each in replays().values()]
    assert sum(times for times, _ in covered) >= 0.85 * len(held_out)
    assert sum(energies for _, energies in covered) >= 0.85 * len(held_out)
    # Of normal errors with a known deviation the interval is 4.1 mean errors wide, and by Student's
    # t of some 15 runs that are left out 4.4.
    times = [run.predicted_s_interval[1] / run.predicted_s - 1 for run in held_out]
    energies = [run.predicted_j_interval[1] / run.predicted_j - 1 for run in held_out]
    assert 200 * sum(times) <= 5 * sum(abs(run.time_error_percent) for run in held_out)
    assert 200 * sum(energies) <= 5 * sum(abs(run.energy_error_percent) for run in held_out)


def test_few_runs_that_are_spread_are_enough_for_a_good_guess() -> None:
    for each in replays("spread:5").values():
        assert each.mean_absolute_error_percent.time <= 0.35
        assert each.mean_absolute_error_percent.energy <= 0.35


def test_a_run_in_unknown_conditions_is_left_out_and_named() -> None:
    named = {
        (workload, run.name)
        for workload, each in replays().items()
        for run in each.runs
        if any("is left out of the fit" in note for note in run.notes)
    }
    assert named == {("bert-huge-uncased+a40", "envpipe")}


def test_runs_with_an_outlying_iteration_are_named() -> None:
    scattered = [
        run.name
        for run in replays()["wide-resnet101_8+a40"].runs
        if any(note.startswith("iterations scatter") for note in run.notes)
    ]
    assert len(scattered) == 17
    assert "perseus-2" in scattered
    assert "perseus-3" not in scattered
