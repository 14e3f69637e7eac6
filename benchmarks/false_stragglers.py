"""Stragglers that are none, and slow ranks that are found: the detector alone, simulated.

Equal ranks of one stage whose steps differ in their work, and ranks that become slow in jobs that
are quiet and in jobs that are not. The detector looks after every step, at the newest 40 of each
rank, as it does in the planner.
"""

from __future__ import annotations

import argparse
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from benchmark_report import Report, at_most, run_benchmark, show_progress, table_of
from flyball_server.jobs.findings.detector import RULES, Slowdowns, find_slowdowns
from flyball_server.jobs.findings.step_ratios import KindTimes, RankStep
from flyball_server.jobs.records import RankRecord

NUM_STEPS, PER_STEPS, SEED = 2_000, 10_000, 7
NUM_RANKS = (4, 16, 64)
# A version holds this many steps before its measurements may change it.
FIRST_LOOK = 10
SLOW_FROM, NUM_SLOW_STEPS, NUM_RUNS = 45, 60, 20

Draw = Callable[[random.Random], float]
"""Draws a step's work, relative to the profile's."""


def log_normal(scatter: float) -> Draw:
    """Log-normal work of mean 1."""
    return lambda rng: math.exp(rng.gauss(-scatter * scatter / 2, scatter))


SCATTERS: dict[str, Draw] = {
    "log-normal, 5 %": log_normal(0.05),
    "log-normal, 20 %": log_normal(0.2),
    "log-normal, 50 %": log_normal(0.5),
    "uniform, 50 to 150 %": lambda rng: rng.uniform(0.5, 1.5),
    "gamma, 50 %": lambda rng: rng.gammavariate(4, 0.25),
    "each fifth twice as long": lambda rng: 2.0 if rng.random() < 0.2 else 1.0,
}
# Scatter of steps, slowdown of one rank, number of ranks, and the steps that it may take.
SLOW_RANKS = (
    (0.002, 1.05, 4, 10),
    (0.005, 1.05, 4, 10),
    (0.01, 1.05, 4, 10),
    (0.05, 1.2, 16, 10),
    (0.2, 1.6, 16, None),
    (0.2, 1.3, 16, None),
)


@dataclass(frozen=True, kw_only=True)
class FalseAlarms:
    """Equal ranks of one kind of scatter.

    Attributes:
        num_false: steps after which some rank was held for a straggler, in all `num_steps`.
    """

    num_ranks: int
    scatter: str
    num_steps: int
    num_false: int


@dataclass(frozen=True, kw_only=True)
class SlowRank:
    """One rank of several that becomes slow.

    Attributes:
        num_found: number of runs, of `num_runs`, in which it was found within the steps watched.
        steps_until_found: median number of slow steps until then; None: in most runs never.
        most_steps: limit of the same.
    """

    num_ranks: int
    scatter: float
    slowdown: float
    num_runs: int
    num_found: int
    steps_until_found: float | None
    most_steps: int | None


class _Watched:
    """A stage's data-parallel ranks, and what is found after each step."""

    def __init__(self, num_ranks: int) -> None:
        self._ranks = [_rank(number) for number in range(num_ranks)]
        self._steps = [deque[RankStep](maxlen=RULES.num_drift_steps) for _ in self._ranks]
        self._found = Slowdowns()
        self._step = 0

    def step(self, factors: list[float]) -> set[int]:
        """Return the stragglers after one more step of these ratios to the profile."""
        for rank, factor in enumerate(factors):
            times = KindTimes(measured_s=factor, profiled_s=1.0, variance_s2=0.0)
            step = RankStep(rank=rank, step=self._step, by_kind={"forward": times})
            self._steps[rank].append(step)
        self._step += 1
        if self._step < FIRST_LOOK:
            return set()
        before = self._found.drifts
        observed = [step for of_rank in self._steps for step in of_rank]
        self._found = find_slowdowns(observed, self._ranks, self._found, now_unix_s=0.0)
        if self._found.drifts != before:  # planned again, and looked at from the new version on
            for of_rank in self._steps:
                of_rank.clear()
        return {slowed.rank for slowed in self._found.stragglers}


def _rank(number: int) -> RankRecord:
    return RankRecord(
        job_id="job",
        rank=number,
        stage=0,
        dp_rank=number,
        host="host",
        gpu_name="",
        gpu_uuid="",
        emulated=True,
        client_version="",
    )


def measure(arguments: argparse.Namespace) -> Report:
    """Run all and return their figures."""
    alarms = [
        _false_alarms(num_ranks, name, arguments.steps)
        for num_ranks in NUM_RANKS
        for name in SCATTERS
    ]
    found = [_slow_rank(*case) for case in SLOW_RANKS]
    alarm_columns = {
        "equal ranks": "{num_ranks}",
        "work of a step": "{scatter}",
        "steps": "{num_steps}",
        "steps with a straggler": "{num_false}",
    }
    found_columns = {
        "slow by": "{slowdown:.2f}",
        "ranks": "{num_ranks}",
        "scatter": "{scatter:.1%}",
        "found, of runs": "{num_found}/{num_runs}",
        "after steps, median": "{steps_until_found:.0f}",
    }
    num_false = sum(each.num_false for each in alarms)
    per_steps = num_false * PER_STEPS / sum(each.num_steps for each in alarms)
    limits = [at_most(f"false stragglers in {PER_STEPS} steps", per_steps, 1)]
    limits += [
        at_most(
            f"steps until a rank slow by {each.slowdown:g} is found, at {each.scatter:.1%}",
            math.inf if each.steps_until_found is None else each.steps_until_found,
            each.most_steps,
        )
        for each in found
        if each.most_steps is not None
    ]
    return Report(
        figures={"false_alarms": alarms, "slow_ranks": found},
        text=f"simulated\n\n{table_of(alarms, alarm_columns)}\n\n{table_of(found, found_columns)}",
        limits=limits,
    )


def _false_alarms(num_ranks: int, name: str, num_steps: int) -> FalseAlarms:
    show_progress(f"{num_ranks} equal ranks, {name}")
    rng, draw, watched = random.Random(SEED), SCATTERS[name], _Watched(num_ranks)
    num_false = sum(
        bool(watched.step([draw(rng) for _ in range(num_ranks)])) for _ in range(num_steps)
    )
    return FalseAlarms(num_ranks=num_ranks, scatter=name, num_steps=num_steps, num_false=num_false)


def _slow_rank(scatter: float, slowdown: float, num_ranks: int, most_steps: int | None) -> SlowRank:
    show_progress(f"a rank slow by {slowdown:g} at {scatter:.1%}")
    draw = log_normal(scatter)
    until_found: list[float] = []
    for run in range(NUM_RUNS):
        rng, watched = random.Random(SEED + run), _Watched(num_ranks)
        after = math.inf
        for step in range(SLOW_FROM + NUM_SLOW_STEPS):
            factors = [draw(rng) for _ in range(num_ranks)]
            factors[0] *= slowdown if step >= SLOW_FROM else 1.0
            if 0 in watched.step(factors):
                after = step + 1 - SLOW_FROM
                break
        until_found.append(after)
    middle = median(until_found)
    return SlowRank(
        num_ranks=num_ranks,
        scatter=scatter,
        slowdown=slowdown,
        num_runs=NUM_RUNS,
        num_found=sum(map(math.isfinite, until_found)),
        steps_until_found=middle if math.isfinite(middle) else None,
        most_steps=most_steps,
    )


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument(
        "--steps", type=int, default=NUM_STEPS, help=f"of each kind (default {NUM_STEPS})"
    )
    run_benchmark(options, measure)
