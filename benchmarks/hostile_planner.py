"""Training with a hostile planner, beside the same training with an honest one and with none.

Each training is run twice with the planner, before and after without one.
Each planner is a process, and each rank one: a session with its hooks around short computations.
Steps are timed as Python runs them. Then the same steps are run while no thread is asked to give
up Python's lock (`sys.setswitchinterval`), so that a pause in which another thread has it is as
long as that thread's piece of work. Of each pause the processor time of the rank's other threads
is taken, which other work of the machine does not change, and the time on the wall.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import hostile_training
from benchmark_report import Limit, Report, at_most, run_benchmark, show_progress, table
from measured_process import BenchmarkError, run_process

MAX_HELD_S = 0.005
MAX_SHARE = 0.02
MAX_STEP_RATIO = 1.1
MAX_RANK_GROWTH_BYTES = 64 * 2**20
MAX_CALLING_BYTES = 256 * 2**20
HONEST = "honest"
GIVE_UP_S = 120.0
START_GIVE_UP_S = 30.0

# Other work of the machine changes these.
NOISY = {"step_s", "slow_step_s", "step_ratio", "wait_s"}

Figures = dict[str, Any]


@contextmanager
def served(name: str) -> Iterator[str]:
    """The address of a planner in a process."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(name, sender), daemon=True)
    process.start()
    try:
        if not receiver.poll(START_GIVE_UP_S):
            raise BenchmarkError(f"the planner {name!r} did not start")
        yield str(receiver.recv())
    finally:
        process.kill()
        process.join()


def _serve(name: str, sender: Connection) -> None:
    hostile_training.serve(name, sender.send)


def measured(name: str, arguments: argparse.Namespace) -> Figures:
    """Figures of a rank that trains with this planner."""
    show_progress(f"planner: {name}")
    script = str(Path(hostile_training.__file__))
    with served(name) as url:
        command = [sys.executable, script, url, str(arguments.seconds)]
        run = run_process(command + ["threads"] * arguments.threads, give_up_s=GIVE_UP_S)
    return dict(json.loads(run.stdout))


def measure(arguments: argparse.Namespace) -> Report:
    """Run each planner, as often as there are rounds."""
    names = tuple(hostile_training.PLANNERS)
    rounds = [{name: measured(name, arguments) for name in names} for _ in range(arguments.rounds)]
    figures = {name: _together([each[name] for each in rounds]) for name in names}
    return Report(
        figures={"planners": figures}, text=_text(figures), limits=tuple(_limits(figures))
    )


def _together(rounds: list[Figures]) -> Figures:
    """The median of each figure; the largest where one time is too often."""
    return {
        name: statistics.median(values) if name in NOISY else max(values)
        for name, values in ((name, [each[name] or 0 for each in rounds]) for name in rounds[0])
    }


def _limits(figures: dict[str, Figures]) -> Iterator[Limit]:
    honest = figures[HONEST]
    for name, each in figures.items():
        yield at_most(
            f"{name}: the lock held by another thread, the longest of all pauses, ms",
            1e3 * each["longest_held_s"],
            1e3 * MAX_HELD_S,
            peer=(HONEST, 1e3 * honest["longest_held_s"]),
        )
        yield at_most(
            f"{name}: other threads of the rank, share of a core, %",
            1e2 * each["share"],
            1e2 * MAX_SHARE,
            peer=(HONEST, 1e2 * honest["share"]),
        )
        yield at_most(
            f"{name}: median step over that without a planner",
            each["step_ratio"],
            MAX_STEP_RATIO,
            peer=(HONEST, honest["step_ratio"]),
        )
        yield at_most(
            f"{name}: rank's memory beyond that without a planner, MiB",
            each["growth_bytes"] / 2**20,
            MAX_RANK_GROWTH_BYTES / 2**20,
            peer=(HONEST, honest["growth_bytes"] / 2**20),
        )
        yield at_most(
            f"{name}: memory of the process that calls, MiB",
            each["calling_bytes"] / 2**20,
            MAX_CALLING_BYTES / 2**20,
            peer=(HONEST, honest["calling_bytes"] / 2**20),
        )


def _text(figures: dict[str, Figures]) -> str:
    rows = [
        (
            name,
            f"{1e3 * each['step_s']:.2f}",
            f"{each['step_ratio']:.3f}",
            f"{1e2 * each['share']:.2f}",
            f"{1e3 * each['held_s']:.2f}",
            f"{1e3 * each['longest_held_s']:.2f}",
            f"{1e3 * each['wait_s']:.2f}",
            f"{each['growth_bytes'] / 2**20:.0f}",
            f"{each['calling_bytes'] / 2**20:.0f}",
        )
        for name, each in figures.items()
    ]
    header = (
        "planner",
        "step, ms",
        "over none",
        "threads, %",
        "held p99.9, ms",
        "longest",
        "wait p99.9, ms",
        "rank, MiB more",
        "calls, MiB",
    )
    return table(header, rows)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="hostile_planner.py", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each of both series")
    parser.add_argument(
        "--threads", action="store_true", help="the rank's own threads call, for comparison"
    )
    parser.add_argument("--rounds", type=int, default=3, help="of all planners")
    return run_benchmark(parser, measure)


if __name__ == "__main__":
    sys.exit(main())
