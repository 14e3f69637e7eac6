"""Emulated runs against a live planner's prediction: nothing but the plan passes between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest
from tests.planner.live import live_planner

from envpipe_evaluation import (
    BASELINE,
    ENVELOPE_1F1B,
    ENVELOPE_DEFAULT,
    ENVPIPE,
    FRONTIER_1F1B,
    FRONTIER_ENVPIPE,
    UNIFORM,
    EvaluatedRun,
    Manner,
    RunResult,
    emulate,
    example_model,
    groups_of,
    row_of,
    with_heavier_last_stage,
)
from flyball_client.gpu.emulated import EmulatedGpuSettings
from flyball_lab.demo.options import demo_profile
from measured_process import BenchmarkError

FOUR_STAGES = replace(example_model(), profile=demo_profile())
HEAVIER_LAST = with_heavier_last_stage(FOUR_STAGES)
MANNERS = (
    *(BASELINE, UNIFORM, ENVELOPE_1F1B, ENVELOPE_DEFAULT, ENVPIPE),
    *(FRONTIER_1F1B, FRONTIER_ENVPIPE),
)


@pytest.fixture(scope="module")
def planner_url() -> Iterator[str]:
    with live_planner() as planner:
        yield str(planner.http.base_url)


@cache
def run(planner_url: str, manner: Manner, *, is_last_heavier: bool = False) -> RunResult:
    """Five microbatches through four stages of the example; the same arguments give one run."""
    return emulate(
        planner_url,
        f"{manner.policy}-{manner.schedule}-{manner.reconfigure}-{is_last_heavier}",
        EvaluatedRun(
            model=HEAVIER_LAST if is_last_heavier else FOUR_STAGES,
            manner=manner,
            num_microbatches=5,
            num_pipelines=1,
        ),
        num_steps=2,
        settings=EmulatedGpuSettings.exact_delay(0.0),
    )


@pytest.mark.parametrize(
    ("manner", "is_last_heavier"),
    [*((manner, False) for manner in MANNERS), (FRONTIER_1F1B, True)],
    ids=lambda value: getattr(value, "label", f"heavier last stage: {value}"),
)
def test_time_and_energy_are_those_predicted_where_switches_are_free(
    planner_url: str, manner: Manner, is_last_heavier: bool
) -> None:
    result = run(planner_url, manner, is_last_heavier=is_last_heavier)
    assert result.emulated_iteration_time_s == pytest.approx(
        result.predicted_iteration_time_s, rel=1e-6
    )
    assert result.emulated_energy_j == pytest.approx(result.predicted_energy_j, rel=1e-6)


def test_the_plan_is_run_and_its_order_holds_more_microbatches_than_1f1b(planner_url: str) -> None:
    baseline = run(planner_url, BASELINE)
    planned = run(planner_url, ENVPIPE)
    assert planned.emulated_energy_j < 0.95 * baseline.emulated_energy_j
    assert planned.emulated_iteration_time_s <= baseline.emulated_iteration_time_s * (1 + 1e-9)
    one_f_one_b = run(planner_url, FRONTIER_1F1B)
    envpipe = run(planner_url, FRONTIER_ENVPIPE)
    assert one_f_one_b.peak_activations == (4, 3, 2, 1)
    assert envpipe.peak_activations > one_f_one_b.peak_activations
    assert envpipe.peak_activations[-1] == 1


def test_what_the_planner_refuses_is_named(planner_url: str) -> None:
    with pytest.raises(BenchmarkError, match=r"no such schedule: .*schedule"):
        run(planner_url, replace(BASELINE, label="no such schedule", schedule="fastest-of-all"))


# ------------------------------------------------------------------ figures


def test_figures_hold_envpipes_models_and_microbatches() -> None:
    """64 samples are 16 microbatches of 4; 512 ones, shared by pipelines, 128 and 64 of 2."""
    first, *_ = groups_of("9")
    assert first[0].model.name == "bert-336m"
    assert [one.manner for one in first][:3] == [BASELINE, UNIFORM, ENVPIPE]
    assert {one.num_microbatches for one in first} == {16}
    shapes = [(one[0].num_pipelines, one[0].num_microbatches) for one in groups_of("12")]
    assert shapes == [(2, 128), (4, 64)]
    filled = [one[0].num_microbatches for one in groups_of("13")]
    assert filled[:3] == [4, 8, 16]
    assert filled[-3:] == [8, 16, 32]


def test_runs_are_compared_with_the_first_of_their_group() -> None:
    (_, *others), *_ = groups_of("9")
    reference, other = (
        RunResult(
            emulated_iteration_time_s=time_s,
            emulated_energy_j=energy_j,
            predicted_iteration_time_s=2.0,
            predicted_energy_j=90.0,
            lower_bound_j=None,
            num_switches=5,
            peak_activations=(2, 2, 2, 1),
        )
        for time_s, energy_j in ((2.0, 100.0), (2.5, 90.0))
    )
    row = row_of(others[0], other, reference)
    assert row["slowdown_percent"] == pytest.approx(25.0)
    assert row["energy_saving_percent"] == pytest.approx(10.0)
    assert row["time_difference_percent"] == pytest.approx(25.0)
    assert row["energy_difference_percent"] == 0.0
