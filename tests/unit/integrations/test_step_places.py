"""Places of ranks, exchanged at `attach` through the store: ranks that announce, and others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed
from tests.planner.patience import PATIENCE_S, wait_until

from flyball_client.steps.agreement import AgreementError
from flyball_integrations.shared import step_agreement
from flyball_integrations.shared.step_agreement import _Places, decline_to_agree

NUM_RANKS = 4


@pytest.fixture
def on_ranks(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], object]], list[object]]:
    """Call a function on all ranks, each in a thread, with one store."""
    store, here = torch.distributed.HashStore(), threading.local()
    world = torch.distributed
    monkeypatch.setattr(world, "get_rank", lambda: here.rank)
    monkeypatch.setattr(world, "get_world_size", lambda: NUM_RANKS)
    monkeypatch.setattr(world, "is_initialized", lambda: True)
    monkeypatch.setattr(world.distributed_c10d, "_get_default_store", lambda: store)

    def on_ranks(call: Callable[[int], object]) -> list[object]:
        def on_rank(rank: int) -> object:
            here.rank = rank
            try:
                return call(rank)
            except AgreementError as error:
                return str(error)

        with ThreadPoolExecutor(NUM_RANKS) as threads:
            return list(threads.map(on_rank, range(NUM_RANKS)))

    return on_ranks


OnRanks = Callable[[Callable[[int], object]], list[object]]


@pytest.mark.parametrize(
    ("silent", "shown"), [({2}, "rank 2 does"), ({0}, "rank 0 does"), ({1, 3}, "ranks 1, 3 do")]
)
def test_ranks_that_announce_learn_at_once_which_do_not(
    on_ranks: OnRanks, silent: set[int], shown: str
) -> None:
    def call(rank: int) -> object:
        if rank in silent:
            decline_to_agree()
            return None
        return _Places().exchange((rank, 0, 0, 0), 20.0)

    for rank, found in enumerate(on_ranks(call)):
        assert found == (
            None
            if rank in silent
            else f"rank {rank} announces work, and {shown} not; give announces_work=True on all"
            " ranks or on none"
        )


def test_ranks_that_decline_wait_for_nobody_and_may_announce_the_next_time(
    on_ranks: OnRanks,
) -> None:
    on_ranks(lambda rank: decline_to_agree())
    places = [(rank, 0, 0, 0) for rank in range(NUM_RANKS)]
    assert on_ranks(lambda rank: _Places().exchange(places[rank], 20.0)) == [places] * NUM_RANKS


@pytest.mark.parametrize("late", [0, 2])
def test_a_rank_that_comes_after_it_was_named_is_waited_for(
    on_ranks: OnRanks,
    late: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(step_agreement, "_NAMED_AFTER_S", 0.05)
    places = [(rank, 0, 0, 0) for rank in range(NUM_RANKS)]

    def call(rank: int) -> object:
        if rank == late:
            wait_until(lambda: bool(caplog.records))
        return _Places().exchange(places[rank], PATIENCE_S)

    assert on_ranks(call) == [places] * NUM_RANKS


@pytest.mark.parametrize("silent", [0, 2])
def test_a_rank_that_does_not_attach_is_named_and_waited_for_once(
    on_ranks: OnRanks,
    silent: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(step_agreement, "_NAMED_AFTER_S", 0.05)

    def call(rank: int, timeout_s: float) -> object:
        return None if rank == silent else _Places().exchange((rank, 0, 0, 0), timeout_s)

    fault = f"rank {silent} did not call attach within 0.3 s"
    assert on_ranks(lambda rank: call(rank, 0.3)) == [
        None if rank == silent else fault for rank in range(NUM_RANKS)
    ]
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == (
        f"waiting up to 0.3 s for rank {silent} to call attach with announces_work=True"
    )
    # Now its count of calls is behind that of the others, so that they would never meet.
    assert (
        on_ranks(lambda rank: _Places().exchange((rank, 0, 0, 0), 3600.0))
        == [f"{fault} before"] * NUM_RANKS
    )
