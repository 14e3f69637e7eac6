"""Which schedule an engine runs, and what DeepSpeed's engine needs in order to run another."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("deepspeed", reason="needs the extra 'deepspeed'")

from deepspeed.runtime.pipe import schedule
from tests.unit.integrations.switched_orders import (
    EXTRA_IN_FRONT,
    NUM_MICROBATCHES,
    ONE_F_ONE_B,
    Meter,
    computed,
    engine,
    stock,
)

from flyball_client.session.plan_cursor import CompiledPlan
from flyball_integrations.deepspeed.order_switch import OrderSwitch, PlannedSchedule
from flyball_integrations.shared.stage_orders import StageOrder


class Negotiation:
    """Says what the test says."""

    def __init__(self) -> None:
        self.says: tuple[StageOrder, ...] | None = None
        self.is_closed = False

    def choose_plan(self, due: tuple[CompiledPlan, ...]) -> CompiledPlan:
        return due[0]

    def on_step_begin(self) -> tuple[StageOrder, ...] | None:
        orders, self.says = self.says, None
        return orders

    def close(self) -> None:
        self.is_closed = True


class Eager:
    """Remembers whose sends it was told to follow."""

    def __init__(self) -> None:
        self.followed: list[tuple[int, int] | str] = []

    def follow(self, *, num_in_flight: int, num_in_flight_before: int) -> None:
        self.followed.append((num_in_flight_before, num_in_flight))

    def follow_one_f_one_b(self) -> None:
        self.followed.append("1f1b")


class Switch:
    """A switch of one of two stages, which is told what to run."""

    def __init__(self, *, stage_id: int = 0, eager: Eager | None = None) -> None:
        self.engine = engine(stage_id=stage_id)
        self.negotiation = Negotiation()
        self.meter = Meter()
        parts: dict[str, Any] = {
            "negotiation": self.negotiation,
            "meter": self.meter,
            "eager": eager,
        }
        self.switch = OrderSwitch(self.engine, **parts)

    def step(self, orders: tuple[StageOrder, ...] | None = None) -> bool:
        """Return whether it was measured; `orders` are agreed on as it begins."""
        self.negotiation.says = orders
        with self.switch.around_step():
            return self.meter.is_on


def test_orders_are_run_from_the_step_in_which_they_are_agreed_on() -> None:
    made, own = Switch(), stock()
    made.step()
    assert made.switch.schedule_for(own) is own
    made.step(EXTRA_IN_FRONT)
    for _ in range(2):
        planned = made.switch.schedule_for(own)
        assert isinstance(planned, PlannedSchedule)
        assert planned.num_pipe_buffers() == 3
        made.step()
    made.step(ONE_F_ONE_B)
    assert computed(made.switch.schedule_for(own)) == computed(own)


def test_evaluations_and_batches_of_another_size_run_as_deepspeed_has_them() -> None:
    made = Switch()
    made.step(EXTRA_IN_FRONT)
    inference = schedule.InferenceSchedule(NUM_MICROBATCHES, 2, 0)
    larger = stock(NUM_MICROBATCHES + 2)
    assert made.switch.schedule_for(inference) is inference
    assert made.switch.schedule_for(larger) is larger
    assert isinstance(made.switch.schedule_for(stock()), PlannedSchedule)


def test_as_many_sends_may_be_under_way_as_the_order_that_runs_has_in_flight() -> None:
    eager = Eager()
    made = Switch(stage_id=1, eager=eager)
    made.step()
    made.switch.schedule_for(stock(stage_id=1))
    made.step(EXTRA_IN_FRONT)
    made.switch.schedule_for(stock(stage_id=1))
    made.switch.schedule_for(stock(NUM_MICROBATCHES + 2, stage_id=1))
    assert eager.followed == ["1f1b", (3, 1), "1f1b"]


def test_only_the_first_step_is_measured_since_later_ones_fill_used_buffers() -> None:
    made = Switch()
    assert [made.step() for _ in range(3)] == [True, False, False]


def test_closing_gives_the_buffers_back() -> None:
    made = Switch()
    made.engine.num_pipe_buffers = 3
    made.engine.pipe_buffers = {"inputs": [1, 2, 3], "outputs": [None, None, None]}
    made.switch.close()
    assert made.engine.num_pipe_buffers == 0
    assert made.engine.pipe_buffers == {"inputs": [], "outputs": []}
    assert made.negotiation.is_closed


def test_each_buffer_of_the_last_stage_is_backwarded_from_its_own_loss() -> None:
    made = Switch(stage_id=1)
    last = made.engine
    backwarded: list[str] = []

    def forward(engine: Any, buffer_id: int) -> None:  # noqa: ANN401 - as above
        engine.loss = f"loss {buffer_id}"

    def backward(engine: Any, buffer_id: int) -> None:  # noqa: ANN401 - as above
        backwarded.append(engine.loss)

    instructions = made.switch.wrap(
        {schedule.ForwardPass: forward, schedule.BackwardPass: backward}
    )
    for buffer_id in (0, 1):
        instructions[schedule.ForwardPass](last, buffer_id=buffer_id)
    for buffer_id in (0, 1):
        instructions[schedule.BackwardPass](last, buffer_id=buffer_id)
    assert backwarded == ["loss 0", "loss 1"]
