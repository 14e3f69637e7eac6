"""Work that a microbatch's instructions have in common, told from their noise."""

from __future__ import annotations

import numpy as np
import pytest

from flyball_pipeline.dag import build_dag
from flyball_pipeline.instruction import equal_stages
from flyball_pipeline.schedules.inputs import ScheduleInputs
from flyball_pipeline.schedules.table import make_schedule
from flyball_server.profiling.differing_work import shared_scatter

NUM_STEPS = 12


def scatter_of(
    *,
    noise: float,
    work: float = 0.0,
    of_step: float = 0.0,
    num_stages: int = 4,
    num_microbatches: int = 6,
    num_pipelines: int = 2,
    seed: int = 0,
) -> float:
    """The scatter found in steps of these, each log-normal; stages take different times."""
    shape = equal_stages(num_stages, num_microbatches)
    dag = build_dag(make_schedule("1f1b", ScheduleInputs(shape=shape)))
    draws = np.random.default_rng(seed)
    microbatch = np.array([instruction.microbatch for instruction in dag.instruction])
    of_microbatch = work * draws.standard_normal((num_microbatches, NUM_STEPS, num_pipelines))
    of_each = noise * draws.standard_normal((dag.num_nodes, NUM_STEPS, num_pipelines))
    of_steps = of_step * draws.standard_normal((1, NUM_STEPS, 1))
    usual_s = draws.uniform(0.5, 2, (dag.num_nodes, 1, 1))
    return shared_scatter(dag, usual_s * np.exp(of_microbatch[microbatch] + of_each + of_steps))


@pytest.mark.parametrize("noise", [0.0005, 0.01, 0.05])
@pytest.mark.parametrize("num_stages", [1, 4])
def test_noise_and_slow_steps_are_no_work(noise: float, num_stages: int) -> None:
    found = [
        scatter_of(noise=noise, of_step=0.1, num_stages=num_stages, seed=seed) for seed in range(20)
    ]
    assert found == [0] * 20


@pytest.mark.parametrize(("noise", "work"), [(0.0, 0.02), (0.01, 0.05), (0.05, 0.2), (0.01, 0.5)])
@pytest.mark.parametrize("num_pipelines", [1, 4])
def test_work_is_found_with_its_scatter(noise: float, work: float, num_pipelines: int) -> None:
    found = [
        scatter_of(noise=noise, work=work, num_pipelines=num_pipelines, seed=seed)
        for seed in range(10)
    ]
    assert np.mean(found) == pytest.approx(work, rel=0.35)
    assert min(found) > 0.4 * work


def test_too_few_instructions_tell_nothing() -> None:
    assert scatter_of(noise=0.0, work=0.3, num_microbatches=1, num_pipelines=1) == 0
