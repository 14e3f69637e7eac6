"""Which schedule an engine runs, and what a rank does where something is missing or fails."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("deepspeed", reason="needs the extra 'deepspeed'")

import torch
from deepspeed.runtime.pipe import schedule

from flyball_client.plan_cursor import CompiledPlan
from flyball_integrations import order_switch
from flyball_integrations.activation_memory import RankMemory
from flyball_integrations.order_agreement import Decision, Offer
from flyball_integrations.order_switch import OrderSwitch
from flyball_integrations.planned_schedule import PlannedSchedule
from flyball_integrations.stage_orders import StageOrder, one_f_one_b

KINDS = ("forward", "forward", "forward", "backward", "backward", "backward")
MICROBATCHES = (0, 1, 2, 0, 1, 2)
ALL_IN_FRONT = StageOrder.of_instructions(KINDS, MICROBATCHES)


def plan(version: int = 1, kinds: Sequence[str] = KINDS) -> CompiledPlan:
    return CompiledPlan(
        version=version,
        kinds=tuple(kinds),
        microbatches=MICROBATCHES,
        chunks=(0,) * 6,
        sm_clocks_mhz=(1200,) * 6,
        highest_sm_clock_mhz=1400,
        num_raised=0,
    )


class Agreement:
    """Agrees to whatever the test says, and remembers what it was offered."""

    group = None

    def __init__(self) -> None:
        self.offered: list[Offer | None] = []
        self.agrees = False
        self.is_closed = False

    def on_step_begin(self, newest: Offer | None, *, num_microbatches: int) -> Decision | None:
        self.offered.append(newest)
        if not self.agrees or newest is None:
            return None
        return Decision(offer=newest, orders=(ALL_IN_FRONT, one_f_one_b(num_microbatches, 2, 1)))

    def close(self) -> None:
        self.is_closed = True


def engine(*, stage_id: int = 0) -> Any:  # noqa: ANN401 - stands for DeepSpeed's engine
    return SimpleNamespace(
        global_rank=stage_id,
        stage_id=stage_id,
        num_stages=2,
        micro_batches=3,
        num_pipe_buffers=0,
        pipe_buffers={"inputs": [], "outputs": []},
        device=torch.device("cpu"),
        is_last_stage=lambda: stage_id == 1,
    )


class Switch:
    """A switch of the first of two stages with its neighbours, none of them real."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, free_bytes: int = 10_000) -> None:
        self.agreement = Agreement()
        self.engine = engine()
        self.told: list[tuple[RankMemory, ...]] = []
        self.gathered: list[RankMemory] = []
        self.free_bytes = free_bytes
        monkeypatch.setattr(order_switch, "gather_memory", self._gather)
        self.switch = OrderSwitch(
            self.engine,
            agreement=self.agreement,  # type: ignore[arg-type] # stands in for it
            free_memory_bytes=self._free,
            on_memory=self.told.append,
        )
        monkeypatch.setattr(type(self.switch._meter), "activation_bytes", property(lambda _: 100))

    def steps(self, num_steps: int) -> None:
        for _ in range(num_steps):
            with self.switch.around_step():
                pass

    def stock(self) -> schedule.TrainSchedule:
        return schedule.TrainSchedule(self.engine.micro_batches, 2, 0)

    def _free(self) -> int:
        if self.free_bytes < 0:
            raise RuntimeError("CUDA is gone")
        return self.free_bytes

    def _gather(self, memory: RankMemory, **_: object) -> tuple[RankMemory, ...]:
        self.gathered.append(memory)
        return (memory, memory)


def test_before_memory_is_known_a_rank_offers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Switch(monkeypatch)
    newest = plan()
    assert made.switch.choose_plan((newest,)) is None
    made.steps(2)
    assert made.agreement.offered == [None, None]
    assert made.told == []
    made.steps(1)
    assert made.told == [(RankMemory(activation_bytes=100, free_bytes=300),) * 2]
    assert made.switch.choose_plan((newest,)) is None
    made.steps(1)
    offer = made.agreement.offered[-1]
    assert offer is not None
    assert (offer.plan, offer.order) == (newest, ALL_IN_FRONT)


def test_the_same_plan_is_offered_as_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Switch(monkeypatch)
    made.steps(3)
    newest = plan()
    for _ in range(3):
        made.switch.choose_plan((plan(), newest))
        made.steps(1)
    first, *others = made.agreement.offered[3:]
    assert all(offer is first for offer in others)


