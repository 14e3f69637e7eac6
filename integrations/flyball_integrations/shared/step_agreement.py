"""Agreement of ranks on their steps, over gloo in groups of its own.

Only `agree_on_steps`, at `attach`, waits for other ranks, and not for those that
`decline_to_agree`. An exchange in progress keeps a thread of gloo in it until all ranks have come.
Freeing its group joins that thread, so a group is freed only where nothing is in progress, and else
left to the end of the process.
"""

from __future__ import annotations

import ctypes
import json
import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn

import torch
import torch.distributed

from flyball_client.steps.agreement import AgreementError
from flyball_integrations.shared.one_order import missing_ranks, ranks_text

# Of ranks for each other: at `attach`, and in an exchange.
TIMEOUT_S = 300.0
# Time in s at `attach` after which the ranks that have not come are named.
_NAMED_AFTER_S = 10.0
# Key of the store under which ranks are named that have not come in time.
_MISSED = "flyball/agreement/missed"

_logger = logging.getLogger(__name__)

Place = tuple[int, int, int, int]
"""Ranks in data parallelism, of the stage, in tensor and in context parallelism."""


def agree_on_steps(place: Place, *, timeout_s: float = TIMEOUT_S) -> GlooAgreement | None:
    """Return this rank's agreement; every rank of torch.distributed must call it.

    Args:
        place: of this rank.
        timeout_s: time limit in s, for the ranks to come, and for each exchange.

    Returns:
        None: there is one rank.

    Raises:
        AgreementError: a rank has not come, or declined, or gloo cannot connect them.
    """
    world = torch.distributed
    if not (world.is_available() and world.is_initialized()) or world.get_world_size() == 1:
        return None
    try:
        places = _Places().exchange(place, timeout_s)
        made = [_Group(ranks, timeout_s) for ranks in _groups_of(places)]
    except RuntimeError as error:
        raise AgreementError(f"no exchange with other ranks: {_first_line(error)}") from error
    own = {tuple(group.ranks): group for group in made if world.get_rank() in group.ranks}
    pipeline, peers = _groups_with(world.get_rank(), places)
    return GlooAgreement(pipeline=own.get(pipeline), peers=own.get(peers))


def decline_to_agree() -> None:
    """End `agree_on_steps` of other ranks, since this rank announces nothing; does not wait."""
    world = torch.distributed
    if world.is_available() and world.is_initialized():
        with suppress(RuntimeError):  # the store is lost, and the training with it
            _Places().decline()


class _Places:
    """Places of all ranks, which rank 0 collects in the store of torch.distributed.

    Ranks count the calls of `attach`. Where a rank has not come in time, the counts may differ, so
    no rank waits from then on.
    """

    def __init__(self) -> None:
        self._store: Any = torch.distributed.distributed_c10d._get_default_store()
        self._rank = torch.distributed.get_rank()
        number = self._store.add(f"flyball/agreements/{self._rank}", 1)
        ranks = range(torch.distributed.get_world_size())
        self._keys = [f"flyball/agreement/{number}/{rank}" for rank in ranks]
        self._of_all = f"flyball/agreement/{number}/all"

    def decline(self) -> None:
        """Enter null for this rank, and as rank 0 for all."""
        self._store.set(self._keys[self._rank], "null")
        if self._rank == 0:
            self._store.set(self._of_all, "[null]")

    def exchange(self, place: Place, timeout_s: float) -> list[Place]:
        """Return the places of all ranks.

        Raises:
            AgreementError: ranks have declined, or have not come, now or before.
            RuntimeError: the store is lost.
        """
        store = self._store
        if store.check([_MISSED]):
            self._end(f"{store.get(_MISSED).decode()} before")
        store.set(self._keys[self._rank], json.dumps(place))
        if self._rank == 0:
            self._wait(self._keys, timeout_s)
            places = ",".join(store.get(key).decode() for key in self._keys)
            store.set(self._of_all, f"[{places}]")
        self._wait([self._of_all], timeout_s)
        found = json.loads(store.get(self._of_all))
        if isinstance(found, str):
            raise AgreementError(found)
        if None in found:
            silent = [rank for rank, answer in enumerate(found) if answer is None]
            raise AgreementError(
                f"rank {self._rank} announces work, and {ranks_text(silent)}"
                f" {'does' if len(silent) == 1 else 'do'} not; give announces_work=True on all"
                " ranks or on none"
            )
        return [tuple(answer) for answer in found]

    def _wait(self, keys: Sequence[str], timeout_s: float) -> None:
        """Wait for keys of the store; after some seconds log which ranks have not come.

        Raises:
            AgreementError: they have not come in time.
        """
        first_s = min(_NAMED_AFTER_S, timeout_s)
        if self._has(keys, within_s=first_s):
            return
        if timeout_s > first_s:
            # The first rank that has come logs for all.
            if not any(self._store.check([key]) for key in self._keys[: self._rank]):
                _logger.warning(
                    "waiting up to %g s for %s to call attach with announces_work=True",
                    timeout_s,
                    self._missing(),
                )
            if self._has(keys, within_s=timeout_s - first_s):
                return
        fault = f"{self._missing()} did not call attach within {timeout_s:g} s"
        self._store.set(_MISSED, fault)
        self._end(fault)

    def _has(self, keys: Sequence[str], *, within_s: float) -> bool:
        """Return whether the store has the keys within this time."""
        try:
            self._store.wait(list(keys), timedelta(seconds=within_s))
        except RuntimeError:  # of a store that is lost, the next call fails too
            return False
        return True

    def _missing(self) -> str:
        missing = missing_ranks(self._store, self._keys)
        return ranks_text(missing) if missing else "other ranks"

    def _end(self, fault: str) -> NoReturn:
        """Raise the fault, on the other ranks too if this is rank 0."""
        if self._rank == 0:
            self._store.set(self._of_all, json.dumps(fault))
        raise AgreementError(fault)


