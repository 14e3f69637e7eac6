"""Orders that a plan may have, as DeepSpeed's instructions: by hand, and by properties."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("deepspeed", reason="needs the extra 'deepspeed'")

import torch
import torch.distributed
from deepspeed.runtime.pipe import p2p, schedule
from tests.p2p_checker.checker import PipelineChecker, Window
from tests.unit.planning.tiny_pipelines import B, F, operating_points, profile_of

from flyball_integrations.deepspeed.engine_order import EagerP2P, OrderedP2P, PlannedSchedule
from flyball_pipeline.errors import PipelineError
from flyball_pipeline.instruction import Instruction, equal_stages
from flyball_pipeline.schedule import Schedule
from flyball_pipeline.schedules.one_f_one_b import warmup_then_alternate
from flyball_server.planning.scheduling import ActivationMemory, ScheduleContext, schedule_for

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


def order(num_microbatches: int, *stages: str) -> Schedule:
    """`F0 B0` of each stage as an order."""
    return Schedule(
        name="by hand",
        num_microbatches=num_microbatches,
        stages=tuple(
            tuple(Instruction({"F": F, "B": B}[word[0]], int(word[1:])) for word in stage.split())
            for stage in stages
        ),
    )


def in_front(num_microbatches: int, forwards: Sequence[int]) -> Schedule:
    """So many forwards in front of each stage's first backward, whether that can run or not."""
    shape = equal_stages(len(forwards), num_microbatches)
    return Schedule(
        name="in front",
        num_microbatches=num_microbatches,
        stages=tuple(map(tuple, warmup_then_alternate(shape, forwards))),
    )


def schedules(order: Schedule, p2p: OrderedP2P) -> list[PlannedSchedule]:
    return [PlannedSchedule(order, stage_id=stage, p2p=p2p) for stage in range(order.num_stages)]


def written(planned: PlannedSchedule) -> str:
    """The list as `L0 F0 sa0`, each with its buffer."""
    return " ".join(
        f"{SHORT[command.name]}{command.kwargs.get('buffer_id', '')}"
        for step in planned.steps()
        for command in step
    )


def run(order: Schedule, p2p: OrderedP2P) -> PipelineChecker:
    """Check the lists with the P2P that they are for; eager sends have the windows of EagerP2P."""
    in_flight = order.peak_activations
    windows = [
        Window(activations=own, gradients=in_flight[max(0, stage - 1)])
        for stage, own in enumerate(in_flight)
    ]
    checker = PipelineChecker(
        schedules(order, p2p),
        sends="posted" if p2p == "eager" else "waiting",
        windows=windows,
        has_loss_per_buffer=True,
    )
    checker.run()
    return checker


# ------------------------------------------------------------------ by hand

# One extra warm-up forward on the first of two stages, three microbatches.
ENVPIPE = order(3, "F0 F1 F2 B0 B1 B2", "F0 B0 F1 B1 F2 B2")


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


@pytest.mark.parametrize("p2p", ["eager", "pulled"])
def test_an_order_that_waits_for_itself_is_refused_in_words(p2p: OrderedP2P) -> None:
    ahead = order(2, "F0 B0 F1 B1", "F0 F1 B0 B1")
    with pytest.raises(PipelineError, match="the order deadlocks: stage 0 waits forever before"):
        PlannedSchedule(ahead, stage_id=0, p2p=p2p)


# ------------------------------------------------------------------ properties


