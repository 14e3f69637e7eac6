"""Clocks for one step: never late, never dearer than the highest clocks, alike on all ranks."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.pipeline.small_pipelines import (
    BACKWARD,
    FORWARD,
    SmallPipeline,
    cost_j,
    end_at_s,
    factors_of,
    late_end_s,
    longest_path_s,
    pipelines,
    small_pipeline,
    time_s,
)

from flyball_pipeline.clock_rounding import ChangeDelays, StepStart
from flyball_pipeline.dag import build_dag
from flyball_pipeline.instruction import SPLIT_BACKWARD, InstructionKind, equal_stages
from flyball_pipeline.paths import earliest_finish_s
from flyball_pipeline.retiming import (
    MAX_INSTRUCTIONS,
    RetimedPipeline,
    RetimingError,
    StepReserve,
    own_times,
    retime,
)
from flyball_pipeline.schedules.inputs import ScheduleInputs
from flyball_pipeline.schedules.table import make_schedule
from flyball_pipeline.step_curves import ClockPoint

HIGHEST = 1400
EXACT = 1 + 1e-9
A100 = ChangeDelays(up_s=0.02, down_s=0.01)


def durations_s(
    pipeline: SmallPipeline, clocks_mhz: tuple[int, ...], factors: list[float]
) -> list[float]:
    return [
        factor * time_s(kind, mhz)
        for (_, kind, _), mhz, factor in zip(pipeline.nodes, clocks_mhz, factors, strict=True)
    ]


def test_a_rank_alone_stretches_its_step_to_the_deadline() -> None:
    pipeline = small_pipeline(1, 1)
    # 0.1 s and 0.2 s; with 10 % more time both can take 1300 MHz.
    assert retime(pipeline.retimed(), [1, 1], [0.33]) == (1300, 1300)
    # The forward's share, a third of 0.022 s, is too little; the backward gets it too.
    assert retime(pipeline.retimed(), [1, 1], [0.322]) == (HIGHEST, 1300)
    assert retime(pipeline.retimed(), [1, 1], [0.3]) == (HIGHEST, HIGHEST)


def test_a_step_like_the_plans_runs_the_plan_in_force() -> None:
    pipeline = small_pipeline(2, 3)
    plan = tuple(1300 if kind == "forward" else 1200 for _, kind, _ in pipeline.nodes)
    retimed = pipeline.retimed(plan_mhz=plan)
    (plan_s,) = retimed.plan_times
    near = [1 + 1e-10 * (-1) ** n for n in range(len(plan))]
    assert retime(retimed, near, [plan_s]) == plan
    assert retime(retimed, near, [plan_s * 1.2]) != plan
    assert retime(retimed, [1.1] * len(plan), [plan_s]) != plan


def test_each_meeting_has_its_deadline() -> None:
    # One rank, two microbatches, which meets others after each instruction.
    pipeline = small_pipeline(1, 2)
    retimed = pipeline.retimed(meeting=[0, 1, 2, 3])
    factors = [1.0, 1.0, 2.0, 1.0]
    assert own_times(retimed, factors) == pytest.approx((0.1, 0.2, 0.2, 0.2))
    # What one segment leaves is no time of the next.
    assert retime(retimed, factors, [0.11, 0.2, 0.25, 0.219]) == (1300, HIGHEST, 1200, HIGHEST)


def test_a_reserve_is_kept_where_the_highest_clocks_allow() -> None:
    pipeline = small_pipeline(1, 1)
    assert retime(pipeline.retimed(), [1, 1], [0.34], reserve=StepReserve()) == (1300, 1300)
    assert retime(pipeline.retimed(), [1, 1], [0.34], reserve=StepReserve(of_step=0.04)) == (
        HIGHEST,
        1300,
    )
    assert retime(pipeline.retimed(), [1, 1], [0.3], reserve=StepReserve(of_step=0.5)) == (
        HIGHEST,
        HIGHEST,
    )


def test_a_reserve_of_instructions_leaves_the_highest_clocks_what_they_are() -> None:
    # 0.1 s at 1400 MHz and 0.22 s at 1300, 5 % longer: 0.331 s.
    pipeline = small_pipeline(1, 1)
    reserve = StepReserve(of_instruction=0.05)
    assert retime(pipeline.retimed(), [1, 1], [0.332], reserve=reserve) == (HIGHEST, 1300)
    assert retime(pipeline.retimed(), [1, 1], [0.33], reserve=reserve) == (HIGHEST, HIGHEST)
    assert retime(pipeline.retimed(), [1, 1], [0.33]) == (1300, 1300)


def test_refuses_what_it_cannot_retime() -> None:
    pipeline = small_pipeline(1, 1)
    with pytest.raises(RetimingError, match="factors: 1 for 2 instructions"):
        own_times(pipeline.retimed(), [1.0])
    with pytest.raises(RetimingError, match="deadlines_s: 2 for 1 meetings"):
        retime(pipeline.retimed(), [1, 1], [0.3, 0.3])
    for fault in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(RetimingError, match="factors: must be positive"):
            own_times(pipeline.retimed(), [1.0, fault])
        with pytest.raises(RetimingError, match="deadlines_s: must be positive"):
            retime(pipeline.retimed(), [1, 1], [fault])
    for name, wrong in (
        ("points", [FORWARD]),
        ("meeting", [0]),
        ("plan_mhz", [1400] * 3),
        ("waiting_power_w", [80.0] * 2),
    ):
        with pytest.raises(RetimingError, match=f"{name}: {len(wrong)} entries, not"):
            pipeline.retimed(**{name: wrong})
    with pytest.raises(RetimingError, match="meeting: meetings count from 0 without gaps"):
        pipeline.retimed(meeting=[0, 2])
    with pytest.raises(RetimingError, match="in_force_mhz: 2 for 1 stages"):
        retime(pipeline.retimed(), [1, 1], [0.3], in_force_mhz=[1400, 1400])
    for gap_s in (-0.1, float("nan"), float("inf")):
        with pytest.raises(RetimingError, match="gap_s: must be a time"):
            retime(pipeline.retimed(), [1, 1], [0.3], gap_s=gap_s)
    assert MAX_INSTRUCTIONS == 33_000
    with pytest.raises(RetimingError, match="instructions: no step plans for 33002"):
        small_pipeline(1, 16_501).retimed()


@settings(max_examples=60)
@given(st.data())
def test_no_step_is_late_or_takes_more_energy_than_at_the_highest_clocks(
    data: st.DataObject,
) -> None:
    pipeline = data.draw(pipelines())
    factors = data.draw(factors_of(pipeline))
    plan = data.draw(
        st.lists(
            st.sampled_from([point.clock_mhz for point in FORWARD]),
            min_size=len(factors),
            max_size=len(factors),
        )
    )
    reserve = StepReserve(data.draw(st.floats(0, 0.1)), data.draw(st.floats(0, 0.1)))
    highest = (HIGHEST,) * len(factors)
    for parts in ({}, {"plan_mhz": plan}):
        retimed = pipeline.retimed(**parts)
        (own_s,) = own_times(retimed, factors)
        deadline_s = own_s * data.draw(st.floats(0.8, 1.5))
        clocks = retime(retimed, factors, [deadline_s], reserve=reserve)
        took_s = longest_path_s(pipeline.dag, durations_s(pipeline, clocks, factors))
        assert took_s <= max(own_s, deadline_s) * EXACT
        assert cost_j(pipeline, clocks, factors) <= cost_j(pipeline, highest, factors)


@settings(max_examples=60)
@given(st.data(), st.integers(0, 2**32))
def test_whatever_the_delays_are_a_step_is_late_only_as_the_highest_clocks_are(
    data: st.DataObject, seed: int
) -> None:
    pipeline = data.draw(pipelines())
    factors = [factor * data.draw(st.sampled_from([1.0, 0.1])) for factor in
               data.draw(factors_of(pipeline))]  # fmt: skip
    clocks_mhz = [point.clock_mhz for point in FORWARD]
    num_stages = 1 + max(pipeline.dag.stage)
    in_force = [data.draw(st.sampled_from(clocks_mhz)) for _ in range(num_stages)]
    least_up_s, span_s = data.draw(st.floats(0, 0.05)), data.draw(st.floats(0, 0.1))
    down_s = data.draw(st.floats(0, 0.05))
    delays = ChangeDelays(up_s=least_up_s + span_s, down_s=down_s)
    retimed = pipeline.retimed(delays=delays)
    (own_s,) = own_times(retimed, factors)
    deadline_s = own_s * data.draw(st.floats(1.0, 1.3))
    gap_s = data.draw(st.sampled_from([0.0, 0.02, 0.2]))
    clocks = retime(retimed, factors, [deadline_s], in_force_mhz=in_force, gap_s=gap_s)
    highest = (HIGHEST,) * len(factors)
    start = StepStart(retimed.numbers_of(in_force), gap_s)
    times_s = retimed.highest_s(factors)
    worst_s = max(retimed.clocks.rounding.latest_ends_s([0] * len(factors), times_s, start))
    latest_s = late_end_s(
        pipeline, highest, factors, in_force, lambda is_up: delays.up_s if is_up else down_s, gap_s
    )
    assert worst_s == pytest.approx(latest_s)
    rng = random.Random(seed)
    for _ in range(5):
        end_s = late_end_s(
            pipeline,
            clocks,
            factors,
            in_force,
            lambda is_up: (
                least_up_s + rng.choice([0, 1, rng.random()]) * span_s
                if is_up
                else down_s + rng.choice([0, rng.random()]) * 0.1
            ),
            gap_s,
        )
        assert end_s <= max(deadline_s, worst_s) * EXACT


@settings(max_examples=60)
@given(st.data(), st.integers(0, 2**32))
def test_the_latest_end_bounds_every_order_of_delays(data: st.DataObject, seed: int) -> None:
    pipeline = data.draw(pipelines())
    factors = [factor * data.draw(st.sampled_from([1.0, 0.1])) for factor in
               data.draw(factors_of(pipeline))]  # fmt: skip
    num = len(factors)
    choices = data.draw(st.lists(st.integers(0, 3), min_size=num, max_size=num))
    num_stages = 1 + max(pipeline.dag.stage)
    in_force = data.draw(st.lists(st.integers(0, 3), min_size=num_stages, max_size=num_stages))
    up_s, down_s = data.draw(st.floats(0, 0.1)), data.draw(st.floats(0, 0.05))
    retimed = pipeline.retimed(delays=ChangeDelays(up_s=up_s, down_s=down_s))
    by_place = [choices[node] for node in retimed.paths.nodes]
    latest_s = max(
        retimed.clocks.rounding.latest_ends_s(
            by_place, retimed.highest_s(factors), StepStart(in_force, 0.0)
        )
    )
    rng = random.Random(seed)
    for _ in range(5):
        end_s = late_end_s(
            pipeline,
            [retimed.clocks_mhz[choice] for choice in choices],
            factors,
            [retimed.clocks_mhz[number] for number in in_force],
            lambda is_up: (
                rng.choice([0, 1, rng.random()]) * up_s
                if is_up
                else down_s + rng.choice([0, rng.random()]) * 0.1
            ),
        )
        assert end_s <= latest_s * EXACT


ORDERS = (
    *("gpipe", "1f1b", "early-recompute-1f1b", "zb-h1"),
    *("interleaved-1f1b", "looped-bfs", "interleaved-zb", "zbv", "dualpipev"),
)


@pytest.mark.parametrize("name", ORDERS)
def test_no_step_of_any_order_is_late(name: str) -> None:
    kinds = SPLIT_BACKWARD | {InstructionKind.BACKWARD, InstructionKind.RECOMPUTE}
    num_chunks = 2 if name.startswith(("interleaved", "looped", "zbv", "dual")) else 1
    shape = equal_stages(3, 6, kinds=kinds, num_chunks=num_chunks)
    dag = build_dag(make_schedule(name, ScheduleInputs(shape=shape))).with_delays(0.1, [0.01])
    points = [
        FORWARD if each.kind in {"forward", "recompute"} else BACKWARD for each in dag.instruction
    ]
    rng = random.Random(3)
    for delays in (None, A100):
        retimed = RetimedPipeline(dag=dag, points=points, waiting_power_w=[80.0] * 3, delays=delays)
        factors = [rng.lognormvariate(0, 0.3) for _ in points]
        (own_s,) = own_times(retimed, factors)
        clocks = retime(retimed, factors, [own_s])
        took_s = max(
            earliest_finish_s(
                dag,
                [
                    factor * next(each.time_s for each in curve if each.clock_mhz == mhz)
                    for factor, curve, mhz in zip(factors, points, clocks, strict=True)
                ],
            )
        )
        assert took_s <= own_s * EXACT
        assert min(clocks) < HIGHEST


@settings(max_examples=50)
@given(st.data(), st.integers(0, 2**32))
def test_segments_between_meetings_keep_their_deadlines_whatever_the_waits_are(
    data: st.DataObject, seed: int
) -> None:
    pipeline = small_pipeline(1, data.draw(st.integers(1, 5)))
    num = len(pipeline.nodes)
    length = data.draw(st.integers(1, 3))
    meeting = [node // length for node in range(num)]
    factors = [
        factor * data.draw(st.sampled_from([1.0, 0.1]))
        for factor in data.draw(factors_of(pipeline))
    ]
    delays = ChangeDelays(up_s=data.draw(st.floats(0, 0.1)), down_s=data.draw(st.floats(0, 0.05)))
    retimed = pipeline.retimed(meeting=meeting, delays=delays)
    deadlines_s = [own_s * data.draw(st.floats(1, 1.3)) for own_s in own_times(retimed, factors)]
    in_force = data.draw(st.sampled_from([1400, 1200, 1000]))
    clocks = retime(retimed, factors, deadlines_s, in_force_mhz=[in_force])
    highest_s = retimed.paths.segment_times_s(
        retimed.clocks.rounding.latest_ends_s(
            [0] * num, retimed.highest_s(factors), StepStart(retimed.numbers_of([in_force]), 0.0)
        )
    )
    rng = random.Random(seed)
    for _ in range(5):
        waits_s = [rng.choice([0, 0, rng.random() * 0.1]) for _ in deadlines_s]
        begins_s, now_s = [], 0.0
        changes = [(-1.0, in_force)]
        for node in range(num):
            free_s = now_s
            asked = changes[-1][1]
            if clocks[node] != asked:
                is_up = clocks[node] > asked
                delay_s = rng.choice([0, 1, rng.random()]) * delays.up_s if is_up else (
                    delays.down_s + rng.choice([0, 0.1])
                )  # fmt: skip
                changes = [each for each in changes if each[0] < free_s + delay_s]
                changes.append((free_s + delay_s, clocks[node]))
            if node % length == 0:
                begins_s.append(now_s := now_s + waits_s[node // length])
            now_s = end_at_s(pipeline.nodes[node][1], factors[node], now_s, changes)
            took_s = now_s - begins_s[-1]
            allowed_s = max(deadlines_s[meeting[node]], highest_s[meeting[node]])
            assert took_s <= allowed_s * EXACT + 1e-12


def test_a_first_clock_that_comes_late_counts_from_the_step_before() -> None:
    # One rank, 0.1 and 0.2 s. From 1000 MHz its forward begins at that clock: for 0.05 s it does
    # 0.05 / 0.16 of it, the rest takes 0.06875 s: 0.01875 s late.
    pipeline = small_pipeline(1, 1)
    delays = ChangeDelays(up_s=0.05, down_s=0.0)
    retimed = pipeline.retimed(delays=delays)
    for gap_s, ends_s in ((0.0, [0.11875, 0.31875]), (0.05, [0.1, 0.3])):
        start = StepStart(retimed.numbers_of([1000]), gap_s)
        late_s = retimed.clocks.rounding.latest_ends_s([0, 0], [0.1, 0.2], start)
        assert late_s[:2] == pytest.approx(ends_s)


def test_the_last_clocks_of_a_step_let_the_next_one_begin_at_its_own() -> None:
    # One rank, instructions shorter than the delay. The next step, which runs all of them at the
    # highest clock, is as long as without a step before it.
    num, factor = 20, 0.1
    pipeline = small_pipeline(1, num)
    delays = ChangeDelays(up_s=0.05, down_s=0.0)
    retimed = pipeline.retimed(delays=delays)
    factors = [factor] * (2 * num)
    (own_s,) = own_times(retimed, factors)
    clocks = retime(retimed, factors, [1.2 * own_s])
    assert min(clocks) < HIGHEST
    both = small_pipeline(1, 2 * num)
    highest = (HIGHEST,) * len(clocks)

    def end_s(steps: SmallPipeline, clocks: tuple[int, ...]) -> float:
        return late_end_s(
            steps, clocks, [factor] * len(clocks), [HIGHEST], lambda is_up: is_up * delays.up_s
        )

    next_s = end_s(both, clocks + highest) - end_s(pipeline, clocks)
    assert next_s == pytest.approx(own_s, rel=0.0015)


@pytest.mark.parametrize(
    ("num_microbatches", "up_s", "num_highest"),
    [
        (1, 0.05, 0),  # the last instruction is much of the stage's work
        (20, 0.03, 2),  # 0.02 s and 0.01 s: as long as the delay
        (22, 0.5, 6),  # 0.09 s: at most 15 % of 0.66 s
    ],
)
def test_only_last_clocks_that_are_cheaper_than_a_late_first_one_are_high(
    num_microbatches: int, up_s: float, num_highest: int
) -> None:
    pipeline = small_pipeline(1, num_microbatches)
    retimed = pipeline.retimed(delays=ChangeDelays(up_s=up_s, down_s=0.0))
    factors = [0.1] * len(pipeline.nodes)
    (own_s,) = own_times(retimed, factors)
    of_nodes = retime(retimed, factors, [1.5 * own_s])
    clocks = [of_nodes[node] for node in pipeline.dag.topological_order]
    num_low = len(clocks) - num_highest
    assert max(clocks[:num_low]) < HIGHEST
    assert clocks[num_low:] == [HIGHEST] * num_highest


def test_a_stage_that_begins_later_than_its_first_clock_comes_keeps_a_low_last_clock() -> None:
    # The second stage begins 0.1 s after the first, and its clock comes within 0.05 s.
    pipeline = small_pipeline(2, 8)
    retimed = pipeline.retimed(delays=ChangeDelays(up_s=0.05, down_s=0.0))
    factors = [1.0] * len(pipeline.nodes)
    (own_s,) = own_times(retimed, factors)
    clocks = retime(retimed, factors, [1.3 * own_s])
    first, second = (clocks[node] for node in pipeline.dag.last_of_stages)
    assert first == HIGHEST
    assert second < HIGHEST


def test_calls_of_the_other_gpus_of_a_node_come_first() -> None:
    in_node = A100.in_node(0.0045, 8)
    assert in_node.up_s == pytest.approx(0.02 + 7 * 0.0045)
    assert in_node.down_s == 0.01
    with pytest.raises(ValueError, match="down_s must be at least 0, not -1"):
        ChangeDelays(up_s=0.0, down_s=-1)


_DETERMINISM = """
import random
from flyball_pipeline.clock_rounding import ChangeDelays
from flyball_pipeline.retiming import own_times, retime
from tests.unit.pipeline.small_pipelines import small_pipeline
rng = random.Random(7)
pipeline = small_pipeline(4, 6)
for delays in (None, ChangeDelays(up_s=0.2, down_s=0.01)):
    retimed = pipeline.retimed(delays=delays)
    for _ in range(5):
        factors = [rng.lognormvariate(0, 0.4) for _ in pipeline.nodes]
        print(retime(retimed, factors, [own_times(retimed, factors)[0] * 1.1]))
"""


def test_every_process_gets_the_same_clocks() -> None:
    printed = {
        subprocess.run(
            [sys.executable, "-c", _DETERMINISM],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": "."},
            cwd=Path(__file__).parents[3],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(printed) == 1
    assert BACKWARD[0].clock_mhz == HIGHEST


def test_points_that_are_slower_and_dearer_are_never_chosen() -> None:
    pipeline = small_pipeline(1, 1)
    noisy = (*FORWARD, ClockPoint(1250, 0.13, 40.0), ClockPoint(1350, 0.099, 29.0))
    retimed = pipeline.retimed(points=[noisy, BACKWARD])
    chosen = {retime(retimed, [1, 1], [0.3 + 0.002 * n])[0] for n in range(120)}
    assert chosen == {1400, 1300, 1200, 1000}
