"""Identity of a start of the training, which rank 0 brings to the other ranks.

It goes through the store of torch.distributed, which outlives a start where torchrun restarts the
ranks. So a rank asks whether whoever wrote the identity still lives, and takes an answer alone that
came after its question.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from concurrent.futures import Future
from contextlib import suppress

import torch.distributed

from flyball_client.governor.own_process import call_at_normal_end
from flyball_client.session.registration import start_of

# Time in s in which a rank must receive the identity, and in which rank 0 answers.
_TIMEOUT_S, _ANSWERED_S = 30.0, 600.0
# Pauses in s between two looks into the store: at first, and of rank 0 later.
_PAUSE_S, _LATER_PAUSE_S = 0.1, 1.0
_STOP_TIMEOUT_S = 0.5


def exchange_start(job_id: str, rank: int) -> StartExchange:
    """Return the exchange of this start among the ranks of torch.distributed.

    Without it there is one rank, or the launcher's run names the start.
    """
    world = torch.distributed
    if not world.is_available() or not world.is_initialized():
        return StartExchange(job_id, rank)
    store = world.distributed_c10d._get_default_store()
    return StartExchange(job_id, rank, num_ranks=world.get_world_size(), store=store)


class StartExchange:
    """Exchange of a start's identity among its ranks, in the background.

    Each look into the store is short: no message between GPUs, and nothing that a rank may miss.

    Args:
        job_id: the job's name.
        rank: this rank in the job; rank 0 makes the identity.
        num_ranks: number of ranks that use the store.
        store: store of the ranks; None: they have none.

    Attributes:
        start_id: the identity, known at once on rank 0; an error where the rank has not received
            it in 30 s, or no thread can be started.
    """

    def __init__(
        self,
        job_id: str,
        rank: int,
        *,
        num_ranks: int = 1,
        store: torch.distributed.Store | None = None,
    ) -> None:
        self.start_id = Future[str | None]()
        self._key = f"flyball/start/{job_id}"
        self._num_ranks = num_ranks
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        if rank == 0:
            self.start_id.set_result(secrets.token_hex(8))
        if store is None:
            if rank != 0:
                self.start_id.set_result(start_of(os.environ))
            return
        thread = threading.Thread(
            target=self._answer if rank == 0 else self._ask,
            args=(store,),
            name="flyball-start",
            daemon=True,
        )
        try:
            thread.start()
        except RuntimeError as error:  # no thread can be started
            if rank != 0:
                self.start_id.set_exception(error)
            return
        self._thread = thread
        self._cancel_end = call_at_normal_end(self.close)

    def close(self) -> None:
        """End the exchange; idempotent."""
        self._stopping.set()
        if self._thread is not None:
            self._cancel_end()
            self._thread.join(_STOP_TIMEOUT_S)

    def _answer(self, store: torch.distributed.Store) -> None:
        """Write the identity, and answer ranks that ask until all have or it is too late."""
        mine = str(self.start_id.result())
        began_s, num_answered = time.monotonic(), 0
        with suppress(RuntimeError):  # the store is lost: the training has ended
            store.set(self._key, mine)
            while num_answered < self._num_ranks - 1 and time.monotonic() - began_s < _ANSWERED_S:
                num_asked = store.add(f"{self._key}/{mine}/asked", 0)
                if num_asked > num_answered:
                    store.set(f"{self._key}/{mine}/answered", str(num_asked))
                    num_answered = num_asked
                is_early = time.monotonic() - began_s < _TIMEOUT_S
                if self._stopping.wait(_PAUSE_S if is_early else _LATER_PAUSE_S):
                    return

    def _ask(self, store: torch.distributed.Store) -> None:
        """Look for the identity of a rank 0 that answers."""
        until_s = time.monotonic() + _TIMEOUT_S
        asked, number = "", 0
        why = f"its rank 0 has named no start within {_TIMEOUT_S:g} s"
        try:
            while not self._stopping.is_set():
                found = _read(store, self._key)
                if found not in ("", asked):
                    asked, number = found, store.add(f"{self._key}/{found}/asked", 1)
                if asked and int(_read(store, f"{self._key}/{asked}/answered") or 0) >= number:
                    self.start_id.set_result(asked)
                    return
                if time.monotonic() > until_s:
                    break
                self._stopping.wait(_PAUSE_S)
        except RuntimeError as error:
            why = f"the store of torch.distributed is lost ({str(error).partition(chr(10))[0]})"
        if self._stopping.is_set():
            self.start_id.cancel()
        else:
            self.start_id.set_exception(TimeoutError(why))


def _read(store: torch.distributed.Store, key: str) -> str:
    """Return a value of the store; empty: there is none."""
    return str(store.get(key).decode()) if store.check([key]) else ""
