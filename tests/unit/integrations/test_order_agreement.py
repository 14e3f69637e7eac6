"""Several ranks in one process agree on an order, or do not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

pytest.importorskip("torch", reason="needs the extra 'torch'")

from tests.unit.integrations.order_world import World

from flyball_client.session.plan_cursor import CompiledPlan
from flyball_integrations.shared.order_agreement import Decision, Offer, OrderAgreement
from flyball_integrations.shared.stage_orders import StageOrder

NUM_MICROBATCHES = 2
EXTRA = StageOrder.of_instructions(("forward", "forward", "backward", "backward"), (0, 1, 0, 1))
PLAIN = StageOrder.of_instructions(("forward", "backward", "forward", "backward"), (0, 0, 1, 1))


def offer(version: int, order: StageOrder | None) -> Offer:
    plan = CompiledPlan(
        version=version,
        kinds=(),
        microbatches=(),
        chunks=(),
        sm_clocks_mhz=(),
        highest_sm_clock_mhz=1400,
        num_raised=0,
    )
    return Offer(plan=plan, order=order)


class Ranks:
    """One agreement per rank; by default two stages of one rank."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, stages: Sequence[int] = (0, 1), period_steps: int = 3
    ) -> None:
        self.world = World(len(stages), monkeypatch)
        self.held: list[Offer | None] = [None] * len(stages)
        self.agreements: list[OrderAgreement] = self.world.on_each(
            lambda rank: OrderAgreement(
                stage=stages[rank], num_stages=max(stages) + 1, period_steps=period_steps
            )
        )

    def step(self, num_microbatches: int = NUM_MICROBATCHES) -> list[Decision | None]:
        """All ranks begin a step; what each is told."""
        return self.world.on_each(
            lambda rank: self.agreements[rank].on_step_begin(
                self.held[rank], num_microbatches=num_microbatches
            )
        )

    def steps(self, num_steps: int) -> list[list[Decision | None]]:
        return [self.step() for _ in range(num_steps)]


def decided(decisions: Sequence[Decision | None]) -> list[Decision]:
    """All ranks have decided, and the same."""
    made = [decision for decision in decisions if decision is not None]
    assert len(made) == len(decisions)
    assert len({(decision.orders, decision.problem) for decision in made}) == 1
    return made


def nothing(steps: Sequence[Sequence[Decision | None]]) -> bool:
    return all(decision is None for decisions in steps for decision in decisions)


def test_two_steps_after_a_comparison_all_ranks_have_the_orders_of_all_stages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks = Ranks(monkeypatch)
    ranks.held = [offer(1, EXTRA), offer(1, PLAIN)]
    assert nothing(ranks.steps(2))
    for rank, decision in enumerate(decided(ranks.step())):
        assert decision.offer is ranks.held[rank]
        assert decision.orders == (EXTRA, PLAIN)


@pytest.mark.parametrize("late", [None, offer(1, PLAIN)], ids=["none yet", "an older one"])
def test_nothing_is_decided_before_the_last_rank_holds_the_version(
    monkeypatch: pytest.MonkeyPatch, late: Offer | None
) -> None:
    ranks = Ranks(monkeypatch)
    ranks.held = [offer(2, EXTRA), late]
    assert nothing(ranks.steps(6))
    assert ranks.world.num_collectives == 2  # no orders were exchanged
    ranks.held[1] = offer(2, PLAIN)
    assert nothing(ranks.steps(2))
    assert decided(ranks.step())[0].orders == (EXTRA, PLAIN)


def test_a_version_that_a_planner_has_used_before_is_news_once_all_have_the_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks = Ranks(monkeypatch)
    ranks.held = [offer(1, EXTRA), offer(1, PLAIN)]
    decided(ranks.steps(3)[-1])
    # The planner has lost its memory; only stage 0 has heard of its new version 1.
    ranks.held[0] = offer(1, PLAIN)
    assert decided(ranks.steps(3)[-1])[0].orders == (PLAIN, PLAIN)
    # Then stage 1 hears too; its order deadlocks beside that of stage 0.
    ranks.held[1] = offer(1, EXTRA)
    (decision, _) = decided(ranks.steps(3)[-1])
    assert decision.orders is None
    assert "forever" in decision.problem


def test_orders_that_one_rank_cannot_run_are_run_by_none(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(monkeypatch)
    ranks.held = [offer(1, None), offer(1, PLAIN)]
    decisions = decided(ranks.steps(3)[-1])
    assert decisions[0].orders is None
    assert decisions[0].problem == "rank 0 cannot run it; see the log there"
    assert nothing(ranks.steps(6))


def test_data_parallel_ranks_must_have_the_same_order(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(monkeypatch, stages=(0, 0, 1, 1))
    ranks.held = [offer(1, EXTRA), offer(1, EXTRA), offer(1, PLAIN), offer(1, PLAIN)]
    assert decided(ranks.steps(3)[-1])[0].orders == (EXTRA, PLAIN)
    ranks.held = [offer(2, EXTRA), offer(2, PLAIN), offer(2, PLAIN), offer(2, PLAIN)]
    problem = decided(ranks.steps(3)[-1])[0].problem
    assert problem == "ranks of stage 0 have different orders of one version"


def test_a_collective_that_fails_ends_the_agreement_and_not_training(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ranks = Ranks(monkeypatch)
    ranks.world.failing = True
    ranks.held = [offer(1, EXTRA), offer(1, PLAIN)]
    assert nothing(ranks.steps(9))
    assert len(caplog.messages) == 2  # one line on each rank
    assert all("in the current one: connection closed by peer" in m for m in caplog.messages)


def test_it_can_be_closed_in_any_step(monkeypatch: pytest.MonkeyPatch) -> None:
    for num_steps in range(4):
        ranks = Ranks(monkeypatch)
        ranks.held = [offer(1, EXTRA), offer(1, PLAIN)]
        ranks.steps(num_steps)
        for rank, agreement in enumerate(ranks.agreements):
            with ranks.world.turn_of(rank):
                agreement.close()
        assert ranks.world.num_freed == 2
