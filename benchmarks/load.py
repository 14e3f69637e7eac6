"""One planner process under the calls of a large job, beside Zeus's server where it has the same.

Run `python benchmarks/load.py [--json] [--quick] [--jobs N] [--minutes N] [--postgres URL]
[--no-zeus]`;
README.md beside this file says how to read it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from multiprocessing.connection import Connection
from typing import Any

import httpx

from benchmark_report import Report, run_benchmark, show_progress
from flyball_wire import routes
from load_calls import NodeCalls
from load_generator import Burst, generate
from load_phases import Phase, figures_of, limits_on, phases_text
from load_servers import Server, flyball_server, zeus_server
from measured_process import BenchmarkError

RANKS_PER_NODE = 8
PHASE_GIVE_UP_S = 150.0
STEPS_A_MINUTE = 6
# Fewer measurements are lost in the size of SQLite's log.
FEWEST_OF_GROWTH = 100_000
# Above all steps that ranks have posted before.
FIRST_ACCELERATED_STEP = 10_000


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
    num_stages: int
    ranks_per_stage: int
    num_microbatches: int
    num_steps: int
    paced_s: float
    num_generators: int
    num_minutes: int

    @property
    def ranks_per_job(self) -> int:
        """Ranks of a job."""
        return self.num_stages * self.ranks_per_stage

    @property
    def num_nodes(self) -> int:
        """Nodes of all jobs."""
        return self.num_jobs * self.ranks_per_job // RANKS_PER_NODE

    @property
    def num_ranks(self) -> int:
        """Ranks of all jobs."""
        return self.num_jobs * self.ranks_per_job


class Crowd:
    """All nodes, in their generators' processes."""

    def __init__(self, server: Server, pipes: Sequence[Connection]) -> None:
        self._server = server
        self._pipes = pipes

    def phase(self, name: str, num_rank_calls: int, do: str, **arguments: Any) -> Phase:  # noqa: ANN401 - the phases' own
        """Have all nodes do something, and wait for it."""
        show_progress(name)
        cpu_s = self._server.cpu_s()
        return self.phase_of(name, num_rank_calls, self.ask(do, **arguments), cpu_s)

    def phase_of(
        self, name: str, num_rank_calls: int | None, bursts: Sequence[Burst], cpu_s: float
    ) -> Phase:
        """Return what these bursts measured; `cpu_s`: of the server before them."""
        cpu_s = self._server.cpu_s() - cpu_s
        wall_s = max(burst.ended_s for burst in bursts) - min(burst.began_s for burst in bursts)
        latencies_s = sorted(latency_s for burst in bursts for latency_s in burst.latencies_s)
        num_failed = sum(burst.num_failed for burst in bursts)
        if num_failed:
            shown = next(body for burst in bursts for body in burst.bodies)
            raise BenchmarkError(f"{name}: {num_failed} requests failed, one with {shown!r}")
        return Phase(
            name=name,
            num_requests=len(latencies_s),
            num_failed=num_failed,
            num_rank_calls=len(latencies_s) if num_rank_calls is None else num_rank_calls,
            wall_s=wall_s,
            p50_ms=1e3 * _share(latencies_s, 0.5),
            p99_ms=1e3 * _share(latencies_s, 0.99),
            max_ms=1e3 * latencies_s[-1] if latencies_s else 0.0,
            server_cores=cpu_s / wall_s,
            generator_cores=sum(burst.cpu_s for burst in bursts) / wall_s,
            memory_mib=self._server.memory_mib(),
            database_bytes=self._server.database_bytes(),
        )

    def ask(self, do: str, **arguments: Any) -> list[Any]:  # noqa: ANN401 - as above
        """The answers of all generators."""
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


