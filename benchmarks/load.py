"""One planner process under the calls of a large job, beside Zeus's server."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx

from benchmark_report import Limit, Report, at_most, run_benchmark, show_progress, table_of
from flyball_wire import routes
from load_generator import Burst, NodeCalls, generate
from measured_process import BenchmarkError
from peer_environments import ZEUS_VERSION, peer_python
from served_planner import Server, end, served_planner

RANKS_PER_NODE = 8
PHASE_GIVE_UP_S, UP_WITHIN_S, PAUSE_S = 150.0, 60.0, 0.1
STEPS_A_MINUTE = 6
# Fewer measurements are lost in the size of SQLite's log.
FEWEST_OF_GROWTH = 100_000
# Above all steps that ranks have posted before.
FIRST_ACCELERATED_STEP = 10_000
MAX_REACH_S, MAX_PACED_P99_S = 20.0, 2.0
# docs/operations.md has the size, of SQLite.
MAX_BYTES_A_MEASUREMENT, MAX_MEMORY_GROWTH = 150.0, 0.1


@dataclass(frozen=True, kw_only=True)
class Size:
    """Size of a run.

    Attributes:
        num_steps: posted by each rank as fast as it goes.
        paced_s: how long ranks then post at the period that the planner asks for.
        num_minutes: minutes of training of 10 s steps whose measurements are then posted as fast
            as it goes.
    """

    num_jobs: int
    num_stages: int = 64
    ranks_per_stage: int
    num_microbatches: int = 64
    num_steps: int
    paced_s: float = 40.0
    num_generators: int = 2
    num_minutes: int

    @property
    def ranks_per_job(self) -> int:
        """Ranks of a job."""
        return self.num_stages * self.ranks_per_stage

    @property
    def num_nodes(self) -> int:
        """Nodes of all jobs."""
        return self.num_ranks // RANKS_PER_NODE

    @property
    def num_ranks(self) -> int:
        """Ranks of all jobs."""
        return self.num_jobs * self.ranks_per_job


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One phase as all nodes saw it, and what the server took for it.

    Attributes:
        num_rank_calls: what its requests did, counted by rank (and step).
        wall_s: from the first request to the last answer, s.
        server_cores, generator_cores: processor time by wall time.
        memory_mib: that the server held at its end.
        database_bytes: size of its SQLite file with the log beside it; None: another database.
    """

    name: str
    num_requests: int
    num_rank_calls: int
    wall_s: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    server_cores: float
    generator_cores: float
    memory_mib: float
    database_bytes: int | None

    @property
    def requests_per_s(self) -> float:
        """Requests answered, per second."""
        return self.num_requests / self.wall_s

    @property
    def rank_calls_per_s(self) -> float:
        """The same by rank (and step)."""
        return self.num_rank_calls / self.wall_s


