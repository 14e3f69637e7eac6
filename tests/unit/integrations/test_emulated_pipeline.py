"""Emulated pipelines in virtual time, reckoned by hand, without a planner's word on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from flyball_client.gpu.emulated import (
    IDEAL_GPU,
    EmulatedGpu,
    EmulatedGpuSettings,
    EmulatedNode,
    LeapingClock,
    RandomTime,
)
from flyball_client.session.active_plan import compile_plan
from flyball_client.session.rank_session import RankSession
from flyball_lab.emulation.emulated_pipeline import (
    EmulatedDeadlockError,
    EmulatedRank,
    Order,
    run_step,
)
from flyball_pipeline.instruction import InstructionKind
from flyball_profiles.stage_profile import OperatingPoint, StageProfile
from flyball_wire.plans.rank_plan import rank_plan

BLOCKING_POWER_W = 80.0


def profile(num_stages: int) -> StageProfile:
    """Forward 0.1 s and 30 J, backward 0.2 s and 62 J, half as fast at half the clock.

    Either part of a split backward takes half of it.
    """
    return StageProfile(
        points={
            (stage, kind): tuple(
                OperatingPoint(
                    frequency_mhz=1400 // slow, time_s=time_s * slow, energy_j=energy_j / slow
                )
                for slow in (1, 2)
            )
            for stage in range(num_stages)
            for kind, time_s, energy_j in (
                (InstructionKind.FORWARD, 0.1, 30.0),
                (InstructionKind.BACKWARD, 0.2, 62.0),
                (InstructionKind.BACKWARD_INPUT, 0.1, 31.0),
                (InstructionKind.BACKWARD_WEIGHT, 0.1, 31.0),
            )
        },
        num_ranks_per_stage=(1,) * num_stages,
    )


def order(text: str) -> Order:
    """`F0 F1 B0 I1 W1` as an order."""
    kinds = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight"}
    return tuple((kinds[word[0]], int(word[1:])) for word in text.split())


@contextmanager
def pipelines(
    orders: list[Order],
    *,
    num_pipelines: int = 1,
    slowed: dict[tuple[int, int], float] | None = None,
    settings: EmulatedGpuSettings = IDEAL_GPU,
) -> Iterator[list[EmulatedRank]]:
    """Ranks that run these orders at the highest clocks, closed in the end.

    Args:
        orders: of the stages.
        num_pipelines: alike.
        slowed: slowdowns of GPUs, by pipeline and stage.
        settings: of all GPUs, which are in one node.
    """
    ranks: list[EmulatedRank] = []
    node = EmulatedNode()
    for pipeline in range(num_pipelines):
        for stage, of_stage in enumerate(orders):
            clock = LeapingClock()
            gpu = EmulatedGpu(
                profile(len(orders)),
                stage,
                blocking_power_w=BLOCKING_POWER_W,
                settings=settings,
                node=node,
                counter_period_s=1e-9,
                clock=clock,
            )
            gpu.set_slowdown((slowed or {}).get((pipeline, stage), 1.0))
            session = RankSession(gpu=gpu, job_id="job", rank=len(ranks), stage=stage, planner=None)
            ranks.append(
                EmulatedRank(
                    pipeline=pipeline,
                    stage=stage,
                    order=of_stage,
                    session=session,
                    gpu=gpu,
                    clock=clock,
                )
            )
    yield ranks
    for rank in ranks:
        rank.session.close()


ONE_F_ONE_B = [order("F0 F1 B0 F2 B1 B2"), order("F0 B0 F1 B1 F2 B2")]


@pytest.mark.parametrize("num_pipelines", [1, 3])
def test_two_stages_and_three_microbatches_take_what_they_take_by_hand(num_pipelines: int) -> None:
    """T = 4 (0.1 + 0.2) s; a stage is busy for 0.9 s with 276 J and waits 0.3 s at 80 W.

    Stage 0: F0 F1, waits, B0 from 0.4 on; stage 1 gives gradients at 0.4, 0.7 and 1.0 s.
    """
    with pipelines(ONE_F_ONE_B, num_pipelines=num_pipelines) as ranks:
        for _ in range(2):
            step = run_step(ranks, num_stages=2)
            assert [measured.time_s for measured in step] == pytest.approx([1.2] * len(ranks))
            assert [measured.energy_j for measured in step] == pytest.approx(
                [300.0] * len(ranks), abs=1e-5
            )
            for first, last in zip(ranks[::2], ranks[1::2], strict=True):
                assert waits_s(first) == pytest.approx(
                    {"F0": 0.0, "F1": 0.0, "B0": 0.2, "F2": 0.0, "B1": 0.0, "B2": 0.1}
                )
                assert waits_s(last) == pytest.approx(
                    {"F0": 0.1, "B0": 0.0, "F1": 0.0, "B1": 0.0, "F2": 0.0, "B2": 0.0}
                )


def waits_s(rank: EmulatedRank) -> dict[str, float]:
    """Return what each instruction of the last step waited for its input, by name, s."""
    return {
        f"{timing.kind[0].upper()}{timing.microbatch}": timing.receive_time_s
        for timing in rank.session.last_step_timings
    }


def test_a_message_that_takes_its_time_is_waited_for_where_nothing_else_is_left_to_do() -> None:
    """F0 at 0 and 0.15 s, B0 at 0.25 and 0.5 s; F1 of stage 0 is computed meanwhile."""
    with pipelines([order("F0 F1 B0 B1"), order("F0 B0 F1 B1")]) as (first, last):
        step = run_step([first, last], num_stages=2, transfer_time_s=0.05)
    assert waits_s(first) == pytest.approx({"F0": 0.0, "F1": 0.0, "B0": 0.3, "B1": 0.1})
    assert waits_s(last) == pytest.approx({"F0": 0.15, "B0": 0.0, "F1": 0.0, "B1": 0.0})
    assert [measured.time_s for measured in step] == pytest.approx([1.0, 1.0])


def test_of_a_split_backward_the_first_part_gives_the_gradient() -> None:
    """I0 of stage 0 waits for that of stage 1, which begins at 0.2 s, and W0 for nothing."""
    with pipelines([order("F0 I0 W0")] * 2) as ranks:
        step = run_step(ranks, num_stages=2)
        assert [measured.time_s for measured in step] == pytest.approx([0.5, 0.5])
        waits = [
            [timing.receive_time_s for timing in rank.session.last_step_timings] for rank in ranks
        ]
    assert waits == [pytest.approx([0.0, 0.2, 0.0]), pytest.approx([0.1, 0.0, 0.0])]


def test_a_pipeline_with_a_straggler_keeps_the_other_ones_waiting_at_the_end() -> None:
    """Its stage 1 takes 1.5 times as long: 0.1 s before it, 3 (0.15 + 0.3) s, 0.2 s after it."""
    with pipelines(ONE_F_ONE_B, num_pipelines=2, slowed={(1, 1): 1.5}) as ranks:
        step = run_step(ranks, num_stages=2)
        assert [measured.time_s for measured in step] == pytest.approx(4 * [1.65])
        # The first pipeline does what it did, 0.45 s less of which it waits in the end.
        energies_j = [measured.energy_j for measured in step]
        assert energies_j[:2] == pytest.approx(2 * [300.0 + 0.45 * BLOCKING_POWER_W], abs=1e-5)
        assert energies_j[3] == pytest.approx(1.5 * 276.0 + 0.3 * BLOCKING_POWER_W, abs=1e-5)
        assert waits_s(ranks[0]) == pytest.approx(
            {"F0": 0.0, "F1": 0.0, "B0": 0.2, "F2": 0.0, "B1": 0.0, "B2": 0.1}
        )


def test_orders_that_wait_for_each_other_are_told_and_not_waited_for() -> None:
    # Stage 0 wants a gradient before it has sent anything.
    with (
        pipelines([order("B0 F0"), order("F0 B0")]) as ranks,
        pytest.raises(
            EmulatedDeadlockError, match=r"stage 0 for backward 0.*stage 1 for forward 0"
        ),
    ):
        run_step(ranks, num_stages=2)
    with (
        pipelines([order("F1 F0 B0 B1"), order("F0 F1 B0 B1")]) as ranks,
        pytest.raises(EmulatedDeadlockError, match="receives microbatch 1 of stage 0"),
    ):
        run_step(ranks, num_stages=2)


def test_timed_calls_of_a_node_queue_in_the_order_of_virtual_time_also_while_a_rank_waits() -> None:
    """Stage 0 waits for its gradient from 0.1 s on, and its timed call, of 20 ms, is at 0.25 s.

    Stage 1 asks at 0.255 s, within its backward from 0.2 to 0.4 s: its call waits until 0.27 s,
    and the backward has 0.13 s at 1400 MHz to go, or 0.39 s at 700 MHz where it takes 0.6 s.
    """
    settings = EmulatedGpuSettings(call_time=RandomTime(p50_s=0.02), delay_down=RandomTime())
    with pipelines([order("F0 B0"), order("F0 B0")], settings=settings) as ranks:
        for rank, rows, requests in (
            (ranks[0], (("forward", 0, 1400), ("backward", 0, 700)), ((1, 0, 0.25),)),
            (ranks[1], (("forward", 0, 1400), ("backward", 0, 1400)), ((2, 1, 0.055),)),
        ):
            plan = rank_plan(
                [(*row, 0) for row in rows],
                job_id="job",
                version=1,
                stage=rank.stage,
                first_step=0,
                predicted_iteration_time_s=0.5,
                cycle_mhz=(tuple(mhz for *_, mhz in rows), (700, 700)),
                requests=requests,
            )
            compiled = compile_plan(plan, stage=rank.stage, supported_mhz=(1400, 700))
            rank.session.plans.put(compiled, 0)
        run_step(ranks, num_stages=2)
        calls = [rank.gpu.last_call() for rank in ranks]
        (first, second) = (rank.session.last_step_timings for rank in ranks)
    assert [call and (call.requested_s, call.began_s, call.returned_s) for call in calls] == [
        pytest.approx((0.25, 0.25, 0.27)),
        pytest.approx((0.255, 0.255, 0.29)),
    ]
    assert second[1].compute_time_s == pytest.approx(0.07 + 0.4 * (1 - 0.07 / 0.2))
    assert first[1].compute_time_s == pytest.approx(0.4)
    assert first[1].receive_time_s == pytest.approx(0.2 + second[1].compute_time_s - 0.1)
