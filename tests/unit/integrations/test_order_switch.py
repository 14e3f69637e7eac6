"""Which schedule an engine runs, and what DeepSpeed's engine needs in order to run another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.integrations.order_world import World

pytest.importorskip("deepspeed", reason="needs the extra 'deepspeed'")

import torch
from deepspeed.runtime.pipe import schedule

from flyball_client.plan_cursor import CompiledPlan
from flyball_integrations import order_negotiation
from flyball_integrations.order_agreement import OrderAgreement
from flyball_integrations.order_negotiation import OrderNegotiation, RankPlace
from flyball_integrations.order_switch import OrderSwitch
from flyball_integrations.planned_schedule import PlannedSchedule
from flyball_integrations.rank_memory import RankMemory
from flyball_integrations.stage_orders import StageOrder, one_f_one_b

NUM_MICROBATCHES = 3
ALL_IN_FRONT = StageOrder.of_instructions(
    ["forward"] * 3 + ["backward"] * 3, [*range(3), *range(3)]
)
ONE_F_ONE_B = tuple(one_f_one_b(NUM_MICROBATCHES, 2, stage) for stage in range(2))
EXTRA_IN_FRONT = (ALL_IN_FRONT, ONE_F_ONE_B[1])


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


class Meter:
    """Remembers in which steps it was on."""

    def __init__(self) -> None:
        self.is_on = False

    @contextmanager
    def measuring_step(self) -> Iterator[None]:
        self.is_on = True
        yield
        self.is_on = False

    def wrap(self, instructions: Any) -> Any:  # noqa: ANN401 - as they are
        return instructions


class Eager:
    """Remembers whose sends it was told to follow."""

    def __init__(self) -> None:
        self.followed: list[tuple[int, int] | str] = []

    def follow(self, *, num_in_flight: int, num_in_flight_before: int) -> None:
        self.followed.append((num_in_flight_before, num_in_flight))

    def follow_one_f_one_b(self) -> None:
        self.followed.append("1f1b")


def engine(*, stage_id: int = 0) -> Any:  # noqa: ANN401 - stands for DeepSpeed's engine
    return SimpleNamespace(
        stage_id=stage_id,
        num_stages=2,
        num_pipe_buffers=0,
        pipe_buffers={"inputs": [], "outputs": []},
        device=torch.device("cpu"),
        is_last_stage=lambda: stage_id == 1,
    )


def stock(num_microbatches: int = NUM_MICROBATCHES, *, stage_id: int = 0) -> Any:  # noqa: ANN401
    """The schedule that DeepSpeed would run."""
    return schedule.TrainSchedule(num_microbatches, 2, stage_id)


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
        """Whether it was measured; `orders` are agreed on as it begins."""
        self.negotiation.says = orders
        with self.switch.around_step():
            return self.meter.is_on


def computed(run: schedule.PipeSchedule) -> list[tuple[str, int]]:
    """Forwards and backwards of a schedule, with their buffers, in their order."""
    return [
        (type(command).__name__, command.buffer_id)
        for commands in run
        for command in commands
        if isinstance(command, schedule.ForwardPass | schedule.BackwardPass)
    ]


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


# ------------------------------------------------------------------ with the real negotiation


def plan(order: StageOrder, *, version: int = 1) -> CompiledPlan:
    return CompiledPlan(
        version=version,
        kinds=tuple("forward" if unit.is_forward else "backward" for unit in order.units),
        microbatches=tuple(unit.microbatch for unit in order.units),
        chunks=(0,) * len(order.units),
        sm_clocks_mhz=(1200,) * len(order.units),
        highest_sm_clock_mhz=1400,
        num_raised=0,
    )


class Ranks:
    """Two stages that agree on what they run; each has room for nothing beyond 1F1B."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(order_negotiation, "gather_memory", lambda memory, **_: (memory,) * 2)
        self._world = world
        self.told: list[tuple[RankMemory, ...]] = []
        self.switches: list[OrderSwitch] = world.on_each(self._switch)

    def step(self, plans: Sequence[CompiledPlan]) -> list[CompiledPlan | None]:
        """What each rank runs in a step, holding this plan."""

        def run(rank: int) -> CompiledPlan | None:
            with self.switches[rank].around_step():
                return self.switches[rank].choose_plan((plans[rank],))

        return self._world.on_each(run)

    def _switch(self, rank: int) -> OrderSwitch:
        place = RankPlace(rank=rank, stage=rank, num_stages=2, num_microbatches=NUM_MICROBATCHES)
        negotiation = OrderNegotiation(
            place,
            agreement=OrderAgreement(stage=rank, num_stages=2),
            activation_bytes=lambda: 100,
            free_bytes=lambda: 99,
            on_memory=self.told.append,
        )
        meter: Any = Meter()
        return OrderSwitch(engine(stage_id=rank), negotiation=negotiation, meter=meter)


def test_1f1b_is_run_as_a_plans_order_where_the_planner_chose_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks = Ranks(World(2, monkeypatch), monkeypatch)
    plans = [plan(order) for order in ONE_F_ONE_B]
    runs = [ranks.step(plans) for _ in range(12)]
    # Compared in the ninth step, exchanged in the tenth.
    assert runs == [[None, None]] * 10 + [plans] * 2
    assert ranks.told == [(RankMemory(activation_bytes=100, free_bytes=0),) * 2] * 2
    for stage_id, switch in enumerate(ranks.switches):
        own = stock(stage_id=stage_id)
        planned = switch.schedule_for(own)
        assert isinstance(planned, PlannedSchedule)
        assert [kind for kind, _ in computed(planned)] == [kind for kind, _ in computed(own)]


def test_an_order_beyond_memory_leaves_deepspeeds_own_schedule_in_force(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ranks = Ranks(World(2, monkeypatch), monkeypatch)
    plans = [plan(order) for order in EXTRA_IN_FRONT]
    assert [ranks.step(plans) for _ in range(12)] == [[None, None]] * 12
    own = stock()
    assert ranks.switches[0].schedule_for(own) is own
    assert any("it holds 1 microbatches more than 1F1B" in line for line in caplog.messages)