def measure(arguments: argparse.Namespace) -> Report:
    """Flyball's planner, then Zeus's server."""
    size = _size(arguments)
    figures: dict[str, Any] = {"size": asdict(size)}
    with flyball_server(arguments.postgres) as server:
        phases, reach = _load_flyball(server, size)
    zeus: list[Phase] = []
    if not arguments.no_zeus:
        with zeus_server() as server:
            zeus = _load_zeus(server, size)
    figures |= {
        "phases": [figures_of(phase) for phase in phases],
        "reach": reach,
        "zeus": [figures_of(phase) for phase in zeus],
    }
    head = (
        f"{size.num_jobs} job(s) of {size.ranks_per_job} ranks, {size.num_nodes} nodes,"
        f" {size.num_ranks + size.num_nodes} connections"
    )
    text = f"{head}\n\n{phases_text(phases, reach, zeus)}"
    return Report(figures=figures, text=text, limits=limits_on(reach))


# ---------------------------------------------------------------------- Flyball


def _load_flyball(server: Server, size: Size) -> tuple[list[Phase], dict[str, Any]]:
    job_ids = [f"load-{number}" for number in range(size.num_jobs)]
    with httpx.Client(base_url=server.url, timeout=60.0, trust_env=False) as http:
        for job_id in job_ids:
            _put_job(http, job_id, size)
        with _crowd(server, size, job_ids) as crowd:
            phases = _ordinary_phases(crowd, size)
            crowd.ask("hold", after_version=1, step=5)
            phases.append(
                crowd.phase(
                    "post a step",
                    size.num_ranks * size.num_steps,
                    "call",
                    what="posts",
                    first_step=0,
                    num_steps=size.num_steps,
                )
            )
            paced, period_s = _post_paced(crowd, server, size)
            phases.append(paced)
            # Before the minutes: a call that waits for a plan ends after one of them.
            reach = _new_plan(crowd, http, job_ids)
            phases += _minutes(crowd, size)
            reach |= {"paced_p99_s": paced.p99_ms / 1e3, "period_s": period_s}
            posted = size.num_ranks * size.num_steps + paced.num_requests
            posted += size.num_ranks * size.num_minutes * STEPS_A_MINUTE
            reach["num_lost"] = posted - _num_stored(http, job_ids)
            reach |= _growth(phases, size)
            reach["num_ranks_without"] = size.num_ranks - reach["num_ranks"]
    return phases, reach


def _ordinary_phases(crowd: Crowd, size: Size) -> list[Phase]:
    ranks = size.num_ranks
    return [
        crowd.phase("register, each rank", ranks, "call", what="register"),
        crowd.phase("first plan", ranks, "call", what="first_plans"),
        crowd.phase("acknowledge", ranks, "call", what="acknowledgements", version=1, step=0),
    ]


def _post_paced(crowd: Crowd, server: Server, size: Size) -> tuple[Phase, float]:
    """Posts at the period that the planner's answers ask for, and the longest such period, s."""
    show_progress("post at the planner's period")
    cpu_s = server.cpu_s()
    answers = crowd.ask("post_paced", first_step=size.num_steps, duration_s=size.paced_s)
    bursts = [answer["burst"] for answer in answers]
    phase = crowd.phase_of("post at the planner's period", None, bursts, cpu_s)
    return phase, max(answer["periods_s"][1] for answer in answers)


def _minutes(crowd: Crowd, size: Size) -> list[Phase]:
    """Posts of each minute's steps, six in a post."""
    first_step = FIRST_ACCELERATED_STEP
    phases: list[Phase] = []
    for minute in range(1, size.num_minutes + 1):
        phases.append(
            crowd.phase(
                f"minute {minute}",
                size.num_ranks * STEPS_A_MINUTE,
                "call",
                what="minute_posts",
                first_step=first_step,
                num_steps=STEPS_A_MINUTE,
            )
        )
        first_step += STEPS_A_MINUTE
    return phases


