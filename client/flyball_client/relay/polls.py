"""The ranks of a node that wait for a newer plan: one long poll at the planner for all of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from flyball_client.relay.messages import RelayAnswer, RelayRequest
from flyball_client.relay.upstream import Credentials, Upstream

_NOTHING_NEWER = RelayAnswer(status=204)
# The ranks of a node ask again within a moment of each other.
_GATHER_S = 0.02


@dataclass(frozen=True, kw_only=True)
class PollKey:
    """What ranks must have in common to wait together."""

    job_id: str
    after_version: int
    credentials: Credentials


@dataclass(kw_only=True, eq=False)
class _Waiter:
    rank: int
    request: RelayRequest
    deadline_s: float
    answer: asyncio.Future[RelayAnswer]


class PlanPolls:
    """Holds one call at the planner as long as ranks wait.

    A rank that comes while one is held waits with the others: news wakes that call whichever
    ranks it names, and the next one names them all.
    """

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._waiting: dict[PollKey, list[_Waiter]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def answer(
        self, key: PollKey, rank: int, request: RelayRequest, *, wait_s: float
    ) -> RelayAnswer:
        """A newer plan, 204 after `wait_s` seconds, or what is wrong."""
        if self._upstream.is_older:
            return await self._upstream.passed_on(request, wait_s=wait_s)
        loop = asyncio.get_running_loop()
        waiter = _Waiter(
            rank=rank,
            request=request,
            deadline_s=time.monotonic() + wait_s,
            answer=loop.create_future(),
        )
        waiting = self._waiting.get(key)
        if waiting is None:
            self._waiting[key] = [waiter]
            self._start(self._hold(key))
        else:
            waiting.append(waiter)
        expiry = loop.call_later(wait_s + _GATHER_S, _settle, waiter, _NOTHING_NEWER)
        try:
            return await waiter.answer
        finally:
            expiry.cancel()

    async def _hold(self, key: PollKey) -> None:
        while True:
            await asyncio.sleep(_GATHER_S)
            self._waiting[key] = [one for one in self._waiting[key] if not one.answer.done()]
            waiting = tuple(self._waiting[key])
            if not waiting:
                del self._waiting[key]
                return
            longest_s = max(waiter.deadline_s for waiter in waiting) - time.monotonic()
            answer = await self._upstream.plans(
                key.job_id,
                sorted({waiter.rank for waiter in waiting}),
                after_version=key.after_version,
                wait_s=max(longest_s, 0.0),
                credentials=key.credentials,
            )
            self._tell(key, waiting, answer)

    def _tell(
        self,
        key: PollKey,
        waiting: tuple[_Waiter, ...],
        answer: dict[int, RelayAnswer] | RelayAnswer | None,
    ) -> None:
        for waiter in waiting:
            if answer is None:
                self._start(self._pass_on(waiter))
            elif isinstance(answer, RelayAnswer):
                # Also where nothing is newer: the planner may grant a shorter wait.
                _settle(waiter, answer)
            elif waiter.rank in answer:
                _settle(waiter, answer[waiter.rank])
            else:
                _settle(waiter, _NOTHING_NEWER)
        if answer is None:
            self._waiting[key] = [one for one in self._waiting[key] if one not in waiting]

    async def _pass_on(self, waiter: _Waiter) -> None:
        """An older planner holds a call of each rank."""
        wait_s = max(waiter.deadline_s - time.monotonic(), 0.0)
        _settle(waiter, await self._upstream.passed_on(waiter.request, wait_s=wait_s))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _settle(waiter: _Waiter, answer: RelayAnswer) -> None:
    if not waiter.answer.done():
        waiter.answer.set_result(answer)
