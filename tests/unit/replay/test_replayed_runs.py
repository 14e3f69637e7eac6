"""Replay of runs whose truth is known: figures, intervals, and what is named."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.replay.synthetic_runs import (
    CLOCKS,
    Document,
    Truth,
    synthetic_document,
)

from flyball_profiles.stage_profile import InstructionKind
from flyball_server.replay.recorded_runs import RecordingError
from flyball_server.replay.recording_document import recording_from_document
from flyball_server.replay.replay_document import replay_document, replay_text
from flyball_server.replay.replayed_runs import Replay, replay
from flyball_server.replay.time_curves import rising

pytestmark = pytest.mark.slow

F, B = InstructionKind.FORWARD, InstructionKind.BACKWARD


def replayed(document: Document) -> Replay:
    recording = recording_from_document(document)
    return replay(recording, range(0, len(recording.runs), 2))


def test_without_noise_every_run_is_predicted_and_tail_and_blocking_power_are_found() -> None:
    of_truth = replayed(synthetic_document(Truth(tail_s=0.7, waiting_w=95.0)))
    errors = of_truth.absolute_errors
    # What is left: the prior takes a curve for a little rough.
    assert errors.largest_time < 0.01
    assert errors.largest_energy < 0.05
    assert of_truth.covered == (8, 8)
    assert of_truth.unchanged.mean_time > 5
    assert of_truth.fit.tail_s == pytest.approx(0.7, rel=1e-3)
    assert of_truth.fit.blocking_power_w == pytest.approx((95.0,) * 3, rel=0.01)


def test_a_clock_that_no_fitted_run_had_is_interpolated_and_named() -> None:
    truth = Truth()
    plans = [truth.plan(lambda *_, mhz=mhz: mhz) for mhz in (1400, 1300, 1100, 1200, 1000)]
    document = truth.document([truth.run(str(plan[0][0]), plan) for plan in plans])
    result = replay(recording_from_document(document), (0, 1, 2, 4))
    run = result.runs[3]
    assert run.notes == (
        "times interpolated, no fitted run has them: stage 0 backward 1200; stage 0 forward 1200;"
        " stage 1 backward 1200; stage 1 forward 1200; stage 2 backward 1200; stage 2 forward"
        " 1200 MHz",
    )
    assert abs(run.time_error_percent) < 0.1
    assert run.time_half_width_s > 3 * result.runs[0].time_half_width_s
    assert [run.notes for run in result.runs[:3]] == [()] * 3


def test_points_that_power_limits_are_named_and_stay_as_measured() -> None:
    truth = Truth(limit_mhz=1200)
    plans = [truth.plan(lambda *_, mhz=mhz: mhz) for mhz in (*CLOCKS, 1050)]
    document = truth.document([truth.run(str(plan[0][0]), plan) for plan in plans])
    result = replay(recording_from_document(document), range(6))
    assert {(kind, mhz) for _, kind, mhz in result.fit.limited_points()} == {
        (kind, mhz) for kind in (F, B) for mhz in (1400, 1300)
    }
    assert "limited by power" in result.notes[0]
    assert "1400" in result.notes[0]
    assert result.absolute_errors.largest_time == 0.0  # none was held out


def test_memory_bound_instructions_are_not_taken_for_limited() -> None:
    document = synthetic_document()
    for run in document["runs"]:
        for times in run["instruction_times"]:
            times["time_s_median"] = 0.1
    assert replayed(document).fit.limited_points() == ()


def test_a_run_whose_iterations_scatter_is_named() -> None:
    document = synthetic_document()
    document["runs"][3]["iteration_time_s"][2] *= 1.1
    result = replayed(document)
    noted = {run.run.name: run.notes for run in result.runs if "scatter" in " ".join(run.notes)}
    assert list(noted) == ["plan-3"]
    assert noted["plan-3"][0].startswith("iterations scatter by 4.9 %; longest 4.8")
    # The interval counts what the measured mean itself may be off.
    assert result.runs[3].time_half_width_s > 0.03 * result.runs[3].run.iterations.mean_s


def test_time_outside_of_instructions_is_named() -> None:
    document = synthetic_document(Truth(tail_s=4.0))
    for run in replayed(document).runs:
        assert "of its time (4 s) lies outside its forwards" in " ".join(run.notes)
    alone = synthetic_document()
    alone["runs"][5]["iteration_time_s"] = [t + 1 for t in alone["runs"][5]["iteration_time_s"]]
    noted = {run.run.name for run in replayed(alone).runs if "outside" in " ".join(run.notes)}
    assert noted == {"plan-5"}


def test_intervals_hold_on_noisy_runs_and_are_not_wide() -> None:
    held, times, energies, widths, errors = 0, 0, 0, [], []
    for seed in range(6):
        result = replayed(synthetic_document(noise_percent=0.4, count=20, seed=seed))
        held += len(result.held_out)
        times += result.covered[0]
        energies += result.covered[1]
        widths += [2 * run.energy_half_width_j / run.run.energy_j for run in result.held_out]
        errors += [abs(run.energy_error_percent) / 100 for run in result.held_out]
    assert times / held >= 0.8
    assert energies / held >= 0.8
    assert statistics.fmean(widths) <= 5 * statistics.fmean(errors)


def test_too_few_runs_and_runs_at_one_clock_are_refused() -> None:
    with pytest.raises(RecordingError, match="--fit takes 2 of 4 runs; at least 3"):
        replay(recording_from_document(synthetic_document(count=4)), (0, 2))
    truth = Truth()
    run = truth.run("a", truth.plan(lambda *_: 1400))
    document = truth.document([run, {**run, "name": "b"}, {**run, "name": "c"}])
    with pytest.raises(RecordingError, match="all instructions of all runs are at 1400 MHz"):
        replay(recording_from_document(document), range(3))


def test_the_document_has_the_errors_of_the_runs_and_the_text_the_same_figures() -> None:
    result = replayed(synthetic_document(noise_percent=0.3))
    document, text = replay_document(result), replay_text(result)
    assert [run["fitted"] for run in document["runs"]] == [True, False] * 8
    held_out = [run for run in document["runs"] if not run["fitted"]]
    assert document["mean_absolute_error_percent"]["energy"] == pytest.approx(
        statistics.fmean(100 * abs(r["predicted_j"] / r["measured_j"] - 1) for r in held_out)
    )
    first = document["runs"][0]
    assert document["unchanged"]["time"] == pytest.approx(
        statistics.fmean(100 * abs(first["measured_s"] / r["measured_s"] - 1) for r in held_out)
    )
    assert f"{document['mean_absolute_error_percent']['energy']:.2f} %" in text
    assert "baseline  fitted" in text
    assert "emulated" not in text
    assert "emulated" in replay_text(replayed({**synthetic_document(), "emulated": True}))


@pytest.mark.parametrize("scale", [0.01, 100.0])
def test_errors_do_not_depend_on_the_unit_of_energy(scale: float) -> None:
    document = synthetic_document(noise_percent=0.5)
    expected = replayed(document).absolute_errors.mean_energy
    for run in document["runs"]:
        run["energy_j_per_stage"] = [scale * energy for energy in run["energy_j_per_stage"]]
    assert replayed(document).absolute_errors.mean_energy == pytest.approx(expected, rel=1e-3)


def test_held_out_figures_do_not_change_their_predictions() -> None:
    document = synthetic_document(noise_percent=0.5)
    before = [run.predicted for run in replayed(document).runs]
    for run in document["runs"][1::2]:
        run["iteration_time_s"] = [3 * time_s for time_s in run["iteration_time_s"]]
        run["energy_j_per_stage"] = [3 * energy_j for energy_j in run["energy_j_per_stage"]]
        for times in run["instruction_times"]:
            times["time_s_median"] *= 3
    after = [run.predicted for run in replayed(document).runs]
    assert [run.iteration_time_s for run in after] == [run.iteration_time_s for run in before]
    assert [run.energy_j for run in after] == [run.energy_j for run in before]


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=1, max_size=20))
def test_the_closest_rising_values_rise_and_keep_the_mean(pairs: list[tuple[float, float]]) -> None:
    values, weights = (np.array(each) for each in zip(*pairs, strict=True))
    risen = rising(values, weights)
    assert (np.diff(risen) >= -1e-12).all()
    assert risen @ weights == pytest.approx(values @ weights)
    if (np.diff(values) >= 0).all():
        assert risen == pytest.approx(values)
