"""What noise in instructions does to plans, with and without a reserve. Simulated, not measured.

Every instruction's time is drawn anew in each iteration, about what the profile says, and all
plans get the same draws. Beside Flyball's plans those of EnvPipe's policy.

Run `python benchmarks/noise_reserve.py [--noise 0.02] [--draws 400] [--json]`; README.md beside
this file says how to read it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from benchmark_report import Report, at_least, at_most, run_benchmark, show_progress, table
from flyball_profiles.examples import load_example_profile
from flyball_server.planning.documents.recorded_plan import model_of_plan
from flyball_server.planning.model.dag import DependencyDag
from flyball_server.planning.planner import PlanRequest, make_plan
from flyball_wire.plan_options import PlanOptions, Policy

BLOCKING_POWER_W = 83.64
NUM_MICROBATCHES = (12, 24, 48)
RESERVES = (0.0, 0.005, 0.01, 0.02, 0.03)
SEED = 20231

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class NoisyPlan:
    """A plan under noise.

    Attributes:
        name: `envelope`, or `frontier` with its reserve.
        saving_percent: of energy without noise, predicted.
        slower_percent: of the mean iteration under noise against that of the highest clocks under
            the same noise, simulated.
        error_percent: its standard error.
    """

    num_microbatches: int
    name: str
    saving_percent: float
    slower_percent: float
    error_percent: float


def plans_under_noise(num_microbatches: int, noise: float, num_draws: int) -> tuple[NoisyPlan, ...]:
    """EnvPipe's plan and the frontier's, by rising reserve, on the shipped example profile."""
    profile = load_example_profile()
    asked = [("envelope", Policy.ENVELOPE, 0.0)]
    asked += [(f"frontier, reserve {100 * one:g} %", Policy.FRONTIER, one) for one in RESERVES]
    draws: FloatArray | None = None
    results = []
    for name, policy, reserve in asked:
        plan = make_plan(
            PlanRequest(
                profile=profile,
                num_microbatches=num_microbatches,
                options=PlanOptions(
                    blocking_power_w=(BLOCKING_POWER_W,), policy=policy, reserve=reserve
                ),
            )
        ).plan
        model, assignment = model_of_plan(profile, plan)
        if draws is None:
            shape = (model.dag.num_nodes, num_draws)
            draws = np.random.default_rng(SEED).normal(1.0, noise, shape).clip(min=0.01)
        times_s = iteration_times_s(model.dag, model.durations_s(assignment), draws)
        highest_s = iteration_times_s(model.dag, model.durations_s(model.baseline()), draws)
        slower = times_s / highest_s.mean() - 1
        results.append(
            NoisyPlan(
                num_microbatches=num_microbatches,
                name=name,
                saving_percent=plan.saving_percent,
                slower_percent=100 * float(slower.mean()),
                error_percent=100
                * float((times_s - highest_s).std())
                / float(highest_s.mean())
                / num_draws**0.5,
            )
        )
    return tuple(results)


def iteration_times_s(
    dag: DependencyDag, durations_s: Sequence[float], draws: FloatArray
) -> FloatArray:
    """Of each draw, s; shape (num_draws,).

    Args:
        dag: of the pipeline.
        durations_s: as profiled, per node.
        draws: factors of them; shape (num_nodes, num_draws).
    """
    finish_s = np.zeros((dag.num_nodes, draws.shape[1]))
    for node in dag.topological_order:
        for before in dag.predecessors(node):
            np.maximum(finish_s[node], finish_s[before], out=finish_s[node])
        finish_s[node] += durations_s[node] * draws[node]
    longest: FloatArray = finish_s.max(axis=0)
    return longest


def measure(arguments: argparse.Namespace) -> Report:
    """All sizes of the benchmark."""
    rows: list[NoisyPlan] = []
    for num_microbatches in NUM_MICROBATCHES:
        show_progress(f"{num_microbatches} microbatches")
        rows += plans_under_noise(num_microbatches, arguments.noise, arguments.draws)
    of_first = {row.name: row for row in rows if row.num_microbatches == NUM_MICROBATCHES[0]}
    envpipe, kept = of_first["envelope"], of_first["frontier, reserve 1 %"]
    return Report(
        figures={
            "noise": arguments.noise,
            "num_draws": arguments.draws,
            "plans": [asdict(row) for row in rows],
        },
        text=(
            f"{100 * arguments.noise:g} % noise on every instruction, {arguments.draws} iterations"
            f"\n\n{_table(rows)}\n\nsaving: predicted, without noise; slower: simulated under"
            " noise, against the highest clocks under the same noise"
        ),
        limits=(
            at_least(
                "12 microbatches, saving beyond EnvPipe's, % points",
                kept.saving_percent - envpipe.saving_percent,
                0,
            ),
            at_most(
                "12 microbatches, slower than EnvPipe's by, % points",
                kept.slower_percent - envpipe.slower_percent,
                0,
            ),
        ),
    )


def _table(rows: Sequence[NoisyPlan]) -> str:
    return table(
        ("plan", "microbatches", "saving, %", "slower, %", "standard error"),
        [
            (
                row.name,
                str(row.num_microbatches),
                f"{row.saving_percent:.2f}",
                f"{row.slower_percent:+.2f}",
                f"{row.error_percent:.2f}",
            )
            for row in rows
        ],
    )


def main() -> int:
    """Print the figures; 0 where all are within their limits, else 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--noise", type=float, default=0.02, help="relative standard deviation")
    parser.add_argument("--draws", type=int, default=400, help="iterations (default 400)")
    return run_benchmark(parser, measure)


if __name__ == "__main__":
    sys.exit(main())
