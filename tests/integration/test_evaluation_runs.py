"""Emulated runs against a live planner's prediction: nothing but the plan passes between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest
from tests.planner.live import live_planner

from flyball_client.gpu.emulated import DEFAULT_PHYSICS, EmulatedGpuSettings
from flyball_lab.demo.options import demo_profile
from flyball_lab.evaluation.configurations import (
    BASELINE,
    ENVELOPE_1F1B,
    ENVELOPE_DEFAULT,
    ENVPIPE,
    FRONTIER_1F1B,
    FRONTIER_ENVPIPE,
    UNIFORM,
    Configuration,
    Manner,
    example_model,
    with_heavier_last_stage,
)
from flyball_lab.evaluation.planned_run import (
    EvaluationFailedError,
    RunResult,
    run_configuration,
)

FOUR_STAGES = replace(example_model(), profile=demo_profile())
MANNERS = (
    *(BASELINE, UNIFORM, ENVELOPE_1F1B, ENVELOPE_DEFAULT, ENVPIPE),
    *(FRONTIER_1F1B, FRONTIER_ENVPIPE),
)


@pytest.fixture(scope="module")
def planner_url() -> Iterator[str]:
    with live_planner() as planner:
        yield str(planner.http.base_url)


@cache
def run(
    planner_url: str,
    manner: Manner,
    *,
    delay_s: float | None = 0.0,
    num_pipelines: int = 1,
    last_stage_factor: float = 1.0,
    job_id: str = "",
) -> RunResult:
    """Six microbatches through four stages of the example; no delay: the default physics.

    The same arguments give the same run; `job_id` is for a second one.
    """
    heavier = with_heavier_last_stage(FOUR_STAGES.profile, last_stage_factor)
    configuration = Configuration(
        model=replace(FOUR_STAGES, profile=heavier),
        manner=manner,
        num_microbatches=6,
        num_pipelines=num_pipelines,
    )
    job_id = job_id or (
        f"{manner.policy}-{manner.schedule}-{manner.reconfigure}"
        f"-{delay_s}-{num_pipelines}-{last_stage_factor}"
    )
    return run_configuration(
        planner_url,
        job_id,
        configuration,
        num_steps=2,
        settings=DEFAULT_PHYSICS if delay_s is None else EmulatedGpuSettings.exact_delay(delay_s),
    )


@pytest.mark.parametrize(
    ("manner", "last_stage_factor"),
    [*((manner, 1.0) for manner in MANNERS), (FRONTIER_1F1B, 1.3)],
    ids=lambda value: getattr(value, "label", f"last stage x {value}"),
)
def test_time_and_energy_are_those_predicted_where_switches_are_free(
    planner_url: str, manner: Manner, last_stage_factor: float
) -> None:
    result = run(planner_url, manner, last_stage_factor=last_stage_factor)
    assert result.emulated_iteration_time_s == pytest.approx(
        result.predicted_iteration_time_s, rel=1e-6
    )
    assert result.emulated_energy_j == pytest.approx(result.predicted_energy_j, rel=1e-6)


@pytest.mark.parametrize("manner", [ENVPIPE, FRONTIER_1F1B], ids=lambda manner: manner.label)
def test_they_are_within_half_a_percent_where_clocks_come_late(
    planner_url: str, manner: Manner
) -> None:
    result = run(planner_url, manner, delay_s=None)
    assert result.num_switches > 0
    assert 0 <= result.time_difference_percent < 0.5
    assert abs(result.energy_difference_percent) < 0.5
    assert result.emulated_energy_j != pytest.approx(result.predicted_energy_j, rel=1e-6)


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


def test_data_parallel_pipelines_take_as_long_as_one_and_their_energies_add_up(
    planner_url: str,
) -> None:
    one = run(planner_url, ENVPIPE)
    three = run(planner_url, ENVPIPE, num_pipelines=3)
    assert three.emulated_iteration_time_s == pytest.approx(one.emulated_iteration_time_s)
    assert three.emulated_energy_j == pytest.approx(3 * one.emulated_energy_j, rel=1e-6)
    assert three.predicted_energy_j == pytest.approx(3 * one.predicted_energy_j, rel=1e-6)
    assert three.microbatches_per_s == pytest.approx(3 * one.microbatches_per_s)


def test_with_a_delay_of_5_ms_a_run_has_the_same_figures_again(planner_url: str) -> None:
    first, again = (
        run(planner_url, ENVPIPE, delay_s=0.005, job_id=job_id) for job_id in ("once", "twice")
    )
    assert again.emulated_iteration_time_s == pytest.approx(
        first.emulated_iteration_time_s, rel=1e-10
    )
    assert again.emulated_energy_j == pytest.approx(first.emulated_energy_j, rel=1e-8)
    assert again.num_switches == first.num_switches


def test_what_the_planner_refuses_or_an_interruption_ends_a_run(planner_url: str) -> None:
    with pytest.raises(EvaluationFailedError, match=r"no such schedule: .*schedule"):
        run(planner_url, replace(BASELINE, label="no such schedule", schedule="fastest-of-all"))

    def interrupt() -> None:
        raise KeyboardInterrupt

    configuration = Configuration(model=FOUR_STAGES, manner=BASELINE, num_microbatches=2)
    with pytest.raises(KeyboardInterrupt):
        run_configuration(
            planner_url, "interrupted", configuration, num_steps=1, check_interrupted=interrupt
        )
