"""Response times of the planner while it finds the frontier of a job of 64 x 256.

Run `python benchmarks/planner_latency.py [--json] [--seconds S]`; README.md beside this file says
how to read it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx

import flyball_profiles
from benchmark_report import Limit, Report, at_least, at_most, run_benchmark, show_progress, table
from flyball_profiles.stage_profile_csv import read_stage_profile, write_stage_profile
from flyball_wire import routes
from flyball_wire.messages import (
    JobRegistration,
    MeasurementBatch,
    RankRegistration,
    StepMeasurement,
)
from flyball_wire.plan_options import Effort, Policy
from made_profiles import tile_profile
from measured_process import BenchmarkError
from served_planner import served_planner

PROFILE = "gpt3-175b-a100-sxm-fitted.csv"
NUM_STAGES, NUM_MICROBATCHES, NUM_POINTS = 64, 256, 50
SMALL_STAGES, SMALL_MICROBATCHES = 2, 4
SEED = 20
BLOCKING_POWER_W = 83.64
POLL_S = 0.05
NUM_TARGETS = 6
START_PATIENCE_S, PATIENCE_S, FRONTIER_PATIENCE_S = 60.0, 300.0, 1800.0
MAX_P50_S, MAX_P99_S = 0.02, 0.25
LARGE, SMALL = "large", "small"


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Of one call, under one load.

    Attributes:
        processes: planning processes; 0: solving in the planner's own threads.
        load: `idle` or `frontier`.
        num_calls: that were measured, one after the other on one connection.
        p50_s, p99_s, longest_s: from the request to its answer; of a long poll, what is more than
            the time that it asked for.
    """

    processes: int
    load: str
    call: str
    num_calls: int
    p50_s: float
    p99_s: float
    longest_s: float


def measure(arguments: argparse.Namespace) -> Report:
    """Both ways of solving, each idle and while a frontier is found."""
    figures: list[Latency] = []
    for processes in (arguments.processes, 0):
        figures += _of_planner(processes, arguments.seconds)
    ratios = _ratios(figures)
    return Report(
        figures={
            "latencies": [asdict(figure) for figure in figures],
            "ratios_to_idle": ratios,
        },
        text=_text(figures),
        limits=tuple(_limits(figures, arguments.processes)),
    )


def _of_planner(processes: int, seconds_s: float) -> Iterator[Latency]:
    with tempfile.TemporaryDirectory() as folder, _planner(Path(folder), processes) as http:
        show_progress(f"{processes} planning processes: the jobs")
        _put_jobs(http)
        for load in ("idle", "frontier"):
            is_over = threading.Event()
            solving = threading.Thread(target=_find_frontier, args=(http, is_over), daemon=True)
            if load == "frontier":
                solving.start()
                time.sleep(1.0)
            show_progress(f"{processes} planning processes: {load}")
            yield from _latencies(http, processes, load, seconds_s, is_over)
            if is_over.is_set():
                raise BenchmarkError(
                    "the frontier was found before all was measured; ask for fewer --seconds"
                )


def _latencies(
    http: httpx.Client, processes: int, load: str, seconds_s: float, is_over: threading.Event
) -> Iterator[Latency]:
    steps = iter(range(10**9))
    calls: dict[str, Callable[[], float]] = {
        "GET job": lambda: _timed(lambda: http.get(_path(routes.JOB))),
        "POST steps": lambda: _timed(lambda: _post_steps(http, next(steps))),
        "long poll, late": lambda: _timed(lambda: _poll(http)) - POLL_S,
    }
    for call, timed in calls.items():
        times_s: list[float] = []
        end_s = time.perf_counter() + seconds_s
        while time.perf_counter() < end_s and not is_over.is_set():
            times_s.append(timed())
        yield _latency(processes, load, call, times_s)
    times_s = [_new_plan_s(http, number) for number in range(NUM_TARGETS)]
    yield _latency(processes, load, "PUT target to plan", times_s)


def _latency(processes: int, load: str, call: str, times_s: list[float]) -> Latency:
    times_s = sorted(times_s)
    return Latency(
        processes=processes,
        load=load,
        call=call,
        num_calls=len(times_s),
        p50_s=statistics.median(times_s),
        p99_s=times_s[min(len(times_s) - 1, int(0.99 * len(times_s)))],
        longest_s=times_s[-1],
    )


def _timed(call: Callable[[], httpx.Response]) -> float:
    began_s = time.perf_counter()
    call().raise_for_status()
    return time.perf_counter() - began_s


def _poll(http: httpx.Client) -> httpx.Response:
    path = routes.fill(routes.RANK_PLAN, job_id=SMALL, rank=0)
    return http.get(path, params={"after_version": 10**6, "wait_s": POLL_S})


def _post_steps(http: httpx.Client, step: int) -> httpx.Response:
    measured = StepMeasurement(step=step, plan_version=None, time_s=1.0, energy_j=100.0)
    batch = MeasurementBatch(steps=(measured,))
    path = routes.fill(routes.RANK_MEASUREMENTS, job_id=SMALL, rank=0)
    return http.post(path, json=asdict(batch))


