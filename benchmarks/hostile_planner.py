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
from benchmark_report import Limit, Report, at_most, run_benchmark, show_progress, table_of
from measured_process import BenchmarkError, run_process

MAX_HELD_MS, MAX_SHARE_PERCENT, MAX_STEP_RATIO = 5.0, 2.0, 1.1
MAX_GROWTH_MIB, MAX_CALLING_MIB = 64, 256
HONEST = "honest"
GIVE_UP_S = 120.0
START_GIVE_UP_S = 30.0

# Other work of the machine changes these.
NOISY = {"step_ms", "slow_step_ms", "step_ratio", "wait_ms"}

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
    return Report(figures={"planners": figures}, text=_text(figures), limits=list(_limits(figures)))


def _together(rounds: list[Figures]) -> Figures:
    """The median of each figure; the largest where one time is too often."""
    return {
        name: statistics.median(values) if name in NOISY else max(values)
        for name, values in ((name, [each[name] or 0 for each in rounds]) for name in rounds[0])
    }


def _limits(figures: dict[str, Figures]) -> Iterator[Limit]:
    limits = (
        (
            "the lock held by another thread, longest of all pauses, ms",
            "longest_held_ms",
            MAX_HELD_MS,
        ),
        ("other threads of the rank, share of a core, %", "share_percent", MAX_SHARE_PERCENT),
        ("median step over that without a planner", "step_ratio", MAX_STEP_RATIO),
        ("rank's memory beyond that without a planner, MiB", "growth_mib", MAX_GROWTH_MIB),
        ("memory of the helper process, MiB", "calling_mib", MAX_CALLING_MIB),
    )
    for name, each in figures.items():
        for text, figure, bound in limits:
            peer = (HONEST, figures[HONEST][figure])
            yield at_most(f"{name}: {text}", each[figure], bound, peer=peer)


def _text(figures: dict[str, Figures]) -> str:
    columns = {
        "planner": "{name}",
        "step, ms": "{step_ms:.2f}",
        "over none": "{step_ratio:.3f}",
        "threads, %": "{share_percent:.2f}",
        "held p99.9, ms": "{held_ms:.2f}",
        "longest": "{longest_held_ms:.2f}",
        "wait p99.9, ms": "{wait_ms:.2f}",
        "rank, MiB more": "{growth_mib:.0f}",
        "helper, MiB": "{calling_mib:.0f}",
    }
    return table_of([{"name": name, **each} for name, each in figures.items()], columns)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=3.0, help="of each of both series")
    options.add_argument(
        "--threads", action="store_true", help="the rank's own threads call, for comparison"
    )
    options.add_argument("--rounds", type=int, default=3, help="of all planners")
    run_benchmark(options, measure)
