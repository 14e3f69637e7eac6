"""Replay of runs whose truth is known: figures, intervals, and what is named."""

from __future__ import annotations

import statistics

import pytest
from tests.unit.replay.synthetic_runs import Document, Truth, recording_of, synthetic_document

from flyball_server.cli.replay import replay_text
from flyball_server.replay.recorded_runs import RecordingError
from flyball_server.replay.replayed_runs import Replay, fitted_places, replay
from flyball_server.replay.runs_fit import RecordedWorkload, RunsFit, fit_runs


def replayed(document: Document) -> Replay:
    recording = recording_of(document)
    return replay(recording, range(0, len(recording.runs), 2))


def fitted(document: Document) -> RunsFit:
    recording = recording_of(document)
    return fit_runs(RecordedWorkload.of_recording(recording), recording.runs[::2])


def test_without_noise_every_run_is_predicted_and_tail_and_blocking_power_are_found() -> None:
    of_truth = replayed(synthetic_document(Truth(tail_s=0.7, waiting_w=95.0)))
    errors = of_truth.largest_absolute_error_percent
    # What is left: the prior takes a curve for a little rough.
    assert errors.time < 0.01
    assert errors.energy < 0.05
    assert of_truth.covered[1] == 8
    assert of_truth.unchanged.time > 5
    assert of_truth.tail_s == pytest.approx(0.7, rel=1e-3)
    assert of_truth.blocking_power_w == pytest.approx((95.0,) * 3, rel=0.01)


def test_a_clock_that_no_fitted_run_had_is_interpolated_and_named() -> None:
    truth = Truth()
    plans = [truth.plan(lambda *_, mhz=mhz: mhz) for mhz in (1400, 1300, 1100, 1200, 1000)]
    document = truth.document([truth.run(str(plan[0][0]), plan) for plan in plans])
    result = replay(recording_of(document), (0, 1, 2, 4))
    run = result.runs[3]
    assert run.notes == (
        "times interpolated, no fitted run has them: stage 0 backward 1200; stage 0 forward 1200;"
        " stage 1 backward 1200; stage 1 forward 1200; stage 2 backward 1200; stage 2 forward"
        " 1200 MHz",
    )
    assert abs(run.time_error_percent) < 0.1
    assert [run.notes for run in result.runs[:3]] == [()] * 3


def test_a_missing_time_is_between_the_stages_own_line_and_the_shape_of_the_others() -> None:
    """At 1200 MHz all GPUs are limited by power, so a line to 1000 MHz is too high."""
    truth = Truth(limit_mhz=1200)
    others = truth.plan(lambda *_: 1200)
    others[0] = [1000] * len(others[0])
    plans = [truth.plan(lambda *_, mhz=mhz: mhz) for mhz in (1400, 1000)]
    document = truth.document(
        [truth.run(str(place), p) for place, p in enumerate([*plans, others])]
    )
    fit = fit_runs(
        RecordedWorkload.of_recording(recording_of(document)), recording_of(document).runs
    )
    at_1200 = fit.workload.clocks_mhz.index(1200)
    highest_s, lowest_s = (truth.time_s(0, "forward", mhz) for mhz in (1200, 1000))
    share = (1 / 1200 - 1 / 1400) / (1 / 1000 - 1 / 1400)
    line_s = highest_s + share * (lowest_s - highest_s)
    assert fit.time_s[0, at_1200] == pytest.approx((line_s * highest_s) ** 0.5)
    assert fit.time_s[1, at_1200] == pytest.approx(truth.time_s(1, "forward", 1200))


def test_a_run_in_other_conditions_spoils_neither_times_nor_energies() -> None:
    expected = replayed(synthetic_document(noise_percent=0.1)).mean_absolute_error_percent
    document = synthetic_document(noise_percent=0.1)
    run = document["runs"][4]
    run["iteration_time_s"] = [1.09 * time_s for time_s in run["iteration_time_s"]]
    run["energy_j_per_stage"] = [1.05 * energy_j for energy_j in run["energy_j_per_stage"]]
    assert fitted(document).is_alike.tolist() == [True, True, False, *[True] * 5]
    result = replayed(document)
    (note,) = result.runs[4].notes
    assert note.endswith("and it is left out of the fit")
    assert result.mean_absolute_error_percent.time < 0.05 + expected.time
    assert result.mean_absolute_error_percent.energy < 0.15 + expected.energy


