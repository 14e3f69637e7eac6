"""Reconfiguration: move by move, and from waits that ranks measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball_pipeline.errors import PipelineError
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.model.simulator import simulate
from flyball_server.planning.policies.measured_reconfigure import (
    MeasuredLoop,
    MeasuredPipeline,
    MeasuredStep,
    StageInstructionTimes,
    decide,
    is_as_ordered,
    measured_critical_path,
    pipeline_of_steps,
    receives_from_neighbour,
)
from flyball_server.planning.policies.reconfigure import (
    RECONFIGURATIONS,
    reconfigure,
)
from flyball_wire.plan_options import Reconfigure

from .oracles import event_driven_finish_s
from .tiny_pipelines import (
    B,
    F,
    Points,
    assigned_any_models,
    assigned_models,
    equal_profile,
    model_of,
    node_of,
    profile_of,
    two_by_two,
)

HUNDREDS: Points = [(mhz, 1000 / mhz, 1.0) for mhz in (500, 400, 300, 200, 100)]


GPU_STEPS: Points = [(mhz, 1000 / mhz, 1.0) for mhz in (130, 115, 100)]
GAPS: Points = [(mhz, 1.0, 1.0) for mhz in (1410, 1395, 1380, 1300, 1290, 1275)]
GREEDY, BALANCED = Reconfigure.GREEDY, Reconfigure.BALANCED


@pytest.mark.parametrize(
    ("manner", "points", "granularity_mhz", "before_mhz", "after_mhz"),
    [
        # Greedy: the last unit below the highest clock, three steps.
        (GREEDY, HUNDREDS, 100, (100, 100, 100, 100), (100, 100, 100, 400)),
        (GREEDY, HUNDREDS, 100, (100, 100, 100, 400), (100, 100, 100, 500)),
        (GREEDY, HUNDREDS, 100, (100, 100, 200, 500), (100, 100, 500, 500)),
        (GREEDY, HUNDREDS, 100, (500, 500, 500, 500), None),
        # Balanced: every unit with the lowest clock, one step.
        (BALANCED, HUNDREDS, 100, (100, 200, 100, 500), (200, 200, 200, 500)),
        (BALANCED, HUNDREDS, 100, (500, 400, 500, 500), (500, 500, 500, 500)),
        (BALANCED, HUNDREDS, 100, (500, 500, 500, 500), None),
        # 115 MHz, one small step of a GPU above the lowest clock, is not the lowest.
        (BALANCED, GPU_STEPS, 15, (100, 115, 100, 130), (115, 115, 115, 130)),
        # A step goes to the first profiled clock at least a granularity higher.
        *(
            (BALANCED, GAPS, 30, (before, 1410), (after, 1410))
            for before, after in ((1275, 1380), (1290, 1380), (1300, 1380), (1380, 1410))
        ),
        (BALANCED, GAPS, 30, (1395, 1410), (1410, 1410)),
        # 1275 -> 1290 -> 1300 -> 1380 at 10 MHz, though 1275 + 3 * 10 is 1305.
        (GREEDY, GAPS, 10, (1410, 1275), (1410, 1380)),
    ],
)
def test_one_move_on_a_stage_that_is_all_critical(
    manner: Reconfigure,
    points: Points,
    granularity_mhz: int,
    before_mhz: tuple[int, ...],
    after_mhz: tuple[int, ...] | None,
) -> None:
    """F0 B0 F1 B1 on one stage; no clocks after: nothing can be raised."""
    model = model_of(profile_of([{F: points, B: points}]), len(before_mhz) // 2)
    clocks = [point.frequency_mhz for point in model.points[0]]
    assignment = [clocks.index(clock) for clock in before_mhz]
    path = simulate(model, assignment).critical_path
    is_raised = RECONFIGURATIONS[manner](model, assignment, path, granularity_mhz)
    assert is_raised == (after_mhz is not None)
    assert tuple(clocks[choice] for choice in assignment) == (after_mhz or before_mhz)


@pytest.mark.parametrize(
    ("slow_backward_s", "final_mhz"),
    [
        # B0 ends at 7 s, when B1's input arrives too: it is on the path, and raised.
        (3.0, 200),
        # B0 ends at 6.5 s: B1 waits for its input, the path is the envelope, B0 stays slow.
        (2.5, 100),
    ],
)
@pytest.mark.parametrize("manner", ["greedy", "balanced"])
def test_only_what_delays_the_iteration_is_raised(
    manner: Reconfigure, slow_backward_s: float, final_mhz: int
) -> None:
    model, start = two_by_two(slow_backward_s)
    f1, b0 = node_of(model, 0, F, 1), node_of(model, 0, B, 0)
    result = reconfigure(model, start, manner, 30)
    assert model.points[b0][result[b0]].frequency_mhz == final_mhz
    assert model.points[f1][result[f1]].frequency_mhz == 100
    assert simulate(model, result).iteration_time_s == 9
    assert start[b0] == 1, "what it was given must stay as it is"


@given(
    assigned_models(), st.sampled_from(["greedy", "balanced"]), st.sampled_from([1, 15, 30, 5000])
)
def test_it_ends_no_slower_than_baseline_with_a_critical_path_at_the_highest_clocks(
    assigned: tuple[PipelineModel, list[int]], manner: Reconfigure, granularity_mhz: int
) -> None:
    model, start = assigned
    result = reconfigure(model, start, manner, granularity_mhz)
    assert all(choice <= before for choice, before in zip(result, start, strict=True))
    assert all(result[node] == 0 for node in simulate(model, result).critical_path)
    time_s, baseline_s = (
        max(event_driven_finish_s(model.schedule, model.durations_s(assignment)))
        for assignment in (result, model.baseline())
    )
    assert time_s <= baseline_s


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


@given(
    assigned_models(),
    st.sampled_from(["greedy", "balanced"]),
    st.integers(0, 2**16),
    st.integers(1, 4),
)
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
    with pytest.raises(PipelineError, match="no rank reports the wait"):
        decide(loop, model.baseline(), [silent])


def step_of(model: PipelineModel, computed_s: float, received_s: float = 0.5) -> MeasuredStep:
    """The same times for all, so that a sum or a median is plain to see."""
    return [
        [
            StageInstructionTimes(kind, microbatch, chunk, received_s, computed_s)
            for kind, microbatch, chunk in stage
        ]
        for stage in model.schedule.stages
    ]


def test_each_node_has_the_median_over_steps_of_its_own_instruction() -> None:
    model = model_of(equal_profile(2), 3)
    steps: list[MeasuredStep] = []
    for computed_s in (1.0, 9.0, 2.0):
        step = [list(ran) for ran in step_of(model, computed_s)]
        ran = step[1]
        position = [(times.kind, times.microbatch) for times in ran].index((B, 1))
        ran[position] = ran[position]._replace(computed_s=7.0, received_s=0.25)
        steps.append(step)
    measured = pipeline_of_steps(model.schedule, model.dag, steps)
    node = node_of(model, 1, B, 1)
    for index in range(model.dag.num_nodes):
        figures = measured.computed_s[index], measured.received_s[index]
        assert figures == ((7.0, 0.25) if index == node else (2.0, 0.5))


def test_a_node_of_a_period_has_the_sum_over_its_microbatches() -> None:
    model = model_of(equal_profile(2), 3, "pipedream")
    measured = pipeline_of_steps(model.schedule, model.dag, [step_of(model, 1.0)])
    assert measured.computed_s == (3.0,) * 4


def test_a_rank_that_left_its_order_is_told_apart() -> None:
    model = model_of(equal_profile(2), 2)
    ran = list(step_of(model, 1.0)[0])
    assert is_as_ordered(model.schedule, 0, ran)
    assert is_as_ordered(model.schedule, 0, [times._replace(microbatch=None) for times in ran])
    assert not is_as_ordered(model.schedule, 0, ran[:-1])
    assert not is_as_ordered(model.schedule, 0, ran[::-1])
    assert not is_as_ordered(model.schedule, 0, [ran[0]._replace(chunk=1), *ran[1:]])
    assert not is_as_ordered(model.schedule, 0, [ran[0]._replace(kind=B.value), *ran[1:]])
    assert ran[0].kind == F