@given(
    num_microbatches=st.integers(1, 12),
    forwards_in_front=st.lists(st.integers(1, 12), min_size=2, max_size=6),
    p2p=st.sampled_from(["eager", "pulled"]),
)
def test_every_order_either_runs_right_or_is_refused(
    num_microbatches: int, forwards_in_front: list[int], p2p: OrderedP2P
) -> None:
    order = in_front(num_microbatches, forwards_in_front)
    # A stage that needs more forwards before its first backward than the stage before has,
    # before its own, waits forever: with all of them equal nobody does.
    counts = [min(count, num_microbatches) for count in forwards_in_front]
    if any(later > sooner for sooner, later in pairwise(counts)):
        with pytest.raises(PipelineError, match="forever"):
            run(order, p2p)
        return
    assert run(order, p2p).most_in_flight == list(order.peak_activations)


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
    order = in_front(num_microbatches, counts)
    in_flight = order.peak_activations
    for own, planned in zip(in_flight, schedules(order, "eager"), strict=True):
        assert planned.num_pipe_buffers() == own
    for stage, planned in enumerate(schedules(order, "pulled")):
        # A gradient waits until the stage before takes it, an input with it.
        own, before = in_flight[stage], in_flight[max(0, stage - 1)]
        assert own <= planned.num_pipe_buffers() <= max(before, own)


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
    run(schedule_for("envpipe", context), p2p)


# ------------------------------------------------------------------ sends that are kept


class Sends:
    """Stands in for torch.distributed: what was posted, and which sends were waited for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, backend: str = "gloo") -> None:
        self.posted: list[tuple[int, str, float]] = []
        self.over: list[float] = []
        self.tensors: list[torch.Tensor] = []
        groups = iter(["activations", "gradients"])
        monkeypatch.setattr(torch.distributed, "get_backend", lambda: backend)
        monkeypatch.setattr(torch.distributed, "new_group", lambda: next(groups))
        monkeypatch.setattr(torch.distributed, "isend", self._isend)

    def _isend(self, tensor: torch.Tensor, rank: int, *, group: str) -> Any:  # noqa: ANN401 - a Work
        self.posted.append((rank, group, float(tensor)))
        self.tensors.append(tensor)
        return SimpleNamespace(wait=lambda: self.over.append(float(tensor)))


def eager(*, stage: int = 1, num_stages: int = 3) -> EagerP2P:
    grid = SimpleNamespace(
        pipe_parallel_size=num_stages,
        get_stage_id=lambda: stage,
        stage_to_global=lambda stage_id: 10 + stage_id,
    )
    return EagerP2P(grid)


def sending(made: EagerP2P, kind: type, dest_stage: int) -> Any:  # noqa: ANN401 - an instruction
    """Return what executes a send of the given tensors."""

    def execute(engine: object, buffer_id: int, tensors: list[torch.Tensor]) -> None:
        for tensor in tensors:
            p2p.send(tensor, dest_stage)

    instructions = {schedule.SendActivation: execute, schedule.SendGrad: execute}
    wrapped = made.wrap(instructions)[kind]
    return lambda *values: wrapped(
        None, buffer_id=0, tensors=[torch.tensor(float(value)) for value in values]
    )


def test_no_more_is_kept_than_may_be_under_way_and_a_microbatch_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Stage 1 of 3 in 1F1B has 2 in flight, and stage 0 has 3.
    sends, made = Sends(monkeypatch), eager()
    with made.in_force():
        activation = sending(made, schedule.SendActivation, 2)
        activation(1, 1.5)
        activation(2, 2.5)
        assert sends.over == []
        activation(3, 3.5)
        assert sends.over == [1.0, 1.5]
        gradient = sending(made, schedule.SendGrad, 0)
        for value in (11, 12, 13):
            gradient(value)
        assert sends.over == [1.0, 1.5]
        gradient(14)
        assert sends.over == [1.0, 1.5, 11.0]


def test_a_sent_tensor_does_not_keep_its_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    sends, made = Sends(monkeypatch), eager()
    output = torch.ones((), requires_grad=True) * 2
    execute = made.wrap(
        {
            schedule.SendActivation: lambda engine, buffer_id: p2p.send(output, 2),
            schedule.SendGrad: print,
        }
    )[schedule.SendActivation]
    with made.in_force():
        execute(None, buffer_id=0)
    (sent,) = sends.tensors
    assert sent.grad_fn is None
    assert sent.data_ptr() == output.data_ptr()


def test_nccl_is_refused_with_what_to_use_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    Sends(monkeypatch, backend="nccl")
    with pytest.raises(ValueError, match=r"this run uses nccl; use p2p='stock', or p2p='pulled'"):
        eager()