def _new_plan_s(http: httpx.Client, number: int) -> float:
    """From a new target of the small job until a rank that polls has the plan, s."""
    newest = int(http.get(_path(routes.JOB)).raise_for_status().json()["newest_version"])
    arrived: list[float] = []

    def poll() -> None:
        path = routes.fill(routes.RANK_PLAN, job_id=SMALL, rank=0)
        answer = http.get(path, params={"after_version": newest, "wait_s": 60}).raise_for_status()
        if answer.status_code == httpx.codes.OK:
            arrived.append(time.perf_counter())

    waiting = threading.Thread(target=poll)
    waiting.start()
    time.sleep(POLL_S)
    began_s = time.perf_counter()
    target = "fastest" if number % 2 else "slowdown:0.05"
    http.put(_path(routes.TARGET), json={"target": target}).raise_for_status()
    waiting.join(PATIENCE_S)
    if not arrived:
        raise BenchmarkError("a new plan has not arrived")
    return arrived[0] - began_s


def _find_frontier(http: httpx.Client, is_over: threading.Event) -> None:
    try:
        http.get(
            routes.fill(routes.FRONTIER, job_id=LARGE),
            params={"points": NUM_POINTS},
            timeout=FRONTIER_PATIENCE_S,
        )
    except httpx.TransportError:
        return  # the planner was ended
    is_over.set()


def _put_jobs(http: httpx.Client) -> None:
    folder = Path(flyball_profiles.__file__).parent / "stages"
    profile = read_stage_profile(folder / PROFILE)
    for job_id, num_stages, num_microbatches in (
        (SMALL, SMALL_STAGES, SMALL_MICROBATCHES),
        (LARGE, NUM_STAGES, NUM_MICROBATCHES),
    ):
        registration = JobRegistration(
            num_stages=num_stages,
            num_microbatches=num_microbatches,
            blocking_power_w=(BLOCKING_POWER_W,),
            effort=Effort.LOW,
            # The large job's plan itself is not what is measured.
            policy=Policy.FRONTIER if job_id == SMALL else Policy.BASELINE,
            emulated=True,
        )
        path = routes.fill(routes.JOB, job_id=job_id)
        http.put(path, json=asdict(registration)).raise_for_status()
        csv = write_stage_profile(tile_profile(profile, num_stages, SEED))
        path = routes.fill(routes.PROFILE, job_id=job_id)
        http.put(path, content=csv, headers={"Content-Type": "text/csv"}).raise_for_status()
    rank = RankRegistration(
        stage=0,
        host="node",
        gpu_name="emulated",
        gpu_uuid="EMULATED-0",
        emulated=True,
        client_version="benchmark",
    )
    path = routes.fill(routes.RANK, job_id=SMALL, rank=0)
    http.put(path, json=asdict(rank)).raise_for_status()


def _path(route: str) -> str:
    return routes.fill(route, job_id=SMALL)


@contextmanager
def _planner(folder: Path, processes: int) -> Iterator[httpx.Client]:
    """A client of a `flyball serve`, until the block ends; what it solves ends too."""
    processes_too = {"FLYBALL_PLANNING_PROCESSES": str(processes)}
    with (
        served_planner(folder, **processes_too) as address,
        httpx.Client(base_url=address, timeout=PATIENCE_S) as http,
    ):
        yield http


def _ratios(figures: list[Latency]) -> list[dict[str, float | str]]:
    """Each call's p50 and p99 while a frontier is found over those of the same planner idle."""
    idle = {(one.processes, one.call): one for one in figures if one.load == "idle"}
    return [
        {
            "processes": one.processes,
            "call": one.call,
            "p50": one.p50_s / idle[one.processes, one.call].p50_s,
            "p99": one.p99_s / idle[one.processes, one.call].p99_s,
        }
        for one in figures
        if one.load != "idle"
    ]


def _limits(figures: list[Latency], processes: int) -> Iterator[Limit]:
    for figure in figures:
        if figure.load == "idle" or figure.processes != processes:
            continue
        yield at_least(f"{figure.call}: calls measured", figure.num_calls, NUM_TARGETS)
        if not figure.call.startswith("PUT"):
            yield at_most(
                f"{figure.call} while a frontier is found: p50, s", figure.p50_s, MAX_P50_S
            )
            yield at_most(
                f"{figure.call} while a frontier is found: p99, s", figure.p99_s, MAX_P99_S
            )


def _text(figures: list[Latency]) -> str:
    size = f"{NUM_STAGES}x{NUM_MICROBATCHES}"
    return (
        f"one caller; the frontier is of {NUM_POINTS} plans of {size}, effort low; times in ms\n\n"
        + table(
            ["call", "planning processes", "load", "calls", "p50", "p99", "longest"],
            [
                [
                    figure.call,
                    str(figure.processes),
                    figure.load,
                    str(figure.num_calls),
                    *(
                        f"{1000 * value_s:.1f}"
                        for value_s in (figure.p50_s, figure.p99_s, figure.longest_s)
                    ),
                ]
                for figure in figures
            ],
        )
    )


def main() -> int:
    """Print the figures; 0 where all are within their limits, else 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="to measure each call for (default 5)"
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=2,
        help="planning processes, beside none at all (default 2)",
    )
    return run_benchmark(parser, measure)


if __name__ == "__main__":
    sys.exit(main())
