from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.planning.tiny_pipelines import any_models, context_of, equal_profile

from flyball_server.planning.model.dag import build_dag
from flyball_server.planning.model.finish_times import earliest_finish_s
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.schedules import make_schedule
from flyball_server.planning.schedules._base import Schedule
from flyball_server.profiling.version_design import StepGraph, slow_nodes

NUM_STAGES, NUM_MICROBATCHES = 4, 12


def equal_schedule(name: str = "1f1b") -> Schedule:
    return make_schedule(name, context_of(equal_profile(NUM_STAGES), NUM_MICROBATCHES))


@given(
    model=any_models(),
    factors=st.lists(st.floats(1.0, 3.0), min_size=1, max_size=8),
    allowed=st.floats(0.0, 0.5),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_no_step_is_longer_than_its_deadline(
    model: PipelineModel, factors: list[float], allowed: float, seed: int
) -> None:
    graph = StepGraph.of_schedule(model.schedule)
    random = np.random.default_rng(seed)
    durations_s = random.uniform(0.5, 2.0, len(graph.stage))
    slower_s = durations_s * random.choice([0.0, *factors], len(durations_s))
    deadline_s = float(graph.finish_s(durations_s).max()) * (1 + allowed)

    slowed = slow_nodes(graph, durations_s, slower_s, deadline_s)

    run_s = np.where(slowed.is_slow, slower_s, durations_s)
    if model.schedule.is_periodic:
        iteration_time_s = np.bincount(graph.stage, run_s).max()
    else:
        iteration_time_s = max(earliest_finish_s(build_dag(model.schedule), run_s.tolist()))
    assert slowed.iteration_time_s == pytest.approx(iteration_time_s)
    assert iteration_time_s <= deadline_s * (1 + 1e-9)
    assert not slowed.is_slow[slower_s == 0].any()


def test_float_is_used_even_where_the_iteration_may_not_be_longer() -> None:
    schedule = equal_schedule()
    graph = StepGraph.of_schedule(schedule)
    # The last stage is twice as slow: the others wait for it most of the time.
    durations_s = np.where(graph.stage == NUM_STAGES - 1, 2.0, 1.0)
    slower_s = np.where(graph.stage == 0, 1.5, 0.0)
    quickest_s = float(graph.finish_s(durations_s).max())

    slowed = slow_nodes(graph, durations_s, slower_s, quickest_s)

    assert slowed.iteration_time_s == pytest.approx(quickest_s)
    assert slowed.is_slow.sum() >= NUM_MICROBATCHES


def test_all_stages_get_a_share_of_one_allowance() -> None:
    graph = StepGraph.of_schedule(equal_schedule())
    durations_s = np.ones(len(graph.stage))
    quickest_s = float(graph.finish_s(durations_s).max())

    slowed = slow_nodes(graph, durations_s, 1.5 * durations_s, 1.1 * quickest_s)

    # A tenth of the iteration is time for five such instructions on the way through a stage.
    per_stage = np.bincount(graph.stage, slowed.is_slow, NUM_STAGES)
    assert per_stage.min() >= 4


def test_a_stage_with_longer_instructions_is_not_starved_by_quick_ones() -> None:
    graph = StepGraph.of_schedule(equal_schedule())
    durations_s = np.ones(len(graph.stage))
    slower_s = np.where(graph.stage == 2, 2.0, 1.05)
    quickest_s = float(graph.finish_s(durations_s).max())

    slowed = slow_nodes(graph, durations_s, slower_s, 1.1 * quickest_s)

    assert slowed.is_slow[graph.stage == 2].sum() >= 2


def test_a_pipeline_that_never_flushes_is_as_slow_as_its_slowest_stage() -> None:
    graph = StepGraph.of_schedule(equal_schedule("pipedream"))
    durations_s = np.where(graph.stage == 1, 1.0, 0.9)
    period_s = 2 * NUM_MICROBATCHES * 1.0

    slowed = slow_nodes(graph, durations_s, durations_s + 0.1, period_s)

    assert slowed.iteration_time_s == pytest.approx(period_s)
    assert slowed.is_slow[graph.stage != 1].all()
    assert not slowed.is_slow[graph.stage == 1].any()
