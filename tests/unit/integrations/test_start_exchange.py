"""Identity of a start among ranks that share a store, as threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import ExitStack

import pytest

pytest.importorskip("torch", reason="needs the extra 'torch'")

import torch.distributed

from flyball_integrations.shared import start_exchange
from flyball_integrations.shared.start_exchange import StartExchange, exchange_start

WAIT_S = 60.0


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def exchanges(
    opened: ExitStack, store: torch.distributed.Store, *ranks: int, num_ranks: int = 4
) -> list[StartExchange]:
    made = [StartExchange("llm", rank, num_ranks=num_ranks, store=store) for rank in ranks]
    for exchange in made:
        opened.callback(exchange.close)
    return made


def test_all_ranks_of_a_start_receive_what_its_rank_0_made(opened: ExitStack) -> None:
    store = torch.distributed.HashStore()
    others = exchanges(opened, store, 3, 1)
    first, late = exchanges(opened, store, 0, 2)
    made = first.start_id.result(timeout=0)
    assert {each.start_id.result(WAIT_S) for each in (*others, late)} == {made}


def test_what_an_earlier_start_left_in_the_store_is_not_taken(opened: ExitStack) -> None:
    store = torch.distributed.HashStore()
    with ExitStack() as killed:
        old, _ = exchanges(killed, store, 0, 1)
    (early,) = exchanges(opened, store, 2)
    with pytest.raises(TimeoutError):
        early.start_id.result(1.0)
    (new,) = exchanges(opened, store, 0)
    assert early.start_id.result(WAIT_S) == new.start_id.result() != old.start_id.result()


def test_a_rank_whose_rank_0_is_silent_or_whose_store_is_lost_has_no_start(
    opened: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_exchange, "_TIMEOUT_S", 0.3)
    (alone,) = exchanges(opened, torch.distributed.HashStore(), 1)
    with pytest.raises(TimeoutError, match=r"its rank 0 has named no start within 0\.3 s"):
        alone.start_id.result(WAIT_S)

    class Lost:
        def check(self, keys: list[str]) -> bool:
            raise RuntimeError("Connection reset by peer\nException raised from recvBytes")

    (lost,) = exchanges(opened, Lost(), 1)
    with pytest.raises(TimeoutError, match=r"is lost \(Connection reset by peer\)$"):
        lost.start_id.result(WAIT_S)


def test_without_a_thread_rank_0_has_its_identity_and_others_say_why_they_have_none(
    opened: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    first, other = exchanges(opened, torch.distributed.HashStore(), 0, 1)
    assert first.start_id.result(timeout=0)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        other.start_id.result(timeout=0)


def test_an_exchange_that_is_closed_ends_and_names_nothing() -> None:
    exchange = StartExchange("llm", 1, num_ranks=2, store=torch.distributed.HashStore())
    exchange.close()
    with pytest.raises(CancelledError):
        exchange.start_id.result(WAIT_S)


def test_without_a_store_rank_0_makes_an_identity_and_others_have_their_launchers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    for name, value in (("JOB_ID", "17"), ("STEP_ID", "2"), ("RESTART_COUNT", "1")):
        monkeypatch.setenv(f"SLURM_{name}", value)
    alone = [exchange_start("llm", 0).start_id.result() for _ in range(2)]
    assert len({*alone, None}) == 3
    assert exchange_start("llm", 1).start_id.result() == "17.2.1"
