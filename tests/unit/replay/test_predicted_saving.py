"""Predicted savings: held to the truth, and silent where the fit does not carry it."""

from __future__ import annotations

import numpy as np
import pytest
from tests.shared_data import needs_shared_data, recorded_runs
from tests.unit.replay.synthetic_runs import (
    CLOCKS,
    Document,
    Truth,
    synthetic_document,
)

from flyball_server.cli.replay import read_recording
from flyball_server.profiling.mixed_model import FloatArray
from flyball_server.replay.coverage import MAX_LEVERAGE
from flyball_server.replay.covered_plans import CoveredPlanner, covered_frontier
from flyball_server.replay.predicted_saving import (
    predicted_saving,
    saving_document,
    saving_text,
)
from flyball_server.replay.recorded_runs import RecordingError
from flyball_server.replay.recording_document import recording_from_document
from flyball_server.replay.runs_fit import PlanClocks, RunsFit, Workload, fit_runs

TRUTH = Truth(num_stages=3, num_microbatches=6)


def fit_of(document: Document) -> RunsFit:
    recording = recording_from_document(document)
    return fit_runs(Workload.of_recording(recording), recording.runs)


def alike_document() -> Document:
    """Runs in which all instructions have the same clock."""
    return TRUTH.document(
        [TRUTH.run(str(mhz), TRUTH.plan(lambda *_, mhz=mhz: mhz)) for mhz in (*CLOCKS, 1150, 1050)]
    )


def test_clocks_that_never_ran_together_are_not_covered_and_have_no_saving() -> None:
    saving = predicted_saving(recording_from_document(alike_document()))
    planner = CoveredPlanner.of_fit(saving.fit)
    apart = TRUTH.plan(lambda _stage, kind, _: 1000 if kind == "forward" else 1400)
    judged = planner.judged(saving.fit.workload.clocks_in(apart))
    assert judged.predicted.unmeasured == ()
    assert judged.leverage > 10 * MAX_LEVERAGE
    assert not judged.is_covered
    assert saving.free is not None
    assert not saving.free.is_covered
    document = saving_document(saving)
    assert set(document["predicted"]["free"]) == {"covered", "leverage"}
    assert document["predicted"]["free"]["covered"] is False
    line = next(line for line in saving_text(saving).splitlines() if "any measured" in line)
    assert "not covered: leverage" in line
    assert "%" not in line


@pytest.mark.parametrize("seed", range(2))
def test_a_plan_within_the_fit_saves_what_was_predicted(seed: int) -> None:
    document = synthetic_document(TRUTH, noise_percent=0.2, seed=seed, count=20)
    saving = predicted_saving(recording_from_document(document))
    plan = saving.within
    assert plan is not None
    assert plan.leverage <= MAX_LEVERAGE
    clocks = saving.fit.workload.clocks_of(plan.clocks)
    true_s, energies = TRUTH.iteration(clocks)
    predicted_percent = saving.saving_percent(plan.predicted.energy_j)
    of_truth = saving.saving_percent(sum(energies))
    # The measured baseline itself is off by 0.1 %, and the interval holds 90 %.
    assert predicted_percent == pytest.approx(of_truth, abs=saving.saving_half_width(plan) + 0.2)
    assert true_s == pytest.approx(plan.predicted.iteration_time_s, rel=0.005)
    assert plan.predicted.iteration_time_s <= 1.003 * saving.baseline.iterations.mean_s
    assert predicted_percent > 0


def test_a_free_plan_that_is_covered_is_the_plan() -> None:
    # Forty runs of clocks drawn by chance: hardly a pair has not run together.
    document = synthetic_document(TRUTH, noise_percent=0.5, count=40, seed=3)
    saving = predicted_saving(recording_from_document(document))
    assert saving.free is not None
    assert saving.free.is_covered
    assert saving.within is saving.free
    assert "any measured clock" not in saving_text(saving)


