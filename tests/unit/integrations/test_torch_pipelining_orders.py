"""How a rank finds the order that it runs, without the other ranks and without a framework."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

pytest.importorskip("torch", reason="needs the extra 'torch'")

from flyball_client.session.plan_cursor import CompiledPlan
from flyball_integrations.shared import order_agreement
from flyball_integrations.shared.order_agreement import Decision, Offer, OrderNegotiation, RankPlace
from flyball_integrations.shared.rank_memory import RankMemory
from flyball_integrations.shared.stage_orders import StageOrder, one_f_one_b

_ALL_IN_FRONT = StageOrder.of_instructions(["forward"] * 3 + ["backward"] * 3, [0, 1, 2, 0, 1, 2])
_ORDERS = (_ALL_IN_FRONT, one_f_one_b(3, 2, 1))


def _plan(version: int = 1, *, last_kind: str = "backward") -> CompiledPlan:
    return CompiledPlan(
        version=version,
        kinds=(*["forward"] * 3, "backward", "backward", last_kind),
        microbatches=(0, 1, 2, 0, 1, 2),
        chunks=(0,) * 6,
        sm_clocks_mhz=(1200,) * 6,
        highest_sm_clock_mhz=1400,
        num_raised=0,
    )


class _Agreement:
    """Says what the test says, and remembers what it was offered."""

    group = None

    def __init__(self) -> None:
        self.offered: list[Offer | None] = []
        self.says: tuple[tuple[StageOrder, ...] | None, str] | None = None
        self.is_closed = False

    def on_step_begin(self, newest: Offer | None, *, num_microbatches: int) -> Decision | None:
        assert num_microbatches == 3
        self.offered.append(newest)
        if self.says is None or newest is None:
            return None
        orders, problem = self.says
        return Decision(offer=newest, orders=orders, problem=problem)

    def close(self) -> None:
        self.is_closed = True


class _Rank:
    """The first of two stages; its neighbour has what it has."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        activation_bytes: int = 100,
        free_bytes: int | None = 10_000,
        is_reachable: bool = True,
    ) -> None:
        self.agreement = _Agreement()
        self.told: list[tuple[RankMemory, ...]] = []
        self._free_bytes = free_bytes
        self._is_reachable = is_reachable
        monkeypatch.setattr(order_agreement, "gather_memory", self._gather)
        self.negotiation = OrderNegotiation(
            RankPlace(rank=0, stage=0, num_stages=2, num_microbatches=3),
            agreement=self.agreement,  # type: ignore[arg-type] # stands in for it
            activation_bytes=lambda: activation_bytes,
            free_bytes=self._free,
            on_memory=self.told.append,
        )

    def steps(self, num_steps: int) -> list[tuple[StageOrder, ...] | None]:
        return [self.negotiation.on_step_begin() for _ in range(num_steps)]

    def _free(self) -> int:
        if self._free_bytes is None:
            raise RuntimeError("CUDA is gone")
        return self._free_bytes

    def _gather(self, memory: RankMemory, **_: object) -> tuple[RankMemory, ...]:
        if not self._is_reachable:
            raise RuntimeError("connection closed by peer")
        return (memory, memory)


def _warnings(caplog: pytest.LogCaptureFixture) -> Sequence[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("activation_bytes", "free_bytes", "told"),
    [
        (100, 99, []),
        (0, 10_000, []),
        (100, None, ["rank 0: free memory cannot be read: CUDA is gone"]),
    ],
)
def test_an_order_that_memory_has_no_room_for_is_offered_as_none_and_said_once(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    activation_bytes: int,
    free_bytes: int | None,
    told: list[str],
) -> None:
    rank = _Rank(monkeypatch, activation_bytes=activation_bytes, free_bytes=free_bytes)
    rank.steps(3)
    plan = _plan()
    for _ in range(2):
        rank.negotiation.choose_plan((plan,))
        rank.steps(1)
    offer = rank.agreement.offered[-1]
    assert offer is not None
    assert (offer.plan, offer.order) == (plan, None)
    assert _warnings(caplog) == [
        *told,
        "rank 0 cannot run the order of plan version 1: it holds 1 microbatches more than 1F1B,"
        " and memory is free for 0",
    ]


def test_an_order_of_other_kinds_is_offered_as_none(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rank = _Rank(monkeypatch)
    rank.steps(3)
    rank.negotiation.choose_plan((_plan(last_kind="backward_input"),))
    rank.steps(1)
    offer = rank.agreement.offered[-1]
    assert offer is not None
    assert offer.order is None
    assert "only whole forwards and backwards can be run" in _warnings(caplog)[0]


def test_ranks_that_cannot_be_reached_leave_1f1b_in_force(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rank = _Rank(monkeypatch, is_reachable=False)
    rank.steps(3)
    rank.negotiation.choose_plan((_plan(),))
    rank.steps(1)
    assert rank.told == []
    assert rank.agreement.offered == [None] * 4
    assert _warnings(caplog) == [
        "the memory of the ranks is unknown, and 1F1B continues: connection closed by peer"
    ]
    rank.negotiation.close()
    assert rank.agreement.is_closed
