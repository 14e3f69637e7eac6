"""Nodes of a large job as their planner sees them: keep-alive connections that call and wait.

Each generator is a process with a share of the nodes. A node has two connections: one on which
it waits for a newer plan, one for all else.
"""

from __future__ import annotations

import asyncio
import json
import resource
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from load_calls import NodeCalls

_GIVE_UP_S = 120.0
_OPEN_AT_ONCE = 64


@dataclass(frozen=True, kw_only=True)
class Burst:
    """What a generator measured in one phase.

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
        self._held: list[asyncio.Task[tuple[int, bytes, float]]] = []

    async def open(self) -> Burst:
        """Connect all nodes."""
        began_s = time.monotonic()
        for lines in (self._lines, self._polls):
            for first in range(0, len(self._nodes), _OPEN_AT_ONCE):
                some = self._nodes[first : first + _OPEN_AT_ONCE]
                made = [_Line(*self._address) for _ in some]
                await asyncio.gather(*(line.open() for line in made))
                lines.extend(made)
        return _burst([], began_s, _cpu_s())

    async def call(self, what: str, **arguments: Any) -> Burst:  # noqa: ANN401 - the calls' own
        """Each node makes the calls that `NodeCalls.WHAT` gives, one after the other."""
        results: list[tuple[float, int, bytes]] = []

        async def one(node: NodeCalls, line: _Line) -> None:
            requests: Iterator[bytes] = getattr(node, what)(**arguments)
            for request in requests:
                results.append(await _timed(line, request))

        return await self._measured(results, one)

    async def post_paced(self, *, num_steps: int, first_step: int, period_s: float) -> Burst:
        """Each node posts a step every `period_s`, the nodes spread over it."""
        results: list[tuple[float, int, bytes]] = []
        began_s = time.monotonic()
        offsets_s = {
            id(node): period_s * number / len(self._nodes)
            for number, node in enumerate(self._nodes)
        }

        async def one(node: NodeCalls, line: _Line) -> None:
            for number in range(num_steps):
                due_s = began_s + offsets_s[id(node)] + number * period_s
                await asyncio.sleep(max(due_s - time.monotonic(), 0.0))
                for request in node.posts_together(first_step=first_step + number, num_steps=1):
                    results.append(await _timed(line, request))

        return await self._measured(results, one)

    async def hold(self, *, after_version: int) -> Burst:
        """All nodes wait for a newer plan from now on."""

        async def held(node: NodeCalls, line: _Line) -> tuple[int, bytes, float]:
            status, body = await line.call(node.poll(after_version=after_version))
            return status, body, time.monotonic()

        pairs = zip(self._nodes, self._polls, strict=True)
        self._held = [asyncio.create_task(held(node, line)) for node, line in pairs]
        return _burst([], time.monotonic(), _cpu_s())

    async def reached(self) -> dict[str, Any]:
        """When the nodes' polls were answered: monotonic, s; and with which plan versions."""
        answers = await asyncio.gather(*self._held)
        ranks = versions = 0
        for _, body, _ in answers:
            for shared in json.loads(body or b"{}").get("plans", []):
                ranks += len(shared["ranks"])
                versions = max(versions, shared["plan"]["version"])
        return {
            "answered_s": [at_s for _, _, at_s in answers],
            "num_failed": sum(status != 200 for status, _, _ in answers),
            "num_ranks": ranks,
            "version": versions,
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
