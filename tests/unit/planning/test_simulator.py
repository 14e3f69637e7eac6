"""The simulator: on paper, by the papers' formulas, and against an independent timing."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyball_pipeline.instruction import Instruction
from flyball_pipeline.schedule import Schedule
from flyball_server.planning.documents.plan_text import plan_rows
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.model.simulator import Simulation, simulate
from flyball_server.planning.scheduling import schedule_for

from .oracles import event_driven_finish_s, planned_schedule
from .tiny_pipelines import (
    TICK_S,
    B,
    F,
    I,
    W,
    assigned_any_models,
    context_of,
    equal_profile,
    model_of,
    profile_of,
    timed_profile,
)


def test_two_stages_and_two_microbatches_run_as_on_paper() -> None:
    """Stage 0: F0 F1 B0 B1, stage 1: F0 B0 F1 B1; forward 1 s, backward 2 s."""
    model = model_of(equal_profile(2), 2)
    simulation = simulate(model, model.baseline())
    assert simulation.start_s == (0, 1, 4, 7, 1, 2, 4, 5)
    assert simulation.finish_s == (1, 2, 6, 9, 2, 4, 5, 7)
    assert simulation.wait_s == (0, 0, 2, 1, 1, 0, 0, 0)
    assert simulation.float_s == (0, 2, 1, 0, 0, 0, 0, 0)
    assert simulation.critical_path == (0, 4, 5, 6, 7, 3)
    assert simulation.iteration_time_s == 9
    assert simulation.bubble_fraction == pytest.approx(1 / 3, abs=1e-15)


def test_instructions_of_nanoseconds_have_a_true_critical_path() -> None:
    """The two-stage pipeline again, a billion times faster: no wait is taken for rounding."""
    stage = {F: [(2, 1e-9, 1.0), (1, 9e-9, 1.0)], B: [(2, 2e-9, 1.0), (1, 9e-9, 1.0)]}
    model = model_of(profile_of([stage, stage]), 2)
    assert simulate(model, model.baseline()).critical_path == (0, 4, 5, 6, 7, 3)


NUM_STAGES = (1, 2, 3, 4, 6)
# Multiples of the number of stages, as interleaving wants them.
GROUPS = (1, 2, 5)


def simulated(
    schedule: str,
    num_stages: int,
    num_microbatches: int,
    times: tuple[float, float, float] = (1.0, 1.0, 1.0),
    num_chunks: int = 1,
) -> Simulation:
    """All at the highest clock; a whole backward takes as long as both its parts."""
    forward_s, input_s, weight_s = times
    times_s = {F: forward_s, B: input_s + weight_s, I: input_s, W: weight_s}
    profile = timed_profile(num_stages, times_s, num_chunks)
    model = model_of(profile, num_microbatches, schedule)
    return simulate(model, model.baseline())


@pytest.mark.parametrize(
    ("schedule", "num_chunks"),
    [
        *[("gpipe", 1), ("1f1b", 1), ("interleaved-1f1b", 2), ("interleaved-1f1b", 3)],
        *[("interleaved-1f1b", 4), ("looped-bfs", 2), ("looped-bfs", 3), ("looped-bfs", 4)],
    ],
)
@pytest.mark.parametrize("num_stages", NUM_STAGES)
def test_chunks_divide_the_bubble_of_one_f_one_b(
    schedule: str, num_chunks: int, num_stages: int
) -> None:
    """(K-1) / (v M + K-1): Narayanan et al., SC 2021; the same for GPipe and breadth first."""
    for group in GROUPS:
        num_microbatches = group * num_stages
        simulation = simulated(
            schedule, num_stages, num_microbatches, (1.0, 0.75, 1.25), num_chunks
        )
        slots = num_chunks * num_microbatches + num_stages - 1
        assert simulation.iteration_time_s == 3 * slots
        assert simulation.bubble_fraction == pytest.approx((num_stages - 1) / slots, abs=1e-12)


@pytest.mark.parametrize("num_stages", NUM_STAGES)
@pytest.mark.parametrize(
    "times", [(1.0, 1.0, 1.0), (2.0, 2.0, 1.0), (4.0, 5.0, 3.0), (3.0, 5.0, 2.0), (4.0, 6.0, 1.0)]
)
def test_zb_h1_leaves_the_bubble_of_its_paper(
    num_stages: int, times: tuple[float, float, float]
) -> None:
    """(K-1) (F + I - W) for M >= K and W <= I, F <= I: Qi et al., ICLR 2024, table 2."""
    forward_s, input_s, weight_s = times
    for num_microbatches in (num_stages, num_stages + 1, 3 * num_stages + 1):
        bubble_s = (num_stages - 1) * (forward_s + input_s - weight_s)
        assert simulated("zb-h1", num_stages, num_microbatches, times).iteration_time_s == (
            num_microbatches * sum(times) + bubble_s
        )


@pytest.mark.parametrize("num_stages", NUM_STAGES)
def test_zbv_has_no_bubble_but_the_first_where_all_parts_take_equally_long(num_stages: int) -> None:
    """From 2 K - 1 microbatches on, only the wait for the first one is left: K-1 forwards."""
    for num_microbatches in (2 * num_stages - 1, 2 * num_stages, 4 * num_stages + 1):
        simulation = simulated("zbv", num_stages, num_microbatches, num_chunks=2)
        assert simulation.iteration_time_s == 6 * num_microbatches + num_stages - 1


@pytest.mark.parametrize("num_stages", NUM_STAGES)
@pytest.mark.parametrize("num_chunks", [2, 3])
def test_interleaved_zero_bubble_is_zb_h1_in_its_bubble_and_less_than_interleaved(
    num_stages: int, num_chunks: int
) -> None:
    """K-1 forwards of a chunk, a third of what interleaved 1F1B idles."""
    num_microbatches = 2 * num_stages
    busy_s = 3 * num_chunks * num_microbatches
    idle_s = [
        simulated(name, num_stages, num_microbatches, num_chunks=num_chunks).iteration_time_s
        - busy_s
        for name in ("interleaved-1f1b", "interleaved-zb")
    ]
    assert idle_s == [3 * (num_stages - 1), num_stages - 1]


@pytest.mark.parametrize("num_stages", NUM_STAGES)
@pytest.mark.parametrize("num_chunks", [2, 3, 4])
def test_interleaving_holds_its_warm_up_and_one_more(num_stages: int, num_chunks: int) -> None:
    """min((v-1) K + 2 (K-1-s) + 1, v M) chunks on stage s."""
    for num_microbatches in (num_stages, 2 * num_stages, 3 * num_stages):
        peaks = simulated(
            "interleaved-1f1b", num_stages, num_microbatches, num_chunks=num_chunks
        ).peak_activations
        assert peaks == tuple(
            min(
                (num_chunks - 1) * num_stages + 2 * (num_stages - 1 - stage) + 1,
                num_chunks * num_microbatches,
            )
            for stage in range(num_stages)
        )


@pytest.mark.parametrize("num_stages", NUM_STAGES)
def test_breadth_first_holds_all(num_stages: int) -> None:
    peaks = simulated("looped-bfs", num_stages, 3, num_chunks=2).peak_activations
    assert peaks == (6,) * num_stages


@pytest.mark.parametrize(
    ("num_stages", "num_microbatches"), list(itertools.product(NUM_STAGES, (1, 3, 6, 13)))
)
def test_zb_h1_and_zbv_hold_no_more_than_the_first_stage_of_one_f_one_b(
    num_stages: int, num_microbatches: int
) -> None:
    """K whole stages; ZBV in chunks, of which two make a stage."""
    of_zb_h1 = simulated("zb-h1", num_stages, num_microbatches).peak_activations
    assert of_zb_h1 == (min(num_stages, num_microbatches),) * num_stages
    of_zbv = simulated("zbv", num_stages, num_microbatches, num_chunks=2).peak_activations
    assert max(of_zbv) == 2 * min(num_stages, num_microbatches)


@pytest.mark.parametrize("num_stages", NUM_STAGES)
def test_dualpipev_holds_one_chunk_more_than_zbv(num_stages: int) -> None:
    """2 K + 1 chunks on every stage (DeepSeek's table of DualPipeV says PP + 1, for PP = 2 K)."""
    for num_microbatches in (2 * num_stages, 2 * num_stages + 3):
        simulation = simulated("dualpipev", num_stages, num_microbatches, num_chunks=2)
        assert simulation.peak_activations == (2 * num_stages + 1,) * num_stages


Assigned = tuple[PipelineModel, list[int]]


@given(assigned_any_models())
def test_every_instruction_finishes_when_an_event_simulation_says(assigned: Assigned) -> None:
    model, assignment = assigned
    expected_s = event_driven_finish_s(planned_schedule(model), model.durations_s(assignment))
    simulation = simulate(model, assignment)
    assert list(simulation.finish_s) == expected_s
    assert simulation.iteration_time_s == max(expected_s)


@given(assigned_any_models(), st.data())
def test_an_instruction_may_take_its_float_longer_and_no_more(
    assigned: Assigned, data: st.DataObject
) -> None:
    model, assignment = assigned
    simulation = simulate(model, assignment)
    durations_s = model.durations_s(assignment)
    node = data.draw(st.integers(0, model.dag.num_nodes - 1))
    durations_s[node] += simulation.float_s[node]
    stretched_s = max(event_driven_finish_s(planned_schedule(model), durations_s))
    assert stretched_s == simulation.iteration_time_s
    durations_s[node] += TICK_S
    overdone_s = max(event_driven_finish_s(planned_schedule(model), durations_s))
    assert overdone_s == simulation.iteration_time_s + TICK_S


@given(assigned_any_models())
def test_the_critical_path_is_connected_and_fills_the_iteration(assigned: Assigned) -> None:
    model, assignment = assigned
    simulation = simulate(model, assignment)
    path, durations_s = simulation.critical_path, model.durations_s(assignment)
    assert simulation.start_s[path[0]] == 0
    assert simulation.finish_s[path[-1]] == simulation.iteration_time_s
    assert sum(durations_s[node] for node in path) == simulation.iteration_time_s
    for before, node in itertools.pairwise(path):
        assert before in model.dag.predecessors(node)
        assert simulation.finish_s[before] == simulation.start_s[node]
    assert all(simulation.float_s[node] == 0 for node in path)


@given(st.lists(st.floats(1e-3, 10), min_size=4, max_size=4), st.integers(1, 6))
def test_rounding_never_makes_a_wait_negative(times_s: list[float], num_microbatches: int) -> None:
    forward_s, backward_s, other_forward_s, other_backward_s = times_s
    stages = [
        {F: [(2, first_s, 1.0), (1, 99.0, 1.0)], B: [(2, then_s, 1.0), (1, 99.0, 1.0)]}
        for first_s, then_s in [(forward_s, backward_s), (other_forward_s, other_backward_s)] * 2
    ]
    model = model_of(profile_of(stages), num_microbatches)
    simulation = simulate(model, model.baseline())
    assert all(wait_s >= 0 for wait_s in simulation.wait_s)
    assert not any(row for row in plan_rows(model, model.baseline(), simulation) if "-0.0" in row)


@given(assigned_any_models())
def test_each_stage_is_busy_or_waiting_and_both_take_their_power(assigned: Assigned) -> None:
    """Counted stage by stage: what its instructions take, then its idle seconds in watts."""
    model, assignment = assigned
    simulation = simulate(model, assignment)
    assert all(wait_s >= 0 for wait_s in simulation.wait_s)
    energy_j = idle_s = 0.0
    for stage in range(model.schedule.num_stages):
        nodes = [node for node in range(model.dag.num_nodes) if model.dag.stage[node] == stage]
        points = [model.points[node][assignment[node]] for node in nodes]
        busy_s = sum(point.time_s for point in points)
        waits_s = sum(simulation.wait_s[node] for node in nodes)
        assert busy_s + waits_s == simulation.finish_s[nodes[-1]]
        stage_idle_s = simulation.iteration_time_s - busy_s
        energy_j += sum(point.energy_j for point in points)
        energy_j += stage_idle_s * model.blocking_power_w[stage] * model.num_ranks[stage]
        idle_s += stage_idle_s
    stage_seconds = model.schedule.num_stages * simulation.iteration_time_s
    assert simulation.energy_j == pytest.approx(energy_j, rel=1e-12)
    assert simulation.bubble_fraction == pytest.approx(idle_s / stage_seconds, abs=1e-12)


def text_of(model: PipelineModel, assignment: Sequence[int]) -> str:
    return "\n".join(plan_rows(model, assignment, simulate(model, assignment)))


def test_a_row_a_stage_with_clock_wait_and_the_critical_path_in_brackets() -> None:
    """Forward 10 ms and backward 20 ms at 1980 MHz; F1 of stage 0 takes 15 ms at 900 MHz."""
    stage = {F: [(1980, 0.01, 1.0), (900, 0.015, 1.0)], B: [(1980, 0.02, 1.0), (900, 0.03, 1.0)]}
    model = model_of(profile_of([stage, stage]), 2)
    assert text_of(model, [0, 1, 0, 0, 0, 0, 0, 0]) == (
        "Stage 0 | [F0 1980 0.0]   F1 900 0.0     B0 1980 15.0  [B1 1980 10.0]\n"
        "Stage 1 | [F0 1980 10.0] [B0 1980 0.0]  [F1 1980 0.0]  [B1 1980 0.0]"
    )


# ------------------------------------------------------------------ pipedream and pipedream-2bw


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
