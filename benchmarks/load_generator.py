"""Nodes of a large job as their planner sees them: keep-alive connections that call and wait.

Each generator is a process with a share of the nodes. A node has a connection for each rank, on
which that waits for a newer plan, and one for all else. Calls go to Flyball's planner or to Zeus's
server.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from flyball_wire import routes

CLOCKS_MHZ = tuple(range(1410, 195, -15))
POLL_WAIT_S = 60
TENSOR_PARALLEL = 8


@dataclass(frozen=True, kw_only=True)
class NodeCalls:
    """The calls of a node's ranks.

    Attributes:
        job_id: of the job, at either server.
        ranks: of the node, within the job.
        ranks_per_stage: ranks of a stage follow one another; 8 of them are tensor-parallel.
    """

    job_id: str
    ranks: tuple[int, ...]
    ranks_per_stage: int

    # ------------------------------------------------------------------ Flyball

    def register(self) -> Iterator[bytes]:
        """One call for each rank."""
        for rank in self.ranks:
            yield request("PUT", self._path(routes.RANK, rank=rank), self._registration(rank))

    def first_plans(self) -> Iterator[bytes]:
        """One call for each rank, which does not wait."""
        for rank in self.ranks:
            yield self.poll(rank, after_version=0, wait_s=0)

    def poll(self, rank: int, *, after_version: int, wait_s: int = POLL_WAIT_S) -> bytes:
        """Long poll of one rank."""
        path = self._path(routes.RANK_PLAN, rank=rank)
        return request("GET", f"{path}?after_version={after_version}&wait_s={wait_s}")

    def acknowledgements(self, *, version: int, step: int) -> Iterator[bytes]:
        """One call for each rank, which does not wait."""
        for rank in self.ranks:
            yield self.acknowledge(rank, version=version, step=step, wait_s=0)

    def acknowledge(
        self, rank: int, *, version: int, step: int, wait_s: int = POLL_WAIT_S
    ) -> bytes:
        """Acknowledgement of one rank, which waits for the version's first step."""
        path = self._path(routes.RANK_ACKNOWLEDGEMENT, rank=rank)
        return request(
            "POST", f"{path}?wait_s={wait_s}", {"version": version, "current_step": step}
        )

    def posts(self, *, first_step: int, num_steps: int) -> Iterator[bytes]:
        """One call for each rank and step."""
        for step in range(first_step, first_step + num_steps):
            for rank in self.ranks:
                yield self.post(rank, step)

    def minute_posts(self, *, first_step: int, num_steps: int) -> Iterator[bytes]:
        """One call for each rank, with all these steps."""
        steps = range(first_step, first_step + num_steps)
        for rank in self.ranks:
            path = self._path(routes.RANK_MEASUREMENTS, rank=rank)
            yield request("POST", path, {"steps": [_step(rank, step) for step in steps]})

    def post(self, rank: int, step: int) -> bytes:
        """One rank's post of a step."""
        path = self._path(routes.RANK_MEASUREMENTS, rank=rank)
        return request("POST", path, {"steps": [_step(rank, step)]})

    def _path(self, template: str, **parts: int) -> str:
        return routes.fill(template, job_id=self.job_id, **parts)

    def _registration(self, rank: int) -> dict[str, Any]:
        return {
            "stage": rank // self.ranks_per_stage,
            "host": f"node-{self.ranks[0] // len(self.ranks)}",
            "gpu_name": "NVIDIA H100 80GB HBM3",
            "gpu_uuid": f"GPU-{rank:08x}-load-load-load-0123456789ab",
            "emulated": True,
            "client_version": "0.1.0",
            "dp_rank": rank % self.ranks_per_stage // TENSOR_PARALLEL,
            "tp_rank": rank % TENSOR_PARALLEL,
            "sm_clocks_mhz": CLOCKS_MHZ,
        }

    # ------------------------------------------------------------------ Zeus

    def zeus_register(self) -> Iterator[bytes]:
        """One call for each rank."""
        for rank in self.ranks:
            info = {
                "rank": rank,
                "dp_rank": rank % self.ranks_per_stage // TENSOR_PARALLEL,
                "pp_rank": rank // self.ranks_per_stage,
                "tp_rank": rank % TENSOR_PARALLEL,
                "available_frequencies": CLOCKS_MHZ,
            }
            yield request("POST", f"/register_rank/{self.job_id}", info)

    def zeus_report(self) -> Iterator[bytes]:
        """One call for each rank: the time and energy of one iteration."""
        for rank in self.ranks:
            step = _step(rank, 0)
            result = {
                "rank": rank,
                "iter_time": [step["time_s"]],
                "iter_energy": [step["energy_j"]],
            }
            yield request("POST", f"/result/{self.job_id}", result)


def request(method: str, target: str, document: object = None) -> bytes:
    """An HTTP/1.1 request."""
    body = b"" if document is None else json.dumps(document, separators=(",", ":")).encode()
    head = f"{method} {target} HTTP/1.1\r\nhost: 127.0.0.1\r\n"
    if document is not None:
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


def _step(rank: int, step: int) -> dict[str, Any]:
    """A measured step, every figure of every rank and step another."""
    time_s = 9.5 + (rank * 7 + step * 13) % 1009 * 1e-3
    return {"step": step, "plan_version": 1, "time_s": time_s, "energy_j": 412.5 * time_s}


# ---------------------------------------------------------------------- the generator

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


class _Reached(NamedTuple):
    """Moments at which a rank had a new plan and knew its first step, monotonic, s; None: never."""

    fetched_s: float
    named_s: float | None


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
        return _burst([], began_s, time.process_time())

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
        return {"burst": burst, "longest_period_s": max(periods_s)}

    async def hold(self, *, after_version: int, step: int) -> Burst:
        """All ranks wait for a newer plan from now on, and acknowledge it when it comes."""

        async def held(node: NodeCalls, rank: int, line: _Line) -> _Reached:
            status, body = await line.call(node.poll(rank, after_version=after_version))
            fetched_s, named_s = time.monotonic(), None
            if status == HTTP_OK:
                version = json.loads(body)["version"]
                known = await line.call(node.acknowledge(rank, version=version, step=step))
                if known[0] == HTTP_OK and json.loads(known[1]).get("first_step") is not None:
                    named_s = time.monotonic()
            return _Reached(fetched_s, named_s)

        places = [(node, rank) for node in self._nodes for rank in node.ranks]
        self._held = [
            asyncio.create_task(held(node, rank, line))
            for (node, rank), line in zip(places, self._polls, strict=True)
        ]
        return _burst([], time.monotonic(), time.process_time())

    async def reached(self) -> dict[str, Any]:
        """Return when the last rank had the plan, and its first step: monotonic, s."""
        answers = await asyncio.gather(*self._held)
        named_s = [answer.named_s for answer in answers if answer.named_s is not None]
        return {
            "fetched_s": max(answer.fetched_s for answer in answers),
            "named_s": max(named_s, default=0.0),
            "num_ranks": len(named_s),
        }

    async def _measured(
        self,
        results: list[tuple[float, int, bytes]],
        one: Callable[[NodeCalls, _Line], Awaitable[None]],
    ) -> Burst:
        began_s, cpu_s = time.monotonic(), time.process_time()
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
        cpu_s=time.process_time() - cpu_s,
        bodies=[body for _, status, body in results if status not in {200, 204}][:1],
    )


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