def test_a_fitted_run_is_covered_and_the_frontier_within_the_fit_falls() -> None:
    planner = CoveredPlanner.of_fit(fit_of(synthetic_document(TRUTH, noise_percent=0.2)))
    leverages = [planner.judged(plan).leverage for plan in planner.recorded]
    assert max(leverages) == pytest.approx(1.0)
    assert min(leverages) > 0
    plans = covered_frontier(planner)
    assert len(plans) >= 6
    assert all(plan.is_covered for plan in plans)
    energies_j = [plan.predicted.energy_j for plan in plans]
    assert energies_j[-1] < energies_j[0]


def test_the_fastest_recorded_plan_and_envpipes_are_compared() -> None:
    document = synthetic_document(count=8)
    document["runs"][5]["name"] = "envpipe"
    saving = predicted_saving(recording_from_document(document))
    others = [run for run in document["runs"][1:] if run["name"] != "envpipe"]
    fastest = min(others, key=lambda run: run["iteration_time_s"][0])
    assert [run.name for run in saving.compared] == [fastest["name"], "envpipe"]
    measured = saving_document(saving)["measured"]
    highest_j, envpipe_j = (sum(document["runs"][n]["energy_j_per_stage"]) for n in (0, 5))
    assert measured[1]["saving_percent"] == pytest.approx(100 * (1 - envpipe_j / highest_j))


def test_too_few_runs_save_nothing() -> None:
    with pytest.raises(RecordingError, match="has 2 runs; a saving needs 3"):
        predicted_saving(recording_from_document(synthetic_document(count=2)))


def _plain_leverage(fit: RunsFit, plan: PlanClocks, idle_s: FloatArray, stage: int) -> float:
    """By least squares alone, written anew: in units of the largest recorded run's."""
    clocks = np.array(fit.workload.points.clocks_mhz) / 1000
    num = len(clocks)

    def features(counts: FloatArray, idle: float) -> FloatArray:
        forwards, backwards = counts[:num], counts[num:]
        sums = [of @ clocks**power for of in (forwards, backwards) for power in (1, 2)]
        return np.array([1, *sums, idle])

    runs = [fit.workload.clocks_in(run.clocks_mhz) for run in fit.fitted]
    design = np.array([features(run.counts[stage], fit.predict(run).idle_s[stage]) for run in runs])
    # Scaled and orthogonal: the leverages are the rows' squared lengths.
    scale = np.abs(design).max(axis=0)
    orthogonal, triangle = np.linalg.qr(design / scale)
    own = np.linalg.solve(triangle.T, features(plan.counts[stage], idle_s[stage]) / scale)
    return float(own @ own / np.square(orthogonal).sum(axis=1).max())


@needs_shared_data
@pytest.mark.parametrize(
    ("name", "saving_percent"),
    [
        ("bert-huge-uncased+a100", 13.3),
        ("wide-resnet101_8+a40", 21.0),
    ],
)
def test_savings_of_recorded_workloads_are_within_what_their_runs_show(
    name: str, saving_percent: float
) -> None:
    path = next(path for path in recorded_runs() if path.stem == name)
    saving = predicted_saving(read_recording(path))
    assert saving.free is not None
    assert not saving.free.is_covered
    plan = saving.within
    assert plan is not None
    for stage in range(saving.recording.num_stages):
        leverage = _plain_leverage(saving.fit, plan.clocks, plan.predicted.idle_s, stage)
        assert leverage <= 1.01 * MAX_LEVERAGE
    assert saving.saving_percent(plan.predicted.energy_j) == pytest.approx(saving_percent, abs=0.15)
    assert saving.slowdown_percent(plan.predicted.iteration_time_s) < 0.35
    # Nothing like "savings" above anything that was ever measured.
    measured = max(saving.saving_percent(run.energy_j) for run in saving.recording.runs)
    assert saving.saving_percent(plan.predicted.energy_j) < measured + 0.5
