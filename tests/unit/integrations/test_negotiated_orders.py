"""Orders that two ranks agree on or refuse: plans, probe plans, comparisons, step by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.unit.integrations.order_world import World

pytest.importorskip("deepspeed", reason="needs the extra 'deepspeed'")

from deepspeed.runtime.pipe import schedule

from flyball_client.session.active_plan import PendingPlans
from flyball_client.session.plan_cursor import CompiledPlan
from flyball_integrations.deepspeed.order_switch import OrderSwitch, PlannedSchedule
from flyball_integrations.shared import order_agreement
from flyball_integrations.shared.order_agreement import OrderAgreement, OrderNegotiation, RankPlace
from flyball_integrations.shared.rank_memory import RankMemory
from flyball_integrations.shared.stage_orders import StageOrder, one_f_one_b
from flyball_wire.messages import MeasurementDetail

NUM_MICROBATCHES = 3
ALL_IN_FRONT = StageOrder.of_instructions(
    ["forward"] * 3 + ["backward"] * 3, [*range(3), *range(3)]
)
ONE_F_ONE_B = tuple(one_f_one_b(NUM_MICROBATCHES, 2, stage) for stage in range(2))
EXTRA_IN_FRONT = (ALL_IN_FRONT, ONE_F_ONE_B[1])


class NoMeter:
    """Stands for the meter of activations, which measures nothing here."""

    @contextmanager
    def measuring_step(self) -> Iterator[None]:
        yield


def plan(order: StageOrder, *, version: int, num_rows: int) -> CompiledPlan:
    """One clock throughout, or a cycle of so many rows."""
    cycle_mhz = tuple((1200 - 15 * row,) * len(order.units) for row in range(num_rows))
    return CompiledPlan(
        version=version,
        kinds=tuple("forward" if unit.is_forward else "backward" for unit in order.units),
        microbatches=tuple(unit.microbatch for unit in order.units),
        chunks=(0,) * len(order.units),
        sm_clocks_mhz=(1200,) * len(order.units),
        highest_sm_clock_mhz=1400,
        num_raised=0,
        cycle_mhz=cycle_mhz or None,
        measurement_detail=MeasurementDetail.CLOCKS if num_rows else MeasurementDetail.TOTALS,
    )


class FollowingRanks:
    """Two stages, by default with room for every order; plans come with their first steps."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        activation_bytes: int = 100,
        free_bytes: int | None = 10_000,
        is_reachable: bool = True,
    ) -> None:
        monkeypatch.setattr(order_agreement, "gather_memory", self._gather)
        self.told: list[tuple[RankMemory, ...]] = []
        self._activation_bytes = activation_bytes
        self._free_bytes = free_bytes
        self._is_reachable = is_reachable
        self.world = World(2, monkeypatch)
        self.switches: list[OrderSwitch] = self.world.on_each(self._switch)
        self._plans = [PendingPlans(switch.choose_plan) for switch in self.switches]
        self._step = 0
        self._in_force = [0, 0]

    def put(
        self,
        orders: Sequence[StageOrder],
        *,
        version: int,
        num_rows: int = 0,
        last_kind: str = "backward",
    ) -> None:
        """A version that takes effect with the next step."""
        for plans, order in zip(self._plans, orders, strict=True):
            made = plan(order, version=version, num_rows=num_rows)
            plans.put(replace(made, kinds=(*made.kinds[:-1], last_kind)), self._step)

    def run(self) -> tuple[list[int], list[str]]:
        """One step: of each rank the version whose clocks are set, and the order that is run."""
        self.world.on_each(self._begin)
        self._step += 1
        return list(self._in_force), [self._order_of(rank) for rank in range(2)]

    def run_steps(self, num_steps: int) -> list[tuple[list[int], list[str]]]:
        """Return what `run` tells of each."""
        return [self.run() for _ in range(num_steps)]

    def _switch(self, rank: int) -> OrderSwitch:
        negotiation = OrderNegotiation(
            RankPlace(rank=rank, stage=rank, num_stages=2, num_microbatches=NUM_MICROBATCHES),
            agreement=OrderAgreement(stage=rank, num_stages=2),
            activation_bytes=lambda: self._activation_bytes,
            free_bytes=self._free,
            on_memory=self.told.append,
        )
        engine: Any = SimpleNamespace(
            stage_id=rank,
            num_stages=2,
            num_pipe_buffers=0,
            pipe_buffers={"inputs": [], "outputs": []},
            device=torch.device("cpu"),
            is_last_stage=lambda: rank == 1,
        )
        meter: Any = NoMeter()
        return OrderSwitch(engine, negotiation=negotiation, meter=meter)

    def _free(self) -> int:
        if self._free_bytes is None:
            raise RuntimeError("CUDA is gone")
        return self._free_bytes

    def _gather(self, memory: RankMemory, **_: object) -> tuple[RankMemory, ...]:
        if not self._is_reachable:
            raise RuntimeError("connection closed by peer")
        return (memory, memory)

    def _begin(self, rank: int) -> None:
        with self.switches[rank].around_step():
            due = self._plans[rank].take_due(self._step)
        if due is not None:
            self._in_force[rank] = due[0].version

    def _order_of(self, rank: int) -> str:
        stock = schedule.TrainSchedule(NUM_MICROBATCHES, 2, rank)
        run = self.switches[rank].schedule_for(stock)
        letters = "".join(
            type(command).__name__[0]
            for commands in run
            for command in commands
            if isinstance(command, schedule.ForwardPass | schedule.BackwardPass)
        )
        return f"{'planned' if isinstance(run, PlannedSchedule) else 'own'} {letters}"