def test_a_run_whose_iterations_scatter_is_named() -> None:
    document = synthetic_document()
    document["runs"][3]["iteration_time_s"][2] *= 1.1
    result = replayed(document)
    noted = {run.name: run.notes for run in result.runs if "scatter" in " ".join(run.notes)}
    assert list(noted) == ["plan-3"]
    assert noted["plan-3"][0].startswith("iterations scatter by 4.9 %; longest 4.8")
    # The interval counts what the measured mean itself may be off.
    run = result.runs[3]
    assert run.predicted_s_interval[1] - run.predicted_s > 0.03 * run.measured_s


def test_intervals_hold_on_noisy_runs_and_are_not_wide() -> None:
    held, times, energies, widths, errors = 0, 0, 0, [], []
    for seed in range(4):
        result = replayed(synthetic_document(noise_percent=0.4, count=20, seed=seed))
        held += len(result.held_out)
        times += result.covered[0]
        energies += result.covered[1]
        for run in result.held_out:
            low, high = run.predicted_j_interval
            widths.append((high - low) / run.measured_j)
            errors.append(abs(run.energy_error_percent) / 100)
    assert times / held >= 0.85
    assert energies / held >= 0.85
    assert statistics.fmean(widths) <= 5 * statistics.fmean(errors)


def test_too_few_runs_and_runs_at_one_clock_are_refused() -> None:
    with pytest.raises(RecordingError, match="--fit takes 2 of 4 runs; at least 3"):
        replay(recording_of(synthetic_document(count=4)), (0, 2))
    truth = Truth()
    run = truth.run("a", truth.plan(lambda *_: 1400))
    document = truth.document([run, {**run, "name": "b"}, {**run, "name": "c"}])
    with pytest.raises(RecordingError, match="all instructions of all runs are at 1400 MHz"):
        replay(recording_of(document), range(3))


def test_the_figures_are_those_of_the_runs_and_the_text_has_them() -> None:
    result = replayed(synthetic_document(noise_percent=0.3))
    text = replay_text(result)
    assert [run.fitted for run in result.runs] == [True, False] * 8
    mean = result.mean_absolute_error_percent
    assert mean.energy == pytest.approx(
        statistics.fmean(100 * abs(r.predicted_j / r.measured_j - 1) for r in result.held_out)
    )
    first = result.runs[0]
    assert result.unchanged.time == pytest.approx(
        statistics.fmean(100 * abs(first.measured_s / r.measured_s - 1) for r in result.held_out)
    )
    assert f"{mean.energy:.2f} %" in text
    assert "baseline  fitted" in text
    assert "emulated" not in text
    assert "emulated" in replay_text(replayed({**synthetic_document(), "emulated": True}))


@pytest.mark.parametrize("scale", [0.01, 100.0])
def test_errors_do_not_depend_on_the_unit_of_energy(scale: float) -> None:
    document = synthetic_document(noise_percent=0.5)
    expected = replayed(document).mean_absolute_error_percent.energy
    for run in document["runs"]:
        run["energy_j_per_stage"] = [scale * energy for energy in run["energy_j_per_stage"]]
    assert replayed(document).mean_absolute_error_percent.energy == pytest.approx(
        expected, rel=1e-3
    )


# ------------------------------------------------------------------ choice of runs by `--fit`


NAMES = ("baseline", "a", "b", "c", "d", "e")


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("every-second", (0, 2, 4)),
        ("all", (0, 1, 2, 3, 4, 5)),
        ("spread:2", (0, 5)),
        ("spread:3", (0, 2, 5)),
        ("spread:6", (0, 1, 2, 3, 4, 5)),
        ("names:d,baseline", (0, 4)),
        ("names: a , a", (1,)),
    ],
)
def test_a_rule_takes_these_places(text: str, places: tuple[int, ...]) -> None:
    assert fitted_places(text, NAMES) == places


@pytest.mark.parametrize(
    "text", ["", "half", "spread", "spread:", "spread:1", "spread:-3", "spread:x", "names:",
             "names:a,,b", "every-second:2", "spread:" + "9" * 20]
)  # fmt: skip
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(RecordingError, match="known: every-second, spread:5"):
        fitted_places(text, NAMES)


def test_a_run_that_is_not_there_is_named() -> None:
    with pytest.raises(RecordingError, match="run z: --fit names an unknown run"):
        fitted_places("names:a,z", NAMES)


def test_more_runs_than_there_are_cannot_be_spread() -> None:
    with pytest.raises(RecordingError, match="spread:7 of 6 runs"):
        fitted_places("spread:7", NAMES)
