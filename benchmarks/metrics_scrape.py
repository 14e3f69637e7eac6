"""Cost of a response of `/metrics`, by the number of measurements in the planner's store."""

from __future__ import annotations

import argparse
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.exposition import generate_latest

from benchmark_report import Report, at_most, figures_of, run_benchmark, show_progress, table
from flyball_profiles.gpu_windows import load_gpu_window
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.contract import JobStore
from flyball_server.jobs.store.databases import make_job_store
from flyball_server.prometheus.job_families import JobsCollector
from flyball_server.prometheus.process_metrics import ProcessMetrics
from flyball_server.views.job_figures import SharedReading
from flyball_server.views.job_reading import BUDGET_S, JobReading
from flyball_wire.messages import JobSpec
from made_plans import made_plan, store_job

NUM_STAGES = 8
NEW_STEPS = 15
NUM_ANSWERS = 10
MAX_QUIET_S = 0.25
MAX_BUSY_S = 1.0
_INSERT = (
    "INSERT INTO steps (job_id, rank, step, plan_version, time_s, energy_j, num_unplanned,"
    " num_overruns, num_clock_misses, num_power_capped, num_thermally_capped,"
    " num_without_clocks, stored_at) VALUES (?, ?, ?, 1, 0.9, 100.0, 0, 0, 0, 0, 0, 0, unixepoch())"
)


@dataclass(frozen=True, kw_only=True)
class Scrapes:
    """Answers one after the other, in one process.

    Attributes:
        first_s: the answers until all steps are read, s.
        longest_first_s: the longest of these, s.
        quiet_s: the median of answers with nothing new, s.
        busy_s: of one with NEW_STEPS new steps of each job, s.
        num_bytes: of an answer.
        num_rows: that the store has, of single ranks' steps.
    """

    first_s: float
    longest_first_s: float
    quiet_s: float
    busy_s: float
    num_bytes: int
    num_rows: int


def measure(arguments: argparse.Namespace) -> Report:
    """Fill a store, ask, let steps come, ask again."""
    with tempfile.TemporaryDirectory() as folder:
        scrapes = _measure(Path(folder) / "planner.sqlite", arguments)
    rows = [
        ("first answers together", f"{scrapes.first_s * 1e3:.0f}"),
        ("the longest of them", f"{scrapes.longest_first_s * 1e3:.0f}"),
        ("nothing new, median", f"{scrapes.quiet_s * 1e3:.0f}"),
        (f"{NEW_STEPS} new steps of each job", f"{scrapes.busy_s * 1e3:.0f}"),
    ]
    what = f"{arguments.jobs} jobs, {arguments.ranks} ranks, {arguments.steps} steps"
    return Report(
        figures=figures_of(scrapes),
        text=f"{table([what, 'ms'], rows)}\n{scrapes.num_rows} rows, {scrapes.num_bytes} bytes",
        limits=(
            at_most("answer with nothing new, s", scrapes.quiet_s, MAX_QUIET_S),
            at_most("answer with new steps, s", scrapes.busy_s, MAX_BUSY_S),
            at_most("longest first answer, s", scrapes.longest_first_s, BUDGET_S + MAX_BUSY_S),
        ),
    )


def _measure(file: Path, arguments: argparse.Namespace) -> Scrapes:
    jobs = [f"job-{number}" for number in range(arguments.jobs)]
    ranks = range(arguments.ranks)
    store = make_job_store(f"sqlite:///{file}")
    store.open()
    show_progress("filling the store")
    for job_id in jobs:
        _add_job(store, job_id, len(ranks))
    _add_steps(file, jobs, ranks, range(arguments.steps))
    services = JobServices(store=store, notify_pollers=lambda _: None, gpu_window=load_gpu_window)
    metrics = ProcessMetrics()
    reading = SharedReading(JobReading(services, max_labelled=len(jobs)))
    metrics.registry.register(JobsCollector(reading))
    first_s = list(_until_caught_up(metrics))
    quiet_s = statistics.median(_answer(metrics)[0] for _ in range(NUM_ANSWERS))
    _add_steps(file, jobs, ranks, range(arguments.steps, arguments.steps + NEW_STEPS))
    busy_s, answer = _answer(metrics)
    store.close()
    return Scrapes(
        first_s=sum(first_s),
        longest_first_s=max(first_s),
        quiet_s=quiet_s,
        busy_s=busy_s,
        num_bytes=len(answer),
        num_rows=len(jobs) * len(ranks) * (arguments.steps + NEW_STEPS),
    )


def _until_caught_up(metrics: ProcessMetrics) -> Iterator[float]:
    while True:
        seconds, answer = _answer(metrics)
        yield seconds
        if b"\nflyball_jobs_behind 0.0\n" in answer:
            return


def _answer(metrics: ProcessMetrics) -> tuple[float, bytes]:
    started_s = time.perf_counter()
    answer = generate_latest(metrics.registry)
    return time.perf_counter() - started_s, answer


def _add_job(store: JobStore, job_id: str, num_ranks: int) -> None:
    spec = JobSpec(
        num_stages=NUM_STAGES,
        num_microbatches=NUM_STAGES,
        num_ranks=num_ranks,
        blocking_power_w=(70.0,),
        emulated=True,
    )
    plan = made_plan(
        NUM_STAGES, NUM_STAGES, iteration_time_s=0.9, energy_j=6000.0, baseline_energy_j=6400.0
    )
    with store.writing(job_id) as writer:
        store_job(writer, spec, [plan], job_id=job_id)
        writer.name_first_step(job_id, 1, 0)


def _add_steps(file: Path, jobs: list[str], ranks: range, steps: range) -> None:
    """Straight into the table: through the API it would take many times as long."""
    connection = sqlite3.connect(file)
    with connection:
        for job_id in jobs:
            connection.executemany(
                _INSERT, ((job_id, rank, step) for step in steps for rank in ranks)
            )
    connection.close()


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--jobs", type=int, default=20, help="jobs in the store (default 20)")
    options.add_argument("--ranks", type=int, default=64, help="ranks of each (default 64)")
    options.add_argument("--steps", type=int, default=2000, help="steps of each (default 2000)")
    run_benchmark(options, measure)
