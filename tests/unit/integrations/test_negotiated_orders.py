"""Orders that two ranks agree on: plans, probe plans and comparisons, from step to step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.unit.integrations.order_world import World

pytest.importorskip("deepspeed", reason="needs the extra 'deepspeed'")

from tests.unit.integrations.switched_orders import (
    ALL_IN_FRONT,
    EXTRA_IN_FRONT,
    NUM_MICROBATCHES,
    ONE_F_ONE_B,
    Meter,
    computed,
    engine,
    plan,
    stock,
)

from flyball_client.session.active_plan import PendingPlans
from flyball_client.session.plan_cursor import CompiledPlan
from flyball_integrations.deepspeed.order_switch import OrderSwitch, PlannedSchedule
from flyball_integrations.shared import order_agreement
from flyball_integrations.shared.order_agreement import OrderAgreement, OrderNegotiation, RankPlace
from flyball_integrations.shared.rank_memory import RankMemory
from flyball_integrations.shared.stage_orders import StageOrder


class Ranks:
    """Two stages that agree on what they run.

    Args:
        world: of two ranks.
        monkeypatch: undone with the test.
        free_bytes: of each; an activation takes 100.
    """

    def __init__(
        self, world: World, monkeypatch: pytest.MonkeyPatch, *, free_bytes: int = 99
    ) -> None:
        monkeypatch.setattr(order_agreement, "gather_memory", lambda memory, **_: (memory,) * 2)
        self._world = world
        self._free_bytes = free_bytes
        self.told: list[tuple[RankMemory, ...]] = []
        self.switches: list[OrderSwitch] = world.on_each(self._switch)

    def step(self, plans: Sequence[CompiledPlan]) -> list[CompiledPlan | None]:
        """Return what each rank runs in a step, holding this plan."""

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
            free_bytes=lambda: self._free_bytes,
            on_memory=self.told.append,
        )
        meter: Any = Meter()
        return OrderSwitch(engine(stage_id=rank), negotiation=negotiation, meter=meter)


# ------------------------------------------------------------------ while a profile is measured


class FollowingRanks(Ranks):
    """The same, with room for every order; plans come with their first steps, as from a planner."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(World(2, monkeypatch), monkeypatch, free_bytes=10_000)
        self._plans = [PendingPlans(switch.choose_plan) for switch in self.switches]
        self._step = 0
        self._in_force = [0, 0]

    def put(self, orders: Sequence[StageOrder], *, version: int, num_rows: int = 0) -> None:
        """A version that takes effect with the next step."""
        for switch, order in zip(self._plans, orders, strict=True):
            switch.put(plan(order, version=version, num_rows=num_rows), self._step)

    def run(self) -> tuple[list[int], list[str]]:
        """One step: of each rank the version whose clocks are set, and the order that is run."""
        self._world.on_each(self._begin)
        self._step += 1
        return list(self._in_force), [self._order_of(rank) for rank in range(2)]

    def run_steps(self, num_steps: int) -> list[tuple[list[int], list[str]]]:
        """Return what `run` tells of each."""
        return [self.run() for _ in range(num_steps)]

    def _begin(self, rank: int) -> None:
        with self.switches[rank].around_step():
            due = self._plans[rank].take_due(self._step)
        if due is not None:
            self._in_force[rank] = due[0].version

    def _order_of(self, rank: int) -> str:
        run = self.switches[rank].schedule_for(stock(stage_id=rank))
        letters = "".join(name[0] for name, _ in computed(run))
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
