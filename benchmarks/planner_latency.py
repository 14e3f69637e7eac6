"""Response times of the planner while it finds the frontier of a job of 64 x 256."""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx

from benchmark_report import (
    Distribution,
    Limit,
    Report,
    at_least,
    at_most,
    run_benchmark,
    show_progress,
    table_of,
)
from flyball_client.api.planner_client import PlannerClient
from flyball_profiles.examples import load_example_profile
from flyball_wire import routes
from flyball_wire.measurements import MeasurementBatch, StepMeasurement
from flyball_wire.plan_options import Effort, Policy
from made_profiles import tile_profile
from measured_process import BenchmarkError
from served_planner import put_emulated_job, served_planner

NUM_STAGES, NUM_MICROBATCHES, NUM_POINTS = 64, 256, 50
SMALL_STAGES, SMALL_MICROBATCHES = 2, 4
SEED = 20
POLL_S = 0.05
NUM_TARGETS = 6
PATIENCE_S, FRONTIER_PATIENCE_S = 300.0, 1800.0
MAX_P50_MS, MAX_P99_MS = 20.0, 250.0
LARGE, SMALL = "large", "small"


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Of one call, under one load.

    Attributes:
        processes: planning processes; 0: solving in the planner's own threads.
        load: `idle` or `frontier`.
        ms: from the request to its answer, calls one after the other on one connection; of a long
            poll, what is more than the time that it asked for.
    """

    processes: int
    load: str
    call: str
    ms: Distribution


def measure(arguments: argparse.Namespace) -> Report:
    """Both ways of solving, each idle and while a frontier is found."""
    figures: list[Latency] = []
    for processes in (arguments.processes, 0):
        figures += _of_planner(processes, arguments.seconds)
    return Report(
        figures={"latencies": figures, "ratios_to_idle": _ratios(figures)},
        text=_text(figures),
        limits=list(_limits(figures, arguments.processes)),
    )


def _of_planner(processes: int, seconds_s: float) -> Iterator[Latency]:
    with tempfile.TemporaryDirectory() as folder, _planner(Path(folder), processes) as http:
        show_progress(f"{processes} planning processes: the jobs")
        _put_jobs(str(http.base_url))
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
    ms = Distribution.of([1e3 * time_s for time_s in times_s])
    if ms is None:
        raise BenchmarkError(f"{call}: not called once")
    return Latency(processes=processes, load=load, call=call, ms=ms)


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


def _put_jobs(url: str) -> None:
    # The large job's plan itself is not what is measured.
    sizes = (
        (SMALL, SMALL_STAGES, SMALL_MICROBATCHES, Policy.FRONTIER),
        (LARGE, NUM_STAGES, NUM_MICROBATCHES, Policy.BASELINE),
    )
    with PlannerClient(url, timeout_s=PATIENCE_S) as client:
        for job_id, num_stages, num_microbatches, policy in sizes:
            put_emulated_job(
                client,
                job_id,
                tile_profile(load_example_profile(), num_stages, SEED),
                num_microbatches=num_microbatches,
                effort=Effort.LOW,
                policy=policy,
            )


def _path(route: str) -> str:
    return routes.fill(route, job_id=SMALL)


@contextmanager
def _planner(folder: Path, processes: int) -> Iterator[httpx.Client]:
    """A client of a `flyball serve`, until the block ends; what it solves ends too."""
    with (
        served_planner(folder, FLYBALL_PLANNING_PROCESSES=str(processes)) as planner,
        httpx.Client(base_url=planner.url, timeout=PATIENCE_S) as http,
    ):
        yield http


def _ratios(figures: list[Latency]) -> list[dict[str, float | str]]:
    """Each call's p50 and p99 while a frontier is found over those of the same planner idle."""
    idle = {(one.processes, one.call): one for one in figures if one.load == "idle"}
    return [
        {
            "processes": one.processes,
            "call": one.call,
            "p50": one.ms.median / idle[one.processes, one.call].ms.median,
            "p99": one.ms.p99 / idle[one.processes, one.call].ms.p99,
        }
        for one in figures
        if one.load != "idle"
    ]


def _limits(figures: list[Latency], processes: int) -> Iterator[Limit]:
    for figure in figures:
        if figure.load == "idle" or figure.processes != processes:
            continue
        yield at_least(f"{figure.call}: calls measured", figure.ms.num_samples, NUM_TARGETS)
        if not figure.call.startswith("PUT"):
            name = f"{figure.call} while a frontier is found"
            yield at_most(f"{name}: p50, ms", figure.ms.median, MAX_P50_MS)
            yield at_most(f"{name}: p99, ms", figure.ms.p99, MAX_P99_MS)


def _text(figures: list[Latency]) -> str:
    columns = {
        "call": "{call}",
        "planning processes": "{processes}",
        "load": "{load}",
        "calls": "{ms.num_samples}",
        "p50": "{ms.median:.1f}",
        "p99": "{ms.p99:.1f}",
        "longest": "{ms.longest:.1f}",
    }
    size = f"{NUM_STAGES}x{NUM_MICROBATCHES}"
    return (
        f"one caller; the frontier is of {NUM_POINTS} plans of {size}, effort low; times in ms\n\n"
        + table_of(figures, columns)
    )


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument(
        "--seconds", type=float, default=5.0, help="to measure each call for (default 5)"
    )
    options.add_argument(
        "--processes",
        type=int,
        default=2,
        help="planning processes, beside none at all (default 2)",
    )
    run_benchmark(options, measure)
