"""Orders that a plan may have, as DeepSpeed's instructions: by hand, and by properties."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("deepspeed", reason="needs the extra 'deepspeed'")

from tests.p2p_checker.checker import Deadlock, PipelineChecker, Window
from tests.unit.planning.tiny_pipelines import B, F, equal_profile, operating_points, profile_of

from flyball_integrations.deepspeed.engine_order import OrderedP2P, PlannedSchedule
from flyball_integrations.shared.stage_orders import (
    OrderError,
    StageOrder,
    Unit,
    check_orders,
    default_extra_forwards,
    envpipe_orders,
    in_front,
)
from flyball_server.planning.schedules import make_schedule
from flyball_server.planning.schedules._base import ActivationMemory, ScheduleContext

SHORT = {
    "LoadMicroBatch": "L",
    "ForwardPass": "F",
    "BackwardPass": "B",
    "SendActivation": "sa",
    "RecvActivation": "ra",
    "SendGrad": "sg",
    "RecvGrad": "rg",
    "ReduceTiedGrads": "T",
    "ReduceGrads": "R",
    "OptimizerStep": "O",
}


def order(text: str) -> StageOrder:
    """`F0 B0` as an order."""
    return StageOrder(tuple(Unit(word[0] == "F", int(word[1:])) for word in text.split()))


def schedules(orders: Sequence[StageOrder], p2p: OrderedP2P) -> list[PlannedSchedule]:
    return [PlannedSchedule(orders, stage_id=stage, p2p=p2p) for stage in range(len(orders))]


def planners_orders(name: str, context: ScheduleContext) -> list[StageOrder]:
    return [
        StageOrder(tuple(Unit(kind == F, microbatch) for kind, microbatch, _ in stage))
        for stage in make_schedule(name, context).stages
    ]


def written(planned: PlannedSchedule) -> str:
    """The list as `L0 F0 sa0`, each with its buffer."""
    return " ".join(
        f"{SHORT[command.name]}{command.kwargs.get('buffer_id', '')}"
        for step in planned.steps()
        for command in step
    )


def run(orders: Sequence[StageOrder], p2p: OrderedP2P) -> PipelineChecker:
    """Check the lists with the P2P that they are for; eager sends have the windows of EagerP2P."""
    windows = [
        Window(activations=each.num_in_flight, gradients=orders[max(0, stage - 1)].num_in_flight)
        for stage, each in enumerate(orders)
    ]
    checker = PipelineChecker(
        schedules(orders, p2p),
        sends="posted" if p2p == "eager" else "waiting",
        windows=windows,
        has_loss_per_buffer=True,
    )
    checker.run()
    return checker


# ------------------------------------------------------------------ by hand

# One extra warm-up forward on the first of two stages, three microbatches.
ENVPIPE = (order("F0 F1 F2 B0 B1 B2"), order("F0 B0 F1 B1 F2 B2"))


def test_an_eager_list_sends_at_once_and_receives_just_before() -> None:
    first, last = schedules(ENVPIPE, "eager")
    assert written(first) == "L0 F0 sa0 L1 F1 sa1 L2 F2 sa2 rg0 B0 rg1 B1 rg2 B2 T R O"
    assert written(last) == "ra0 L0 F0 B0 sg0 ra0 L0 F0 B0 sg0 ra0 L0 F0 B0 sg0 T R O"
    assert (first.num_pipe_buffers(), last.num_pipe_buffers()) == (3, 1)


def test_a_pulled_list_sends_where_the_neighbour_receives() -> None:
    # Forwards take 1 and backwards 2. The last stage forwards 0 at 1, 1 at 4, 2 at 7; the first
    # one backwards 0 at 4, 1 at 7, 2 at 10, with gradients that the last one has from 2, 5, 8.
    first, last = schedules(ENVPIPE, "pulled")
    assert written(first) == "L0 F0 sa0 L1 F1 L2 F2 rg0 sa1 B0 rg1 sa2 B1 rg2 B2 T R O"
    assert written(last) == "ra0 L0 F0 B0 sg0 ra0 L0 F0 B0 sg0 ra0 L0 F0 B0 sg0 T R O"


def test_1f1b_with_extra_forwards_deadlocks_where_eager_sends_wait() -> None:
    eager = schedules(ENVPIPE, "eager")
    with pytest.raises(Deadlock):
        PipelineChecker(eager, sends="waiting").run()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "0 forwards and 0 backwards"),
        ("F0", "1 forwards and 0 backwards"),
        ("B0 F0", "backward 0 comes before its forward"),
        ("F1 B1", "forward 1 is in the place of forward 0"),
        ("F0 F1 B1 B0", "backward 1 is in the place of backward 0"),
        ("F0 F0 B0 B0", "forward 0 is in the place of forward 1"),
    ],
)
def test_what_is_no_order_is_refused(text: str, says: str) -> None:
    with pytest.raises(OrderError, match=says):
        order(text)


def test_orders_that_wait_for_each_other_are_refused_in_words() -> None:
    ahead = (order("F0 B0 F1 B1"), order("F0 F1 B0 B1"))
    says = r"wait for each other forever: stage 0 for backward 0, stage 1 for forward 1"
    with pytest.raises(OrderError, match=says):
        check_orders(ahead)
    with pytest.raises(OrderError, match=says):
        PlannedSchedule(ahead, stage_id=0, p2p="pulled")
    with pytest.raises(OrderError, match="different numbers of microbatches: 1, 2"):
        check_orders((order("F0 B0"), order("F0 F1 B0 B1")))


@pytest.mark.parametrize("num_stages", [1, 2, 4, 5])
@pytest.mark.parametrize("num_microbatches", [1, 3, 6, 12])
def test_forwards_in_front_are_the_planners_order(num_stages: int, num_microbatches: int) -> None:
    profile = equal_profile(num_stages)
    default = default_extra_forwards(num_stages, num_microbatches)
    for extra in ((0,) * num_stages, default, (num_microbatches,) * num_stages):
        context = ScheduleContext(
            profile=profile, num_microbatches=num_microbatches, extra_forwards=extra
        )
        orders = envpipe_orders(num_stages, num_microbatches, extra)
        assert list(orders) == planners_orders("envpipe", context)
        if not any(extra):
            one_f_one_b = ScheduleContext(profile=profile, num_microbatches=num_microbatches)
            assert list(orders) == planners_orders("1f1b", one_f_one_b)


def test_by_default_a_stage_has_one_forward_more_for_each_later_stage() -> None:
    assert default_extra_forwards(4, 12) == (3, 2, 1, 0)
    assert default_extra_forwards(4, 7) == (3, 2, 1, 0)
    assert default_extra_forwards(4, 6) == (2, 2, 1, 0)
    assert default_extra_forwards(4, 2) == (0, 0, 0, 0)
    assert default_extra_forwards(1, 2) == (0,)


# ------------------------------------------------------------------ properties


@given(
    num_microbatches=st.integers(1, 12),
    forwards_in_front=st.lists(st.integers(1, 12), min_size=2, max_size=6),
    p2p=st.sampled_from(["eager", "pulled"]),
)
def test_every_order_either_runs_right_or_is_refused(
    num_microbatches: int, forwards_in_front: list[int], p2p: OrderedP2P
) -> None:
    orders = [in_front(num_microbatches, count) for count in forwards_in_front]
    # A stage that needs more forwards before its first backward than the stage before has,
    # before its own, waits forever: with all of them equal nobody does.
    counts = [min(count, num_microbatches) for count in forwards_in_front]
    if any(later > sooner for sooner, later in pairwise(counts)):
        with pytest.raises(OrderError, match="forever"):
            run(orders, p2p)
        return
    assert run(orders, p2p).most_in_flight == [each.num_in_flight for each in orders]


@given(
    num_stages=st.integers(2, 6),
    num_microbatches=st.integers(1, 12),
    extras=st.lists(st.integers(0, 8), min_size=6, max_size=6),
)
def test_a_buffer_is_held_no_longer_than_its_microbatch_needs(
    num_stages: int, num_microbatches: int, extras: list[int]
) -> None:
    falling = sorted(extras[: num_stages - 1], reverse=True)
    counts = [num_stages - stage + extra for stage, extra in enumerate([*falling, 0])]
    orders = [in_front(num_microbatches, count) for count in counts]
    for each, planned in zip(orders, schedules(orders, "eager"), strict=True):
        assert planned.num_pipe_buffers() == each.num_in_flight
    for stage, planned in enumerate(schedules(orders, "pulled")):
        # A gradient waits until the stage before takes it, an input with it.
        before = orders[max(0, stage - 1)].num_in_flight
        assert (
            orders[stage].num_in_flight
            <= planned.num_pipe_buffers()
            <= max(before, orders[stage].num_in_flight)
        )


@st.composite
def contexts(draw: st.DrawFn) -> ScheduleContext:
    """Two to six stages of any times, with room for any number of activations."""
    num_stages = draw(st.integers(2, 6))
    sizes = st.lists(st.integers(0, 9), min_size=num_stages, max_size=num_stages)
    return ScheduleContext(
        profile=profile_of(
            [{F: draw(operating_points()), B: draw(operating_points())} for _ in range(num_stages)]
        ),
        num_microbatches=draw(st.integers(1, 12)),
        activation_memory=ActivationMemory(
            activation_bytes=(1,) * num_stages, free_bytes=tuple(draw(sizes))
        ),
    )


@given(context=contexts(), p2p=st.sampled_from(["eager", "pulled"]))
def test_every_order_of_envpipes_that_the_planner_makes_runs_right(
    context: ScheduleContext, p2p: OrderedP2P
) -> None:
    run(planners_orders("envpipe", context), p2p)
