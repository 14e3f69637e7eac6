"""Which schedule an engine runs, and what DeepSpeed's engine needs in order to run another."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("deepspeed", reason="needs the extra 'deepspeed'")

from tests.unit.integrations.switched_orders import (
    EXTRA_IN_FRONT,
    NUM_MICROBATCHES,
    Meter,
    engine,
    stock,
)

from flyball_client.session.plan_cursor import CompiledPlan
from flyball_integrations.deepspeed.order_switch import OrderSwitch
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
