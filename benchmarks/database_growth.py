"""Size of the measurements of one rank in a day, as posted and after pruning, in SQLite."""

from __future__ import annotations

import argparse
import sqlite3
import tempfile
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from benchmark_report import Report, figures_of, run_benchmark, table
from flyball_server.jobs.lifecycle.job_life import LifeTimes
from flyball_server.jobs.measurements.pruning import prune_some
from flyball_server.jobs.measurements.step_reading import place_of_post
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.step_records import StepRecord
from flyball_server.jobs.store.contract import JobStore
from flyball_server.jobs.store.sqlite.sqlite_store import SqliteJobStore
from flyball_wire.messages import JobSpec
from made_plans import MOMENT, store_job

STEP_S = 10.0
STEPS_A_DAY = 86_400 / STEP_S
_RETENTION_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class Growth:
    """Bytes of the database's pages in use.

    Attributes:
        a_measurement: bytes of one rank's step.
        a_pruned_step: bytes of one step of the whole job after pruning.
        constant: bytes of the newest pruned steps by stages and of the running totals, which do not
            grow with the training.
    """

    a_measurement: float
    a_pruned_step: float
    constant: float


def measure(arguments: argparse.Namespace) -> Report:
    """Fill a store, prune it, and compare."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "planner.sqlite"
        store = SqliteJobStore(file)
        store.open()
        growth = _measured(store, file, arguments)
        store.close()
    per_day = growth.a_measurement * STEPS_A_DAY / 1e6
    rows = [
        ["one rank's step", f"{growth.a_measurement:.0f} B"],
        ["one rank's day", f"{per_day:.2f} MB"],
        [f"a day of {arguments.ranks} ranks", f"{per_day * arguments.ranks:.1f} MB"],
        ["a pruned step of all ranks", f"{growth.a_pruned_step:.0f} B"],
        ["a pruned day of all ranks", f"{growth.a_pruned_step * STEPS_A_DAY / 1e6:.2f} MB"],
        ["steps by stages and totals, in all", f"{growth.constant / 1e6:.2f} MB"],
    ]
    return Report(
        figures=figures_of(growth),
        text=f"steps of {STEP_S:g} s\n\n{table(['what', 'size'], rows)}",
    )


def _measured(store: JobStore, file: Path, arguments: argparse.Namespace) -> Growth:
    _put_job(store, arguments)
    with store.writing("job") as writer:
        place_of_post(writer, writer.require_job("job"), ())
    empty = _bytes_in_use(file)
    for step in range(arguments.steps):
        with store.writing("job") as writer:
            writer.save_steps(
                tuple(_step(rank, step) for rank in range(arguments.ranks)), stored_at=MOMENT
            )
    full = _bytes_in_use(file)
    services = JobServices(
        store=store,
        notify_pollers=lambda _: None,
        now=lambda: MOMENT + timedelta(seconds=2 * _RETENTION_S),
        life=LifeTimes(step_retention_s=_RETENTION_S),
    )
    while prune_some(services, "job"):
        pass
    pruned = _bytes_in_use(file)
    with closing(sqlite3.connect(file)) as connection:
        for table in ("pruned_stages", "fold_parts"):
            connection.execute(f"DELETE FROM {table}")  # noqa: S608 - of this line's own
        connection.commit()
    totals = _bytes_in_use(file)
    return Growth(
        a_measurement=(full - empty) / (arguments.ranks * arguments.steps),
        a_pruned_step=(totals - empty) / arguments.steps,
        constant=pruned - totals,
    )


def _put_job(store: JobStore, arguments: argparse.Namespace) -> None:
    spec = JobSpec(
        num_stages=arguments.stages,
        num_microbatches=8,
        num_ranks=arguments.ranks,
        blocking_power_w=(70.0,),
    )
    with store.writing("job") as writer:
        store_job(writer, spec)


def _step(rank: int, step: int) -> StepRecord:
    """A measured step, every figure of every rank and step another."""
    time_s = 9.5 + (rank * 7 + step * 13) % 1009 * 1e-3
    return StepRecord(
        job_id="job",
        rank=rank,
        step=100_000 + step,
        plan_version=None,
        time_s=time_s,
        energy_j=412.5 * time_s,
        sm_clock_mhz=1300 + time_s,
    )


def _bytes_in_use(file: Path) -> int:
    """Return the size of the pages in use; SQLite keeps freed ones for what comes."""
    with closing(sqlite3.connect(file)) as connection:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        (free,) = connection.execute("PRAGMA freelist_count").fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    return int((pages - free) * size)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--ranks", type=int, default=1024)
    options.add_argument("--stages", type=int, default=16)
    options.add_argument("--steps", type=int, default=200)
    run_benchmark(options, measure)