def _groups_with(rank: int, places: Sequence[Place]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ranks of a rank's pipeline, and those of its place in all pipelines."""
    dp_rank, *within = places[rank]
    return (
        tuple(each for each, place in enumerate(places) if place[0] == dp_rank),
        tuple(each for each, place in enumerate(places) if list(place[1:]) == within),
    )


def _groups_of(places: Sequence[Place]) -> list[tuple[int, ...]]:
    """Return all groups of several ranks, in one order on all ranks."""
    pipelines: dict[object, list[int]] = {}
    peers: dict[object, list[int]] = {}
    for rank, (dp_rank, *within) in enumerate(places):
        pipelines.setdefault(dp_rank, []).append(rank)
        peers.setdefault(tuple(within), []).append(rank)
    found = [tuple(ranks) for ranks in (*pipelines.values(), *peers.values()) if len(ranks) > 1]
    return sorted(set(found))


class _Group:
    """Group of gloo, in which one exchange at a time is in progress.

    Args:
        ranks: at least two of all; every rank must make it, also one that is not in it.
        timeout_s: time limit in s of an exchange.
    """

    def __init__(self, ranks: Sequence[int], timeout_s: float) -> None:
        self.ranks = ranks
        self._group: Any = torch.distributed.new_group(
            list(ranks), timeout=timedelta(seconds=timeout_s), backend="gloo"
        )
        self._work: Any = None
        self._lock = threading.Lock()
        self._is_held = torch.distributed.get_rank() in ranks
        if self._is_held:
            # Held past the interpreter's end, which would free the group, and so join its threads.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._group))

    def all_gather(self, mine: torch.Tensor) -> list[torch.Tensor]:
        """Begin to gather tensors of one shape, in the order of the ranks."""
        found = [torch.empty_like(mine) for _ in self.ranks]
        with self._lock:
            self._check()
            self._work = torch.distributed.all_gather(found, mine, group=self._group, async_op=True)
        return found

    def all_reduce_greatest(self, numbers: torch.Tensor) -> None:
        """Begin to replace each number by the greatest of all ranks."""
        with self._lock:
            self._check()
            self._work = torch.distributed.all_reduce(
                numbers, torch.distributed.ReduceOp.MAX, group=self._group, async_op=True
            )

    def is_done(self) -> bool:
        """Return whether the exchange in progress has ended.

        Raises:
            AgreementError: it has failed, or the group is closed.
        """
        try:
            with self._lock:
                self._check()
                if not self._work.is_completed():
                    return False
                self._work.wait()  # raises what it failed of
        except RuntimeError as error:
            raise AgreementError(
                f"the exchange with {ranks_text(self.ranks)} failed: {_first_line(error)}"
            ) from error
        return True

    def close(self) -> None:
        """Free the group, or leave it where an exchange is in progress."""
        with self._lock:
            group, self._group = self._group, None
            if group is None or not self._is_held:
                return
            # With the default group, all others are freed.
            with suppress(RuntimeError, ValueError):
                if torch.distributed.is_initialized():
                    torch.distributed.destroy_process_group(group)
            if self._work is None or self._work.is_completed():
                ctypes.pythonapi.Py_DecRef(ctypes.py_object(group))

    def _check(self) -> None:
        if self._group is None:
            raise AgreementError("the agreement of the ranks is closed")


class GlooAgreement:
    """Agreement over a group of this rank's pipeline and one of its peers in all pipelines.

    A StepAgreement. It belongs to the process that made it.

    Args:
        pipeline: None: this rank is alone in its pipeline.
        peers: None: there is one pipeline.
    """

    def __init__(self, *, pipeline: _Group | None, peers: _Group | None) -> None:
        self._groups = {group for group in (pipeline, peers) if group is not None}
        self.gather = None if pipeline is None else partial(_Gathering, pipeline)
        self.greatest = None if peers is None else partial(_Greatest, peers)

    def close(self) -> None:
        """Give up what is in progress, without waiting; idempotent."""
        for group in self._groups:
            group.close()


class _Gathering:
    """Gathering of messages: first their sizes, then all of them, padded to the longest."""

    def __init__(self, group: _Group, message: bytes) -> None:
        self._group = group
        self._message = message
        self._sizes = group.all_gather(torch.tensor([len(message)], dtype=torch.int64))
        self._padded: list[torch.Tensor] = []

    def result(self) -> list[bytes] | None:
        if not self._group.is_done():
            return None
        sizes = [int(size) for size in self._sizes]
        if not self._padded and max(sizes) > 0:
            padded = bytearray(self._message.ljust(max(sizes), b"\0"))
            self._padded = self._group.all_gather(torch.frombuffer(padded, dtype=torch.uint8))
            return None
        if not self._padded:
            return [b"" for _ in sizes]
        both = zip(self._padded, sizes, strict=True)
        return [bytes(padded[:size].tolist()) for padded, size in both]


class _Greatest:
    """All-reduce of numbers."""

    def __init__(self, group: _Group, numbers: Sequence[float]) -> None:
        self._group = group
        self._numbers = torch.tensor(list(numbers), dtype=torch.float64)
        group.all_reduce_greatest(self._numbers)

    def result(self) -> list[float] | None:
        if not self._group.is_done():
            return None
        return [float(number) for number in self._numbers]


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]  # without torch's C++ stack
