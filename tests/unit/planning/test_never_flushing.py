"""PipeDream and PipeDream-2BW: the period of M microbatches, against an endless run unrolled."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyball_pipeline.instruction import Instruction
from flyball_pipeline.schedule import Schedule
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.model.simulator import simulate
from flyball_server.planning.scheduling import schedule_for

from .oracles import event_driven_finish_s
from .tiny_pipelines import TICK_S, B, F, I, W, context_of, equal_profile, model_of, profile_of

MOST_TICKS = 6  # of an instruction in a long run
Times = list[list[float]]
"""Per stage, s of each instruction of its period, in the order of execution."""


def model_with_a_clock_for_each_time(schedule: str, times_s: Times, split: bool) -> PipelineModel:
    """One operating point for each number of ticks that an instruction may take."""
    parts = (F, I, W) if split else (F, B)
    points = [(2000 - ticks, ticks * TICK_S, 1.0) for ticks in range(1, 41)]
    num_microbatches = len(times_s[0]) // len(parts)
    return model_of(
        profile_of([dict.fromkeys(parts, points)] * len(times_s)), num_microbatches, schedule
    )


def unrolled_finish_s(model: PipelineModel, times_s: Times, num_periods: int) -> list[float]:
    """Return when each period of stage 0 ends, in a run of 1F1B that never flushes: s.

    Microbatch m of the run takes as long as the instructions of m modulo M do in the period.
    """
    num_stages, num_microbatches = model.schedule.num_stages, model.schedule.num_microbatches
    total = num_periods * num_microbatches
    took_s = [
        dict(zip(order, of_stage, strict=True))
        for order, of_stage in zip(model.schedule.stages, times_s, strict=True)
    ]
    parts = (I, W) if Instruction(I, 0) in took_s[0] else (B,)
    stages: list[list[Instruction]] = []
    for stage in range(num_stages):
        in_front = min(num_stages - stage, total)
        order = [Instruction(F, m) for m in range(in_front)]
        for m in range(total):
            order += [Instruction(kind, m) for kind in parts]
            order += [Instruction(F, m + in_front)] if m + in_front < total else []
        stages.append(order)
    schedule = Schedule(name="unrolled", num_microbatches=total, stages=tuple(map(tuple, stages)))
    durations_s = [
        took_s[stage][Instruction(unit.kind, unit.microbatch % num_microbatches)]
        for stage, order in enumerate(stages)
        for unit in order
    ]
    finish_s = event_driven_finish_s(schedule, durations_s)
    ends = [
        node
        for node, unit in enumerate(stages[0])
        if unit.kind is parts[-1] and (unit.microbatch + 1) % num_microbatches == 0
    ]
    return [finish_s[node] for node in ends]


@st.composite
def times_by_kind(draw: st.DrawFn, most_ticks: int = 40) -> tuple[Times, bool]:
    """Periods in which all instructions of a stage and kind take equally long."""
    num_stages = draw(st.integers(1, 4))
    num_microbatches = draw(st.integers(1, 4))
    split = draw(st.booleans())
    length = 3 if split else 2
    ticks = st.lists(st.integers(1, most_ticks), min_size=length, max_size=length)
    return [[TICK_S * n for n in draw(ticks)] * num_microbatches for _ in range(num_stages)], split


def assignment_of(times_s: Times, split: bool) -> list[int]:
    """The model's: a node for each kind of a stage."""
    num_kinds = 3 if split else 2
    return [round(time_s / TICK_S) - 1 for of_stage in times_s for time_s in of_stage[:num_kinds]]


@given(timed=times_by_kind())
def test_the_period_is_what_the_busiest_stage_takes(timed: tuple[Times, bool]) -> None:
    times_s, split = timed
    model = model_with_a_clock_for_each_time("pipedream", times_s, split)
    simulation = simulate(model, assignment_of(times_s, split))
    busy_s = list(map(sum, times_s))
    assert simulation.iteration_time_s == max(busy_s)
    share = sum(busy_s) / len(busy_s) / max(busy_s)
    assert simulation.bubble_fraction == pytest.approx(1 - share, abs=1e-9)


@settings(max_examples=30)  # each runs a pipeline of some hundred instructions
@given(timed=times_by_kind(MOST_TICKS))
def test_with_one_clock_a_stage_and_kind_a_long_run_has_the_predicted_period(
    timed: tuple[Times, bool],
) -> None:
    """Between two late periods of the run so many periods' time has passed, to the last digit.

    A run's pattern may repeat only every few periods; 12 is a multiple of all that four stages
    can make. Before that stage 0 runs ahead by a tick per microbatch at least, until all that the
    other stages can hold, at most three times 18 ticks, is used up.
    """
    times_s, split = timed
    model = model_with_a_clock_for_each_time("pipedream", times_s, split)
    assignment = assignment_of(times_s, split)
    period_s = simulate(model, assignment).iteration_time_s
    late = 16 + 3 * 3 * MOST_TICKS // model.schedule.num_microbatches
    finish_s = unrolled_finish_s(model, times_s, num_periods=late + 18)
    assert finish_s[late + 12] - finish_s[late] == 12 * period_s


def test_with_other_clocks_for_other_microbatches_the_slowest_stage_does_not_set_the_pace() -> None:
    """F1 B0 F0 B1 and F0 B0 F1 B1: microbatch 0 takes 6 ticks down and up, before it comes again.

    So a plan of a steady state has one clock for all microbatches of a stage and kind.
    """
    times_s = [[TICK_S, TICK_S, 2 * TICK_S, TICK_S], [TICK_S, 2 * TICK_S, TICK_S, TICK_S]]
    model = model_with_a_clock_for_each_time("pipedream", times_s, False)
    finish_s = unrolled_finish_s(model, times_s, num_periods=34)
    assert max(map(sum, times_s)) == 5 * TICK_S
    assert finish_s[28] - finish_s[16] == 12 * 6 * TICK_S


@pytest.mark.parametrize(("num_stages", "num_microbatches"), [(1, 1), (2, 2), (3, 5), (4, 8)])
def test_versions_of_weights_and_microbatches_in_flight(
    num_stages: int, num_microbatches: int
) -> None:
    """PipeDream stashes K - s versions, 2BW two; both keep K - s microbatches in flight."""
    context = context_of(equal_profile(num_stages), num_microbatches)
    in_flight = tuple(num_stages - stage for stage in range(num_stages))
    assert schedule_for("pipedream", context).weight_versions == in_flight
    assert schedule_for("pipedream-2bw", context).weight_versions == (2,) * num_stages
    for name in ("pipedream", "pipedream-2bw"):
        model = model_of(context.profile, num_microbatches, name)
        assert simulate(model, model.baseline()).peak_activations == in_flight
