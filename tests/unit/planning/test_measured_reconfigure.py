"""Reconfiguration from measured waits: the walk, the threshold, the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball_server.planning.errors import PlanningError
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.model.simulator import simulate
from flyball_server.planning.policies.measured_reconfigure import (
    MeasuredLoop,
    MeasuredPipeline,
    decide,
    measured_critical_path,
    receives_from_neighbour,
)
from flyball_server.planning.policies.reconfigure import reconfigure
from flyball_wire.plan_options import Reconfigure

from .tiny_pipelines import (
    B,
    F,
    assigned_any_models,
    assigned_models,
    equal_profile,
    model_of,
    node_of,
    profile_of,
    two_by_two,
)

MANNERS = st.sampled_from(["greedy", "balanced"])
Measure = Callable[[PipelineModel, Sequence[int]], MeasuredPipeline]


def measured_on_paper(model: PipelineModel, assignment: Sequence[int]) -> MeasuredPipeline:
    """Return what ranks without noise would measure where a transfer takes no time."""
    waits_s = enumerate(simulate(model, assignment).wait_s)
    return MeasuredPipeline(
        computed_s=tuple(model.durations_s(assignment)),
        received_s=tuple(
            wait_s if receives_from_neighbour(model.dag, node) else 0.0 for node, wait_s in waits_s
        ),
    )


def reconfigured(
    loop: MeasuredLoop, start: Sequence[int], measure: Measure
) -> tuple[list[int], int]:
    """The clocks that the loop ends with, and how many windows it took."""
    assignment, windows, num_windows = list(start), list[MeasuredPipeline](), 0
    while True:
        windows.append(measure(loop.model, assignment))
        num_windows += 1
        decision = decide(loop, assignment, windows)
        if decision.is_finished:
            return assignment, num_windows
        if decision.raised is not None:
            assert decision.raised != assignment
            assignment, windows = decision.raised, []


def with_receive(
    model: PipelineModel, measured: MeasuredPipeline, waits_s: dict[int, float]
) -> MeasuredPipeline:
    received_s = list(measured.received_s)
    for node, wait_s in waits_s.items():
        received_s[node] = wait_s
    return replace(measured, received_s=tuple(received_s))


@pytest.mark.parametrize(
    ("wait_s", "is_long"), [(0.0, False), (0.03, False), (0.04, False), (0.05, True)]
)
def test_a_wait_is_long_beyond_four_times_a_receive_that_waits_for_nothing(
    wait_s: float, is_long: bool
) -> None:
    """F1 has reached stage 1 before its B0 is done: receiving it, 0.01 s, waits for nothing."""
    model, start = two_by_two(2.5)
    last_backward = node_of(model, 0, B, 1)
    measured = with_receive(
        model,
        measured_on_paper(model, start),
        {node_of(model, 1, F, 1): 0.01, last_backward: wait_s},
    )
    path = measured_critical_path(model.dag, measured)
    delayed_by = node_of(model, 1, B, 1) if is_long else node_of(model, 0, B, 0)
    assert path[-2:] == [delayed_by, last_backward]
    assert path[0] == node_of(model, 0, F, 0)
    sooner = measured_critical_path(model.dag, measured, threshold_scale=1.0)
    assert (sooner[-2] == node_of(model, 1, B, 1)) is (wait_s > 0.01)


def test_a_light_last_stage_which_always_waits_sets_no_threshold() -> None:
    """Stage 1 of three is the heavy one; four times stage 2's least wait would hide every wait."""
    heavy = [(200, 8.0, 1.0), (100, 16.0, 1.0)]
    light = [(200, 1.0, 1.0), (100, 2.0, 1.0)]
    stages = [dict.fromkeys((F, B), points) for points in (light, heavy, light)]
    model = model_of(profile_of(stages), 3)
    measured = measured_on_paper(model, model.baseline())
    assert all(
        received_s >= 6
        for node, received_s in enumerate(measured.received_s)
        if model.dag.stage[node] == 2 and receives_from_neighbour(model.dag, node)
    )
    simulated = simulate(model, model.baseline())
    assert measured_critical_path(model.dag, measured) == list(simulated.critical_path)


@given(assigned_any_models())
def test_without_noise_the_measured_path_is_the_models(
    assigned: tuple[PipelineModel, list[int]],
) -> None:
    model, assignment = assigned
    measured = measured_on_paper(model, assignment)
    simulated = simulate(model, assignment)
    assert measured_critical_path(model.dag, measured) == list(simulated.critical_path)


@given(assigned_models(), st.sampled_from(Reconfigure), st.sampled_from([1, 15, 30, 5000]))
def test_without_noise_it_ends_where_the_model_does(
    assigned: tuple[PipelineModel, list[int]], manner: Reconfigure, granularity_mhz: int
) -> None:
    model, start = assigned
    loop = MeasuredLoop(model=model, manner=manner, granularity_mhz=granularity_mhz)
    end, _ = reconfigured(loop, start, measured_on_paper)
    assert end == reconfigure(model, start, manner, granularity_mhz)


@given(assigned_models(), MANNERS, st.integers(0, 2**16), st.integers(1, 4))
def test_whatever_is_measured_it_ends_at_paths_of_the_highest_clocks(
    assigned: tuple[PipelineModel, list[int]], manner: Reconfigure, seed: int, finish_limit: int
) -> None:
    """Waits of pure chance, so that the path is another one each time."""
    model, start = assigned
    chance = Random(seed)
    seen: list[MeasuredPipeline] = []

    def by_chance(model: PipelineModel, _: Sequence[int]) -> MeasuredPipeline:
        times_s = [[chance.uniform(0.001, 1) for _ in model.points] for _ in range(2)]
        seen.append(MeasuredPipeline(computed_s=tuple(times_s[0]), received_s=tuple(times_s[1])))
        return seen[-1]

    loop = MeasuredLoop(model=model, manner=manner, granularity_mhz=30, finish_limit=finish_limit)
    end, num_windows = reconfigured(loop, start, by_chance)
    assert num_windows <= (sum(start) + 1) * finish_limit
    assert all(choice <= before for choice, before in zip(end, start, strict=True))
    for measured in seen[-finish_limit:]:
        assert all(end[node] == 0 for node in measured_critical_path(model.dag, measured))


def test_quiet_looks_end_it_only_in_a_row() -> None:
    model, start = two_by_two(2.5)
    quiet = measured_on_paper(model, start)
    busy = with_receive(model, quiet, {node_of(model, 0, B, 1): 0.0})
    loop = MeasuredLoop(
        model=model, manner=Reconfigure.BALANCED, granularity_mhz=30, finish_limit=2
    )
    assert decide(loop, start, []).raised is None
    assert not decide(loop, start, [quiet]).is_finished
    assert decide(loop, start, [quiet, quiet]).is_finished
    raised = decide(loop, start, [quiet, busy]).raised
    assert raised is not None
    assert raised[node_of(model, 0, B, 0)] == 0
    assert start[node_of(model, 0, B, 0)] == 1, "what it was given must stay as it is"


def test_ranks_that_tell_no_waits_cannot_be_reconfigured() -> None:
    model = model_of(equal_profile(2), 2)
    silent = replace(
        measured_on_paper(model, model.baseline()), received_s=(0.0,) * model.dag.num_nodes
    )
    loop = MeasuredLoop(model=model, manner=Reconfigure.BALANCED, granularity_mhz=30)
    with pytest.raises(PlanningError, match="no rank reports the wait"):
        decide(loop, model.baseline(), [silent])