class Crowd:
    """All nodes, in their generators' processes."""

    def __init__(self, server: Server, pipes: Sequence[Connection]) -> None:
        self._server = server
        self._pipes = pipes

    def call(self, name: str, num_rank_calls: int, what: str, **arguments: Any) -> Phase:  # noqa: ANN401 - the calls' own
        """Have all nodes make the calls that `NodeCalls.WHAT` gives, and wait for it."""
        show_progress(name)
        cpu_s = self._server.cpu_s()
        bursts = self.ask("call", what=what, **arguments)
        return self.phase_of(name, num_rank_calls, bursts, cpu_s)

    def phase_of(
        self, name: str, num_rank_calls: int | None, bursts: Sequence[Burst], cpu_s: float
    ) -> Phase:
        """Return what these bursts measured; `cpu_s`: of the server before them."""
        cpu_s = self._server.cpu_s() - cpu_s
        wall_s = max(burst.ended_s for burst in bursts) - min(burst.began_s for burst in bursts)
        latencies_ms = sorted(1e3 * each_s for burst in bursts for each_s in burst.latencies_s)
        if failed := [burst for burst in bursts if burst.num_failed]:
            num_failed = sum(burst.num_failed for burst in failed)
            shown = failed[0].bodies[0]
            raise BenchmarkError(f"{name}: {num_failed} requests failed, one with {shown!r}")
        return Phase(
            name=name,
            num_requests=len(latencies_ms),
            num_rank_calls=len(latencies_ms) if num_rank_calls is None else num_rank_calls,
            wall_s=wall_s,
            p50_ms=latencies_ms[len(latencies_ms) // 2],
            p99_ms=latencies_ms[int(0.99 * len(latencies_ms))],
            max_ms=latencies_ms[-1],
            server_cores=cpu_s / wall_s,
            generator_cores=sum(burst.cpu_s for burst in bursts) / wall_s,
            memory_mib=self._server.memory_mib(),
            database_bytes=self._server.database_bytes(),
        )

    def ask(self, do: str, **arguments: Any) -> list[Any]:  # noqa: ANN401 - as above
        """Return the answers of all generators."""
        for pipe in self._pipes:
            pipe.send((do, arguments))
        return [self._received(pipe, do) for pipe in self._pipes]

    def _received(self, pipe: Connection, do: str) -> Any:  # noqa: ANN401 - as above
        if not pipe.poll(PHASE_GIVE_UP_S):
            raise BenchmarkError(f"{do} was not over after {PHASE_GIVE_UP_S:g} s")
        answer = pipe.recv()
        if isinstance(answer, str):
            raise BenchmarkError(answer)
        return answer


@contextmanager
def _crowd(server: Server, size: Size, job_ids: Sequence[str]) -> Iterator[Crowd]:
    context = multiprocessing.get_context("spawn")
    nodes = [
        NodeCalls(
            job_id=job_id,
            ranks=tuple(range(first, first + RANKS_PER_NODE)),
            ranks_per_stage=size.ranks_per_stage,
        )
        for job_id in job_ids
        for first in range(0, size.ranks_per_job, RANKS_PER_NODE)
    ]
    url = httpx.URL(server.url)
    pipes: list[Connection] = []
    processes = []
    try:
        for number in range(size.num_generators):
            ours, theirs = context.Pipe()
            share = nodes[number :: size.num_generators]
            process = context.Process(
                target=generate, args=(theirs, url.host, url.port, share), daemon=True
            )
            process.start()
            pipes.append(ours)
            processes.append(process)
        crowd = Crowd(server, pipes)
        crowd.ask("open")
        yield crowd
        for pipe in pipes:
            pipe.send(None)
    finally:
        for process in processes:
            process.join(2.0)
            process.kill()


def measure(arguments: argparse.Namespace) -> Report:
    """Flyball's planner, then Zeus's server."""
    size = _size(arguments)
    with (
        tempfile.TemporaryDirectory() as folder,
        served_planner(Path(folder), database=arguments.postgres) as server,
    ):
        phases, reach = _load_flyball(server, size)
    zeus: list[Phase] = []
    if not arguments.no_zeus:
        with _zeus_server() as server:
            zeus = _load_zeus(server, size)
    head = (
        f"{size.num_jobs} job(s) of {size.ranks_per_job} ranks, {size.num_nodes} nodes,"
        f" {size.num_ranks + size.num_nodes} connections"
    )
    return Report(
        figures={"size": asdict(size), "phases": phases, "reach": reach, "zeus": zeus},
        text=f"{head}\n\n{_text(phases, reach, zeus)}",
        limits=list(_limits(reach)),
    )


def _limits(reach: dict[str, Any]) -> Iterator[Limit]:
    """Yield what has to hold of the new plan's reach, and of what was posted."""
    reached = "a new plan, fetched and acknowledged by all ranks, s"
    yield at_most(reached, reach["named_s"], MAX_REACH_S)
    paced = "post at the planner's period: 99th percentile, s"
    yield at_most(paced, reach["paced_p99_s"], MAX_PACED_P99_S)
    yield at_most("ranks that it did not reach", reach["num_ranks_without"], 0)
    yield at_most("measurements posted and not stored", abs(reach["num_lost"]), 0)
    if reach["bytes_a_measurement"] is not None:
        size = "growth of the database by a measurement, bytes"
        yield at_most(size, reach["bytes_a_measurement"], MAX_BYTES_A_MEASUREMENT)
        memory = "growth of memory over the last two thirds of the minutes, share"
        yield at_most(memory, reach["memory_growth"], MAX_MEMORY_GROWTH)


def _text(phases: list[Phase], reach: dict[str, Any], zeus: list[Phase]) -> str:
    """The phases as tables, a new plan's reach, and the ratios to Zeus's server."""
    columns = {
        "phase": "{name}",
        "requests/s": "{requests_per_s:.0f}",
        "ranks/s": "{rank_calls_per_s:.0f}",
        "p50 ms": "{p50_ms:.1f}",
        "p99 ms": "{p99_ms:.1f}",
        "max ms": "{max_ms:.0f}",
        "server cores": "{server_cores:.2f}",
        "generator cores": "{generator_cores:.2f}",
        "MiB": "{memory_mib:.0f}",
    }
    lines = [
        f"{table_of(phases, columns)}\n",
        f"a new plan: {reach['fetched_s']:.3f} s from being made until the last rank had it,"
        f" {reach['named_s']:.3f} s until all had acknowledged it and knew its first step;"
        f" period of posts {reach['period_s']:.1f} s",
    ]
    if zeus:
        lines.append("\n" + table_of(zeus, {"Zeus": "{name}", **columns}))
    for theirs in zeus:
        ours = next(phase for phase in phases if phase.name == theirs.name)
        ratio = ours.requests_per_s / theirs.requests_per_s
        lines.append(f"{ours.name}: {ratio:.2f} times Zeus's requests per second")
    return "\n".join(lines)


# ---------------------------------------------------------------------- Flyball

REGISTER, POST = "register, each rank", "post a step"


def _load_flyball(server: Server, size: Size) -> tuple[list[Phase], dict[str, Any]]:
    ranks, job_ids = size.num_ranks, [f"load-{number}" for number in range(size.num_jobs)]
    with httpx.Client(base_url=server.url, timeout=60.0, trust_env=False) as http:
        for job_id in job_ids:
            _put_job(http, job_id, size)
        with _crowd(server, size, job_ids) as crowd:
            phases = [
                crowd.call(REGISTER, ranks, "register"),
                crowd.call("first plan", ranks, "first_plans"),
                crowd.call("acknowledge", ranks, "acknowledgements", version=1, step=0),
            ]
            crowd.ask("hold", after_version=1, step=5)
            steps = {"first_step": 0, "num_steps": size.num_steps}
            phases.append(crowd.call(POST, ranks * size.num_steps, "posts", **steps))
            paced, period_s = _post_paced(crowd, server, size)
            phases.append(paced)
            # Before the minutes: a call that waits for a plan ends after one of them.
            reach = _new_plan(crowd, http, job_ids)
            minutes = [
                crowd.call(
                    f"minute {minute + 1}",
                    ranks * STEPS_A_MINUTE,
                    "minute_posts",
                    first_step=FIRST_ACCELERATED_STEP + minute * STEPS_A_MINUTE,
                    num_steps=STEPS_A_MINUTE,
                )
                for minute in range(size.num_minutes)
            ]
            posted = paced.num_requests
            posted += ranks * (size.num_steps + size.num_minutes * STEPS_A_MINUTE)
            reach |= _growth(minutes, size) | {
                "paced_p99_s": paced.p99_ms / 1e3,
                "period_s": period_s,
                "num_lost": posted - _num_stored(http, job_ids),
                "num_ranks_without": ranks - reach["num_ranks"],
            }
    return [*phases, *minutes], reach


def _post_paced(crowd: Crowd, server: Server, size: Size) -> tuple[Phase, float]:
    """Posts at the period that the planner's answers ask for, and the longest such period, s."""
    name, cpu_s = "post at the planner's period", server.cpu_s()
    show_progress(name)
    answers = crowd.ask("post_paced", first_step=size.num_steps, duration_s=size.paced_s)
    phase = crowd.phase_of(name, None, [answer["burst"] for answer in answers], cpu_s)
    return phase, max(answer["longest_period_s"] for answer in answers)


def _growth(minutes: Sequence[Phase], size: Size) -> dict[str, Any]:
    """Return the growth of database and memory in the minutes; None where there were too few.

    Memory: from a third of the minutes to the last. A planner's caches have filled by then.
    """
    grown: dict[str, Any] = {"bytes_a_measurement": None, "memory_growth": None}
    num_measured = size.num_ranks * STEPS_A_MINUTE * (len(minutes) - 1)
    if num_measured >= FEWEST_OF_GROWTH:
        first, last, early = minutes[0], minutes[-1], minutes[len(minutes) // 3]
        if first.database_bytes is not None and last.database_bytes is not None:
            grown_bytes = last.database_bytes - first.database_bytes
            grown["bytes_a_measurement"] = grown_bytes / num_measured
            grown["memory_growth"] = last.memory_mib / early.memory_mib - 1
    return grown


def _new_plan(crowd: Crowd, http: httpx.Client, job_ids: Sequence[str]) -> dict[str, Any]:
    """Another target for each job: when all ranks have its plan, and know its first step."""
    show_progress("a new plan")
    asked_s = time.monotonic()
    for job_id in job_ids:
        path = routes.fill(routes.TARGET, job_id=job_id)
        http.put(path, json={"policy": "uniform"}).raise_for_status()
    answers = crowd.ask("reached")
    if not any(answer["num_ranks"] for answer in answers):
        raise BenchmarkError("the new plan has reached no rank")
    path = routes.fill(routes.PLAN, job_id=job_ids[-1], version=2)
    made_at = datetime.fromisoformat(http.get(path).raise_for_status().json()["created_at"])
    made_s = time.monotonic() - (time.time() - made_at.timestamp())
    named_s = max(answer["named_s"] for answer in answers)
    return {
        "asked_to_named_s": named_s - asked_s,
        "fetched_s": max(answer["fetched_s"] for answer in answers) - made_s,
        "named_s": named_s - made_s,
        "num_ranks": sum(answer["num_ranks"] for answer in answers),
    }


def _num_stored(http: httpx.Client, job_ids: Sequence[str]) -> int:
    """Measurements of a rank in a step that are stored."""
    stored = 0
    for job_id in job_ids:
        path = routes.fill(routes.STEPS, job_id=job_id)
        found = http.get(path, params={"limit": 2000}, timeout=120.0).raise_for_status()
        stored += sum(step["num_ranks"] for step in found.json())
    return stored


def _put_job(http: httpx.Client, job_id: str, size: Size) -> None:
    registration = {
        "num_stages": size.num_stages,
        "num_microbatches": size.num_microbatches,
        "num_ranks": size.ranks_per_job,
        "policy": "baseline",
        "blocking_power_w": [70.0],
        "emulated": True,
    }
    http.put(routes.fill(routes.JOB, job_id=job_id), json=registration).raise_for_status()
    rows = ["stage,instruction,frequency,time,energy"]
    for stage in range(size.num_stages):
        for kind, time_s in (("forward", 0.05), ("backward", 0.1)):
            for mhz in (1410, 1200, 990):
                rows.append(f"{stage},{kind},{mhz},{time_s * 1410 / mhz},{time_s * mhz / 4}")
    http.put(
        routes.fill(routes.PROFILE, job_id=job_id),
        content="\n".join(rows),
        headers={"Content-Type": "text/csv"},
    ).raise_for_status()


# ---------------------------------------------------------------------- Zeus


@contextmanager
def _zeus_server() -> Iterator[Server]:
    """Zeus's server, as its documentation starts it; it writes no log and dumps no data.

    It needs pydantic 1, so it cannot be installed beside ours; torch, which it imports and does
    not use, is ours.
    """
    app = "zeus.optimizer.pipeline_frequency.server.router:app"
    python = peer_python(
        f"zeus-server-{ZEUS_VERSION}",
        *(f"zeus[pfo]=={ZEUS_VERSION}", "fastapi", "uvicorn", "lowtime", "aiofiles"),
        check="import torch, uvicorn",
        sees_torch=True,
    )
    with socket.socket() as probe, tempfile.TemporaryDirectory() as folder:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
        probe.close()
        # It asks for a plan's file at the start, and reads it once all ranks are there.
        solution = Path(folder) / "solution.py"
        solution.write_text("[]", encoding="utf-8")
        command = [python, "-W", "ignore", "-m", "uvicorn", app, "--port", str(port)]
        process = subprocess.Popen(
            [*command, "--log-level", "critical", "--no-access-log"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=folder,
            env={
                **os.environ,
                "ZEUS_PFO_LOG_LEVEL": "CRITICAL",
                "ZEUS_PFO_DUMP_DATA": "false",
                "ZEUS_PFO_SCHEDULER_ARGS": json.dumps({"solution_path": str(solution)}),
            },
        )
        try:
            server = Server(process=process, url=f"http://127.0.0.1:{port}")
            _await_answer(server, "/openapi.json")
            yield server
        finally:
            end(process)


def _await_answer(server: Server, path: str) -> None:
    give_up_s = time.monotonic() + UP_WITHIN_S
    while time.monotonic() < give_up_s and server.process.poll() is None:
        try:
            httpx.get(server.url + path, timeout=2.0, trust_env=False).raise_for_status()
        except httpx.HTTPError:
            time.sleep(PAUSE_S)
        else:
            return
    raise BenchmarkError("Zeus's server does not answer")


def _load_zeus(server: Server, size: Size) -> list[Phase]:
    """Return what Zeus's server has too: registering ranks, and one report of each."""
    degrees = {"pp_degree": size.num_stages, "dp_degree": size.ranks_per_stage, "tp_degree": 1}
    job_ids: list[str] = []
    with httpx.Client(base_url=server.url, timeout=60.0, trust_env=False) as http:
        for number in range(size.num_jobs):
            info = {**degrees, "world_size": size.ranks_per_job, "job_metadata": f"load-{number}"}
            job_ids.append(http.post("/register_job", json=info).raise_for_status().json())
    with _crowd(server, size, job_ids) as crowd:
        return [
            crowd.call(REGISTER, size.num_ranks, "zeus_register"),
            crowd.call(POST, size.num_ranks, "zeus_report"),
        ]


def _size(arguments: argparse.Namespace) -> Size:
    common = {"num_jobs": arguments.jobs, "num_minutes": arguments.minutes}
    if arguments.quick:
        few = {"num_stages": 4, "num_microbatches": 4, "num_generators": 1, "num_steps": 1}
        return Size(ranks_per_stage=8, paced_s=2.0, **few, **common)
    if 4096 % (64 * arguments.jobs):
        raise BenchmarkError("--jobs must divide 64")
    return Size(ranks_per_stage=64 // arguments.jobs, num_steps=arguments.steps, **common)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true", help="32 ranks, to see that it runs")
    options.add_argument("--jobs", type=int, default=1, help="share the ranks out among so many")
    options.add_argument("--steps", type=int, default=1, help="posted as fast as it goes")
    options.add_argument(
        "--minutes",
        type=int,
        default=0,
        help="then post the measurements of so many minutes of training as fast as it goes",
    )
    options.add_argument("--postgres", metavar="URL", help="an empty database; default: SQLite")
    options.add_argument("--no-zeus", action="store_true", help="Flyball's planner alone")
    run_benchmark(options, measure)
