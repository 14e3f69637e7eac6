"""Predicted savings: held to the truth, and no further from the runs than the runs reach."""

from __future__ import annotations

import numpy as np
import pytest
from tests.shared_data import needs_shared_data, recorded_runs
from tests.unit.replay.synthetic_runs import (
    CLOCKS,
    Document,
    Truth,
    recording_of,
    synthetic_document,
)

from flyball_server.cli.replay import read_recording
from flyball_server.planning.model.array_dag import FloatArray
from flyball_server.replay.predicted_saving import LEVERAGES, PlainRegression, predicted_saving
from flyball_server.replay.recorded_runs import Recording, RecordingError
from flyball_server.replay.runs_fit import RecordedWorkload, RunsFit, fit_runs

TRUTH = Truth(num_stages=3, num_microbatches=6)


def fit_of(recording: Recording) -> RunsFit:
    return fit_runs(RecordedWorkload.of_recording(recording), recording.runs)


def alike_document() -> Document:
    """Runs in which all instructions have the same clock."""
    return TRUTH.document(
        [TRUTH.run(str(mhz), TRUTH.plan(lambda *_, mhz=mhz: mhz)) for mhz in (*CLOCKS, 1150, 1050)]
    )


def least_squares(fit: RunsFit, load: FloatArray, stage: int) -> tuple[float, float]:
    """Leverage in units of the largest run's, and energy in J, by least squares written anew."""
    clocks = np.array(fit.workload.clocks_mhz) / 1000
    num = len(clocks)

    def features(of_stage: FloatArray) -> FloatArray:
        kinds = of_stage[:num], of_stage[num : 2 * num]
        sums = [of_kind @ clocks**power for of_kind in kinds for power in (1, 2)]
        return np.array([1, *sums, of_stage[-1]])

    alike = np.flatnonzero(fit.is_alike)
    design = np.array([features(fit.loads[run, stage]) for run in alike])
    energy_j = np.array([fit.fitted[run].energy_j_per_stage[stage] for run in alike])
    # Scaled and orthogonal: the leverages are the rows' squared lengths.
    scale = np.abs(design).max(axis=0)
    orthogonal, triangle = np.linalg.qr(design / scale)
    own = np.linalg.solve(triangle.T, features(load[stage]) / scale)
    largest = np.square(orthogonal).sum(axis=1).max()
    return float(own @ own / largest), float(own @ orthogonal.T @ energy_j)


def test_clocks_that_never_ran_together_are_far_from_the_runs_and_in_no_plan() -> None:
    recording = recording_of(alike_document())
    fit = fit_of(recording)
    plain = PlainRegression.of_fit(fit)
    apart = TRUTH.plan(lambda _stage, kind, _: 1000 if kind == "forward" else 1400)
    assert plain.leverage(fit.predict(apart).load) > 100
    plan = predicted_saving(recording).predicted
    assert plan is None or plan.leverage < 2.1


@pytest.mark.parametrize("seed", range(2))
def test_a_plan_saves_what_was_predicted(seed: int) -> None:
    document = synthetic_document(TRUTH, noise_percent=0.2, seed=seed, count=20)
    plan = predicted_saving(recording_of(document)).predicted
    assert plan is not None
    # Whether a plan no further out than the outermost run is found depends on rounding.
    assert plan.leverage <= 1.1 * LEVERAGES[-1]
    baseline = recording_of(document).runs[0]
    true_s, energies_j = TRUTH.iteration(plan.clocks_mhz)
    low, high = plan.saving_percent_interval
    assert low <= 100 * (1 - sum(energies_j) / baseline.energy_j) <= high
    assert plan.saving_percent == pytest.approx((low + high) / 2)
    low, high = plan.slowdown_percent_interval
    assert low <= 100 * (true_s / baseline.time_s - 1) <= high
    assert plan.slowdown_percent <= 0.3
    assert plan.saving_percent > 0


def test_leverage_and_energy_without_a_prior_are_those_of_least_squares() -> None:
    recording = recording_of(synthetic_document(TRUTH, noise_percent=0.3, count=20))
    fit = fit_of(recording)
    plain = PlainRegression.of_fit(fit)
    largest = [plain.leverage(load) for load in fit.loads]
    assert max(largest) == pytest.approx(1.0)
    load = fit.predict(TRUTH.plan(lambda stage, *_: (1400, 1000, 1200)[stage])).load
    expected = [least_squares(fit, load, stage) for stage in range(3)]
    assert plain.leverage(load) == pytest.approx(max(leverage for leverage, _ in expected))
    assert plain.energy_of(load) == pytest.approx(sum(energy_j for _, energy_j in expected))


def test_the_fastest_recorded_plan_and_envpipes_are_compared() -> None:
    document = synthetic_document(count=8)
    document["runs"][5]["name"] = "envpipe"
    saving = predicted_saving(recording_of(document))
    others = [run for run in document["runs"][1:] if run["name"] != "envpipe"]
    fastest = min(others, key=lambda run: run["iteration_time_s"][0])
    assert [run.name for run in saving.measured] == [fastest["name"], "envpipe"]
    highest_j, envpipe_j = (sum(document["runs"][n]["energy_j_per_stage"]) for n in (0, 5))
    assert saving.measured[1].saving_percent == pytest.approx(100 * (1 - envpipe_j / highest_j))


def test_too_few_runs_save_nothing() -> None:
    with pytest.raises(RecordingError, match="has 2 runs; a saving needs 3"):
        predicted_saving(recording_of(synthetic_document(count=2)))


@needs_shared_data
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "saving_percent"),
    [
        ("bert-huge-uncased+a100", 13.2),
        ("gpt3-xl+a100", 13.1),
        ("wide-resnet101_8+a40", 21.5),
    ],
)
def test_savings_of_recorded_workloads_hold_what_least_squares_says(
    name: str, saving_percent: float
) -> None:
    path = next(path for path in recorded_runs() if path.stem == name)
    recording = read_recording(path)
    plan, fit = predicted_saving(recording).predicted, fit_of(recording)
    assert plan is not None
    load = fit.predict(plan.clocks_mhz).load
    of_stages = [least_squares(fit, load, stage) for stage in range(recording.pp)]
    assert max(leverage for leverage, _ in of_stages) <= 1.01
    without_prior_j = sum(energy_j for _, energy_j in of_stages)
    low, high = plan.saving_percent_interval
    assert low <= 100 * (1 - without_prior_j / recording.runs[0].energy_j) <= high
    assert plan.saving_percent == pytest.approx(saving_percent, abs=0.15)
    assert plan.slowdown_percent < 0.35
    assert high - low < 1.5
