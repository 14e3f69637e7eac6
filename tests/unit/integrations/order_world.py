"""Ranks that take their turns in one process: collectives that are over once all have begun."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed


class _Call:
    """One collective, as far as the ranks have come to it."""

    def __init__(self, num_ranks: int) -> None:
        self.inputs: list[torch.Tensor | None] = [None] * num_ranks


class _Work:
    def __init__(self, finish: Callable[[], None]) -> None:
        self._finish = finish

    def wait(self, timeout: object = None) -> None:
        del timeout
        self._finish()


class _Group:
    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks

    def size(self) -> int:
        return self._num_ranks


class World:
    """Stands in for torch.distributed; `rank` is whose turn it is."""

    def __init__(self, num_ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_ranks = num_ranks
        self.failing = False
        self.num_collectives = self.num_freed = 0
        self._rank = 0
        self._calls: list[_Call] = []
        self._num_begun = [0] * num_ranks
        monkeypatch.setattr(torch.distributed, "new_group", self._new_group)
        monkeypatch.setattr(torch.distributed, "all_reduce", self._all_reduce)
        monkeypatch.setattr(torch.distributed, "all_gather", self._all_gather)
        monkeypatch.setattr(torch.distributed, "destroy_process_group", self._free)

    @contextmanager
    def turn_of(self, rank: int) -> Iterator[None]:
        """Inside the block that rank calls."""
        self._rank = rank
        yield

    def on_each(self, act: Callable[[int], Any]) -> list[Any]:
        """Return what each rank's turn returns."""
        results = []
        for rank in range(self.num_ranks):
            with self.turn_of(rank):
                results.append(act(rank))
        return results

    def _new_group(self, *, backend: str) -> _Group:
        assert backend == "gloo"
        return _Group(self.num_ranks)

    def _free(self, group: _Group) -> None:
        self.num_freed += 1

    def _begin(self, tensor: torch.Tensor) -> _Call:
        if self.failing:
            raise RuntimeError("connection closed by peer")
        number = self._num_begun[self._rank]
        self._num_begun[self._rank] += 1
        if number == len(self._calls):
            self._calls.append(_Call(self.num_ranks))
            self.num_collectives += 1
        self._calls[number].inputs[self._rank] = tensor.clone()
        return self._calls[number]

    def _all_reduce(
        self, tensor: torch.Tensor, *, op: object, group: object, async_op: bool
    ) -> _Work:
        assert op == torch.distributed.ReduceOp.MIN
        assert async_op, "nobody may wait for a slower rank"
        call = self._begin(tensor)

        def finish() -> None:
            tensor.copy_(torch.stack(_all_begun(call)).min(dim=0).values)

        return _Work(finish)

    def _all_gather(
        self, rows: list[torch.Tensor], row: torch.Tensor, *, group: object, async_op: bool
    ) -> _Work:
        assert async_op, "nobody may wait for a slower rank"
        call = self._begin(row)

        def finish() -> None:
            for target, source in zip(rows, _all_begun(call), strict=True):
                target.copy_(source)

        return _Work(finish)


def _all_begun(call: _Call) -> list[torch.Tensor]:
    tensors = [tensor for tensor in call.inputs if tensor is not None]
    assert len(tensors) == len(call.inputs), "a rank waits for one that has not begun: deadlock"
    return tensors
