"""Calls of a kind that come within a moment, joined into one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

from flyball_client.relay.messages import RelayAnswer
from flyball_client.relay.upstream import RankCall

Key = TypeVar("Key", bound=Hashable)

# A batch body is some of these and not much larger than one: a planner may take 1 MiB at most.
_MOST_BYTES = 512 * 2**10
_MOST_RANKS = 256


class Joined(Generic[Key]):
    """Gathers calls by key; a group goes out when a moment is over, or all that is usual is there.

    Two calls of one rank never go out in one group.

    Args:
        send: takes a key and calls of different ranks; the answers in their order. Raises nothing.
        gather_s: how long the first call of a group waits for others, s.
        expected: how many ranks there are to wait for, under a key.
    """

    def __init__(
        self,
        send: Callable[[Key, Sequence[RankCall]], Awaitable[list[RelayAnswer]]],
        *,
        gather_s: float,
        expected: Callable[[Key], int],
    ) -> None:
        self._send = send
        self._gather_s = gather_s
        self._expected = expected
        self._groups: dict[Key, _Group] = {}
        self._sending: set[asyncio.Task[None]] = set()

    async def answer(self, key: Key, call: RankCall) -> RelayAnswer:
        """The answer to this call."""
        group = self._groups.get(key)
        if group is not None and not group.takes(call):
            self._send_out(key)
            group = None
        if group is None:
            group = self._groups[key] = _Group()
            group.timer = asyncio.get_running_loop().call_later(self._gather_s, self._send_out, key)
        future = group.add(call)
        if len(group.calls) >= self._expected(key):
            self._send_out(key)
        return await future

    def _send_out(self, key: Key) -> None:
        group = self._groups.pop(key)
        if group.timer is not None:
            group.timer.cancel()
        task = asyncio.create_task(self._settle(key, group))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _settle(self, key: Key, group: _Group) -> None:
        answers = await self._send(key, group.calls)
        for future, answer in zip(group.futures, answers, strict=True):
            if not future.done():
                future.set_result(answer)


class _Group:
    """Calls that will go out together, and who waits for their answers."""

    def __init__(self) -> None:
        self.calls: list[RankCall] = []
        self.futures: list[asyncio.Future[RelayAnswer]] = []
        self.timer: asyncio.TimerHandle | None = None
        self._ranks: set[int] = set()
        self._num_bytes = 0

    def takes(self, call: RankCall) -> bool:
        """Whether this call may go out with them."""
        num_bytes = self._num_bytes + len(call.request.body)
        is_small = num_bytes <= _MOST_BYTES and len(self.calls) < _MOST_RANKS
        return is_small and call.rank not in self._ranks

    def add(self, call: RankCall) -> asyncio.Future[RelayAnswer]:
        """Take it up."""
        future: asyncio.Future[RelayAnswer] = asyncio.get_running_loop().create_future()
        self.calls.append(call)
        self.futures.append(future)
        self._ranks.add(call.rank)
        self._num_bytes += len(call.request.body)
        return future