def test_the_order_and_the_plan_change_in_the_same_step(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Switch(monkeypatch)
    made.steps(3)
    older, newer = plan(1), plan(2)
    made.switch.choose_plan((older,))
    stock = made.stock()
    assert made.switch.schedule_for(stock) is stock
    made.agreement.agrees = True
    made.steps(1)
    assert made.switch.choose_plan((older, newer)) is older
    planned = made.switch.schedule_for(stock)
    assert isinstance(planned, PlannedSchedule)
    assert planned.num_pipe_buffers() == 3


def test_evaluations_and_batches_of_another_size_run_as_deepspeed_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Switch(monkeypatch)
    made.steps(3)
    made.switch.choose_plan((plan(),))
    made.agreement.agrees = True
    made.steps(1)
    inference = schedule.InferenceSchedule(3, 2, 0)
    assert made.switch.schedule_for(inference) is inference
    made.engine.micro_batches = 5
    larger = made.stock()
    assert made.switch.schedule_for(larger) is larger


@pytest.mark.parametrize(
    ("free_bytes", "kinds", "says"),
    [
        (99, KINDS, "it holds 1 microbatches more than 1F1B, and memory is free for 0"),
        (-1, KINDS, "memory is free for 0"),
        (10_000, ("forward",) * 3 + ("backward_input",) * 3, "it has backward_input"),
    ],
)
def test_an_order_that_cannot_be_run_here_is_offered_as_such_and_said_once(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    free_bytes: int,
    kinds: Sequence[str],
    says: str,
) -> None:
    made = Switch(monkeypatch, free_bytes=free_bytes)
    made.steps(3)
    newest = plan(kinds=kinds)
    for _ in range(2):
        made.switch.choose_plan((newest,))
        made.steps(1)
    offer = made.agreement.offered[-1]
    assert offer is not None
    assert offer.order is None
    assert sum(says in message for message in caplog.messages) == 1


def test_a_rank_that_cannot_find_its_free_memory_still_tells_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = Switch(monkeypatch, free_bytes=-1)
    made.steps(3)
    assert made.gathered == [RankMemory(activation_bytes=100, free_bytes=0)]
    assert any("free memory cannot be found: CUDA is gone" in m for m in caplog.messages)


def test_memory_that_the_ranks_cannot_gather_leaves_1f1b_and_training(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = Switch(monkeypatch)

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("connection closed by peer")

    monkeypatch.setattr(order_switch, "gather_memory", fail)
    made.steps(3)
    assert made.switch.choose_plan((plan(),)) is None
    made.steps(1)
    assert made.agreement.offered == [None] * 4
    assert made.told == []
    assert any("1F1B goes on: connection closed by peer" in m for m in caplog.messages)


def test_closing_gives_the_buffers_back(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Switch(monkeypatch)
    made.engine.num_pipe_buffers = 3
    made.engine.pipe_buffers = {"inputs": [1, 2, 3], "outputs": [None, None, None]}
    made.switch.close()
    assert made.engine.num_pipe_buffers == 0
    assert made.engine.pipe_buffers == {"inputs": [], "outputs": []}
    assert made.agreement.is_closed


def test_each_buffer_of_the_last_stage_is_backwarded_from_its_own_loss() -> None:
    last = engine(stage_id=1)
    made = OrderSwitch(
        last,
        agreement=Agreement(),  # type: ignore[arg-type] # stands in for it
        free_memory_bytes=lambda: 0,
        on_memory=print,
    )
    backwarded: list[str] = []

    def forward(engine: Any, buffer_id: int) -> None:  # noqa: ANN401 - as above
        engine.loss = f"loss {buffer_id}"

    def backward(engine: Any, buffer_id: int) -> None:  # noqa: ANN401 - as above
        backwarded.append(engine.loss)

    instructions = made.wrap({schedule.ForwardPass: forward, schedule.BackwardPass: backward})
    for buffer_id in (0, 1):
        instructions[schedule.ForwardPass](last, buffer_id=buffer_id)
    for buffer_id in (0, 1):
        instructions[schedule.BackwardPass](last, buffer_id=buffer_id)
    assert backwarded == ["loss 0", "loss 1"]
