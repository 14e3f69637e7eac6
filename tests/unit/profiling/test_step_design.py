from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.unit.planning.tiny_pipelines import any_models, context_of, equal_profile

from flyball_pipeline.dag import build_dag, step_dag
from flyball_pipeline.paths import earliest_finish_s
from flyball_pipeline.schedule import Schedule
from flyball_server.planning.model.array_dag import ArrayDag, array_dag
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.scheduling import schedule_for
from flyball_server.profiling.version_design import slow_nodes

NUM_STAGES, NUM_MICROBATCHES = 4, 12


def equal_schedule(name: str = "1f1b") -> Schedule:
    return schedule_for(name, context_of(equal_profile(NUM_STAGES), NUM_MICROBATCHES))


def end_s(dag: ArrayDag, durations_s: NDArray[np.float64]) -> float:
    return max(earliest_finish_s(dag, durations_s.tolist()))


@given(
    model=any_models(),
    factors=st.lists(st.floats(1.0, 3.0), min_size=1, max_size=8),
    allowed=st.floats(0.0, 0.5),
    seed=st.integers(0, 99),
)
@settings(max_examples=25)
def test_no_step_is_longer_than_its_deadline(
    model: PipelineModel, factors: list[float], allowed: float, seed: int
) -> None:
    dag = array_dag(step_dag(model.schedule))
    stage = np.array(dag.stage)
    random = np.random.default_rng(seed)
    durations_s = random.uniform(0.5, 2.0, dag.num_nodes)
    slower_s = durations_s * random.choice([0.0, *factors], len(durations_s))
    deadline_s = end_s(dag, durations_s) * (1 + allowed)

    is_slow = slow_nodes(dag, durations_s, slower_s, deadline_s)

    run_s = np.where(is_slow, slower_s, durations_s)
    if model.schedule.is_periodic:
        iteration_time_s = np.bincount(stage, run_s).max()
    else:
        iteration_time_s = end_s(array_dag(build_dag(model.schedule)), run_s)
    assert iteration_time_s <= deadline_s * (1 + 1e-9)
    assert not is_slow[slower_s == 0].any()


def test_a_pipeline_that_never_flushes_is_as_slow_as_its_slowest_stage() -> None:
    dag = array_dag(step_dag(equal_schedule("pipedream")))
    stage = np.array(dag.stage)
    durations_s = np.where(stage == 1, 1.0, 0.9)
    period_s = 2 * NUM_MICROBATCHES * 1.0

    slower_s = durations_s + 0.1
    is_slow = slow_nodes(dag, durations_s, slower_s, period_s)

    assert end_s(dag, np.where(is_slow, slower_s, durations_s)) == pytest.approx(period_s)
    assert is_slow[stage != 1].all()
    assert not is_slow[stage == 1].any()


def test_where_many_stages_share_turns_all_get_a_share() -> None:
    num_stages, num_microbatches = 20, 40
    context = context_of(equal_profile(num_stages), num_microbatches)
    dag = array_dag(step_dag(schedule_for("1f1b", context)))
    stage = np.array(dag.stage)
    durations_s = np.random.default_rng(1).normal(1.0, 0.02, dag.num_nodes)
    deadline_s = 1.1 * end_s(dag, durations_s)

    slower_s = 1.5 * durations_s
    is_slow = slow_nodes(dag, durations_s, slower_s, deadline_s)

    assert end_s(dag, np.where(is_slow, slower_s, durations_s)) <= deadline_s
    # A tenth of the iteration is time for 24 such instructions on the way through a stage.
    assert np.bincount(stage, is_slow, num_stages).min() >= 12
