"""Nodes of a large job as their planner sees them: keep-alive connections that call and wait.

Each generator is a process with a share of the nodes. A node has a connection for each rank, on
which that waits for a newer plan, and one for all else.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import random
import resource
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from load_calls import NodeCalls

_GIVE_UP_S = 120.0
_OPEN_AT_ONCE = 64
HTTP_OK = 200


@dataclass(frozen=True, kw_only=True)
class Burst:
    """Measurements of a generator in one phase.

    Attributes:
        latencies_s: of its requests, from sending to the whole answer, s.
        num_failed: requests that were not answered with 200 or 204.
        began_s, ended_s: monotonic, the same clock in all processes, s.
        cpu_s: of the generator itself, s.
        bodies: answers, where they were asked for.
    """

    latencies_s: list[float]
    num_failed: int
    began_s: float
    ended_s: float
    cpu_s: float
    bodies: list[bytes]


@dataclass(frozen=True, kw_only=True)
class _Reached:
    """Arrival of a new plan at a rank: its first step, and when the rank had both."""

    status: int
    first_step: int | None
    fetched_s: float
    named_s: float


class _Line:
    """One keep-alive connection, made anew where the server has closed it in between."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def open(self) -> None:
        """Connect."""
        self._streams = await asyncio.open_connection(*self._address)

    async def call(self, request: bytes) -> tuple[int, bytes]:
        """Status and body of the answer."""
        try:
            return await self._call(request)
        except (asyncio.IncompleteReadError, ConnectionError):
            await self.open()
            return await self._call(request)

    async def _call(self, request: bytes) -> tuple[int, bytes]:
        if self._streams is None:
            await self.open()
        assert self._streams is not None  # noqa: S101 - opened above
        reader, writer = self._streams
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line[15:])
        return int(head[9:12]), await reader.readexactly(length) if length else b""


class Generator:
    """The nodes of one process; each public method is a phase that the benchmark asks for."""

    def __init__(self, host: str, port: int, nodes: list[NodeCalls]) -> None:
        self._address = (host, port)
        self._nodes = nodes
        self._lines: list[_Line] = []
        self._polls: list[_Line] = []
        self._held: list[asyncio.Task[_Reached]] = []

    async def open(self) -> Burst:
        """Connect all nodes."""
        began_s = time.monotonic()
        self._lines = [_Line(*self._address) for _ in self._nodes]
        self._polls = [_Line(*self._address) for node in self._nodes for _ in node.ranks]
        lines = [*self._lines, *self._polls]
        for first in range(0, len(lines), _OPEN_AT_ONCE):
            await asyncio.gather(*(line.open() for line in lines[first : first + _OPEN_AT_ONCE]))
        return _burst([], began_s, _cpu_s())

    async def call(self, what: str, **arguments: Any) -> Burst:  # noqa: ANN401 - the calls' own
        """Each node makes the calls that `NodeCalls.WHAT` gives, one after the other."""
        results: list[tuple[float, int, bytes]] = []

        async def one(node: NodeCalls, line: _Line) -> None:
            requests: Iterator[bytes] = getattr(node, what)(**arguments)
            for request in requests:
                results.append(await _timed(line, request))

        return await self._measured(results, one)

    async def post_paced(self, *, first_step: int, duration_s: float) -> dict[str, Any]:
        """Each rank posts when the planner's last answer asked for it, for this long."""
        results: list[tuple[float, int, bytes]] = []
        periods_s: list[float] = []
        began_s = time.monotonic()

        async def one(node: NodeCalls, line: _Line) -> None:
            queue = [(began_s, rank, first_step) for rank in node.ranks]
            while queue:
                due_s, rank, step = heapq.heappop(queue)
                await asyncio.sleep(max(due_s - time.monotonic(), 0.0))
                results.append(await _timed(line, node.post(rank, step)))
                period_s = float(json.loads(results[-1][2])["next_post_s"])
                periods_s.append(period_s)
                next_s = due_s + period_s * random.uniform(0.9, 1.1)  # as the client's jitter
                if next_s < began_s + duration_s:
                    heapq.heappush(queue, (next_s, rank, step + 1))

        burst = await self._measured(results, one)
        return {"burst": burst, "periods_s": (min(periods_s), max(periods_s))}

    async def hold(self, *, after_version: int, step: int) -> Burst:
        """All ranks wait for a newer plan from now on, and acknowledge it when it comes."""

        async def held(node: NodeCalls, rank: int, line: _Line) -> _Reached:
            status, body = await line.call(node.poll(rank, after_version=after_version))
            if status != HTTP_OK:
                return _Reached(status=status, first_step=None, fetched_s=0.0, named_s=0.0)
            version, fetched_s = json.loads(body)["version"], time.monotonic()
            status, body = await line.call(node.acknowledge(rank, version=version, step=step))
            first_step = json.loads(body).get("first_step") if status == HTTP_OK else None
            return _Reached(
                status=status, first_step=first_step, fetched_s=fetched_s, named_s=time.monotonic()
            )

        places = [(node, rank) for node in self._nodes for rank in node.ranks]
        self._held = [
            asyncio.create_task(held(node, rank, line))
            for (node, rank), line in zip(places, self._polls, strict=True)
        ]
        return _burst([], time.monotonic(), _cpu_s())

    async def reached(self) -> dict[str, Any]:
        """Return when the last rank had the plan, and its first step: monotonic, s."""
        answers = await asyncio.gather(*self._held)
        return {
            "fetched_s": max(answer.fetched_s for answer in answers),
            "named_s": max(answer.named_s for answer in answers),
            "num_ranks": sum(answer.first_step is not None for answer in answers),
        }

    async def _measured(
        self,
        results: list[tuple[float, int, bytes]],
        one: Callable[[NodeCalls, _Line], Awaitable[None]],
    ) -> Burst:
        began_s, cpu_s = time.monotonic(), _cpu_s()
        pairs = zip(self._nodes, self._lines, strict=True)
        async with asyncio.timeout(_GIVE_UP_S):
            await asyncio.gather(*(one(node, line) for node, line in pairs))
        return _burst(results, began_s, cpu_s)


async def _timed(line: _Line, request: bytes) -> tuple[float, int, bytes]:
    began_s = time.monotonic()
    status, body = await line.call(request)
    return time.monotonic() - began_s, status, body


def _burst(results: list[tuple[float, int, bytes]], began_s: float, cpu_s: float) -> Burst:
    return Burst(
        latencies_s=[latency_s for latency_s, _, _ in results],
        num_failed=sum(status not in {200, 204} for _, status, _ in results),
        began_s=began_s,
        ended_s=time.monotonic(),
        cpu_s=_cpu_s() - cpu_s,
        bodies=[body for _, status, body in results if status not in {200, 204}][:1],
    )


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def generate(pipe: Connection, host: str, port: int, nodes: list[NodeCalls]) -> None:
    """A generator's process: phases by name come in by the pipe, what was measured goes out."""

    async def run() -> None:
        generator = Generator(host, port, nodes)
        loop = asyncio.get_running_loop()
        while True:
            asked = await loop.run_in_executor(None, pipe.recv)
            if asked is None:
                return
            phase, arguments = asked
            try:
                answer: object = await getattr(generator, phase)(**arguments)
            except Exception as error:  # the benchmark tells it
                answer = f"{phase}: {type(error).__name__}: {error}"
            pipe.send(answer)

    asyncio.run(run())