OWN = ["own FFBFBB", "own FBFBFB"]
EXTRA = ["planned FFFBBB", "planned FBFBFB"]
GPIPE = ["planned FFFBBB", "planned FFFBBB"]


def test_steps_for_a_comparison_set_clocks_at_once_in_the_order_that_was_agreed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks = FollowingRanks(monkeypatch)
    ranks.run_steps(3)
    ranks.put(EXTRA_IN_FRONT, version=1)
    assert ranks.run_steps(12)[-1] == ([1, 1], EXTRA)
    ranks.put(EXTRA_IN_FRONT, version=2, num_rows=4)
    assert ranks.run_steps(12) == [([2, 2], EXTRA)] * 12


def test_a_cycle_in_an_order_that_does_not_run_yet_is_agreed_on_like_any_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks = FollowingRanks(monkeypatch)
    ranks.run_steps(3)
    ranks.put(EXTRA_IN_FRONT, version=1, num_rows=4)
    steps = ranks.run_steps(12)
    # The last stage's own order is the same in both, so its clocks need not wait.
    first = steps.index(([1, 1], EXTRA))
    assert steps == [([0, 1], OWN)] * first + [([1, 1], EXTRA)] * (12 - first)


def test_a_job_that_is_to_run_gpipe_is_profiled_in_gpipes_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks = FollowingRanks(monkeypatch)
    ranks.run_steps(3)
    ranks.put((ALL_IN_FRONT, ALL_IN_FRONT), version=1, num_rows=2)
    steps = ranks.run_steps(12)
    first = steps.index(([1, 1], GPIPE))
    assert steps == [([0, 0], OWN)] * first + [([1, 1], GPIPE)] * (12 - first)
    ranks.put((ALL_IN_FRONT, ALL_IN_FRONT), version=2, num_rows=2)
    assert ranks.run_steps(12) == [([2, 2], GPIPE)] * 12


def test_a_run_that_starts_over_waits_for_its_memory_before_it_probes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks = FollowingRanks(monkeypatch)
    ranks.put(ONE_F_ONE_B, version=7, num_rows=2)
    assert ranks.run_steps(4) == [([0, 0], OWN)] * 2 + [([7, 7], OWN)] * 2


@pytest.mark.parametrize(
    ("activation_bytes", "free_bytes", "said"),
    [
        (100, 99, []),
        (0, 10_000, []),
        (100, None, [f"rank {rank}: free memory cannot be read: CUDA is gone" for rank in (0, 1)]),
    ],
)
def test_an_order_that_memory_has_no_room_for_is_not_run_and_said_once(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    activation_bytes: int,
    free_bytes: int | None,
    said: list[str],
) -> None:
    ranks = FollowingRanks(monkeypatch, activation_bytes=activation_bytes, free_bytes=free_bytes)
    ranks.run_steps(3)
    ranks.put(EXTRA_IN_FRONT, version=1)
    assert ranks.run_steps(12) == [([0, 0], OWN)] * 12
    assert caplog.messages == [
        *said,
        "rank 0 cannot run the order of plan version 1: it holds 1 microbatches more than 1F1B,"
        " and memory is free for 0",
        "plan version 1 is not run, the current one continues: rank 0 cannot run it; see the log"
        " there",
    ]


def test_an_order_of_other_kinds_is_not_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ranks = FollowingRanks(monkeypatch)
    ranks.run_steps(3)
    ranks.put(ONE_F_ONE_B, version=1, last_kind="backward_input")
    assert ranks.run_steps(12) == [([0, 0], OWN)] * 12
    assert "only whole forwards and backwards can be run" in caplog.messages[0]


def test_ranks_that_cannot_be_reached_leave_1f1b_in_force(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ranks = FollowingRanks(monkeypatch, is_reachable=False)
    ranks.run_steps(3)
    ranks.put(EXTRA_IN_FRONT, version=1)
    assert ranks.run_steps(12) == [([0, 0], OWN)] * 12
    assert ranks.told == []
    unknown = "the memory of the ranks is unknown, and 1F1B continues: connection closed by peer"
    assert caplog.messages == [unknown] * 2
    ranks.world.on_each(lambda rank: ranks.switches[rank].close())
    assert ranks.world.num_freed == 2