def _growth(phases: Sequence[Phase], size: Size) -> dict[str, Any]:
    """Return the growth of database and memory in the minutes; None where there were too few.

    Memory: from a third of the minutes to the last. A planner's caches have filled by then.
    """
    minutes = [phase for phase in phases if phase.name.startswith("minute ")]
    grown: dict[str, Any] = {"bytes_a_measurement": None, "memory_growth": None}
    num_measured = size.num_ranks * STEPS_A_MINUTE * (len(minutes) - 1)
    if num_measured >= FEWEST_OF_GROWTH:
        first, last = minutes[0], minutes[-1]
        if first.database_bytes is None or last.database_bytes is None:
            return grown
        grown["bytes_a_measurement"] = (last.database_bytes - first.database_bytes) / num_measured
        early = minutes[len(minutes) // 3]
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
    made_s = _made_s(http, job_ids[-1])
    return {
        "asked_to_named_s": max(answer["named_s"] for answer in answers) - asked_s,
        "fetched_s": max(answer["fetched_s"] for answer in answers) - made_s,
        "named_s": max(answer["named_s"] for answer in answers) - made_s,
        "num_ranks": sum(answer["num_ranks"] for answer in answers),
    }


def _made_s(http: httpx.Client, job_id: str) -> float:
    """Return when the job's second version was made, monotonic, s."""
    plan = http.get(routes.fill(routes.PLAN, job_id=job_id, version=2)).raise_for_status().json()
    age_s = time.time() - datetime.fromisoformat(plan["created_at"]).timestamp()
    return time.monotonic() - age_s


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


def _load_zeus(server: Server, size: Size) -> list[Phase]:
    """Return what Zeus's server has too: registering ranks, and one report of each."""
    job_ids: list[str] = []
    with httpx.Client(base_url=server.url, timeout=60.0, trust_env=False) as http:
        for number in range(size.num_jobs):
            info = {
                "pp_degree": size.num_stages,
                "dp_degree": size.ranks_per_stage,
                "tp_degree": 1,
                "world_size": size.ranks_per_job,
                "job_metadata": f"load-{number}",
            }
            job_ids.append(http.post("/register_job", json=info).raise_for_status().json())
    with _crowd(server, size, job_ids) as crowd:
        return [
            crowd.phase("register, each rank", size.num_ranks, "call", what="zeus_register"),
            crowd.phase("post a step", size.num_ranks, "call", what="zeus_report"),
        ]


# ---------------------------------------------------------------------- all


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
    pipes: list[Connection] = []
    processes = []
    try:
        for number in range(size.num_generators):
            ours, theirs = context.Pipe()
            share = nodes[number :: size.num_generators]
            process = context.Process(
                target=generate, args=(theirs, server.host, server.port, share), daemon=True
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


def _size(arguments: argparse.Namespace) -> Size:
    if arguments.quick:
        return Size(
            num_jobs=arguments.jobs,
            num_stages=4,
            ranks_per_stage=8,
            num_microbatches=4,
            num_steps=1,
            paced_s=2.0,
            num_generators=1,
            num_minutes=arguments.minutes,
        )
    if 4096 % (64 * arguments.jobs):
        raise BenchmarkError("--jobs must divide 64")
    return Size(
        num_jobs=arguments.jobs,
        num_stages=64,
        ranks_per_stage=64 // arguments.jobs,
        num_microbatches=64,
        num_steps=arguments.steps,
        paced_s=40.0,
        num_generators=2,
        num_minutes=arguments.minutes,
    )


def _share(ordered: Sequence[float], share: float) -> float:
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(prog="load.py", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="32 ranks, to see that it runs")
    parser.add_argument("--jobs", type=int, default=1, help="share the ranks out among so many")
    parser.add_argument("--steps", type=int, default=1, help="posted as fast as it goes")
    parser.add_argument(
        "--minutes",
        type=int,
        default=0,
        help="then post the measurements of so many minutes of training as fast as it goes",
    )
    parser.add_argument("--postgres", metavar="URL", help="an empty database; default: SQLite")
    parser.add_argument("--no-zeus", action="store_true", help="Flyball's planner alone")
    return run_benchmark(parser, measure)


if __name__ == "__main__":
    raise SystemExit(main())
