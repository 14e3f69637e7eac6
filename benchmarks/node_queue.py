"""Plans for stages with several GPUs in one node, whose clock changes queue. Predicted.

The shipped profile of 8 stages x 12 microbatches, scaled to three lengths of its instructions, with
the A100's times of clock changes. A plan for a single GPU is evaluated with the times of several
that change together, beside the plan that counts these.

Run `python benchmarks/node_queue.py [--json]`; README.md beside this file says how to read it.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, dataclass, replace

import numpy as np

from benchmark_report import Report, at_least, at_most, run_benchmark, show_progress, table
from flyball_profiles.examples import load_example_profile
from flyball_profiles.gpu_windows import load_gpu_window
from flyball_server.planning.model.early_requests import EarlyRequestBatch
from flyball_server.planning.model.simulator import time_and_energy
from flyball_server.planning.model.transition_batches import TransitionBatch
from flyball_server.planning.planner import PlanRequest, make_plan
from flyball_wire.plan_options import PlanOptions
from transitions import BLOCKING_POWER_W, MAX_VARYING_PERCENT, NUM_MICROBATCHES, scaled

SCALES, NUM_GPUS = (1.0, 0.25, 0.1), (2, 4, 8)
# With eight GPUs.
MIN_ALONE_SLOWDOWN_PERCENT, MIN_SAVING_PERCENT = 1.0, 9.0


@dataclass(frozen=True, kw_only=True)
class QueuedPlans:
    """The plan for one GPU and the one for the queue, both in the queue.

    Attributes:
        forward_ms: typical time of a forward.
        num_gpus: GPUs of a stage in one node.
        up_ms: median delay of a higher clock in the queue.
        alone_slowdown_percent, alone_saving_percent: of the plan for one GPU, at the median delays,
            against the highest clocks, %.
        slowdown_percent: of the plan for the queue, whatever the delays are within their
            percentiles, %.
        saving_percent: of that plan, %.
    """

    forward_ms: float
    num_gpus: int
    up_ms: float
    alone_slowdown_percent: float
    alone_saving_percent: float
    slowdown_percent: float
    saving_percent: float


def plans_of(scale: float) -> list[QueuedPlans]:
    """Both plans, by rising number of GPUs."""
    alone = load_gpu_window("a100").transitions
    assert alone is not None  # noqa: S101 - it has one
    request = PlanRequest(
        profile=scaled(load_example_profile(), scale),
        num_microbatches=NUM_MICROBATCHES,
        options=PlanOptions(blocking_power_w=(BLOCKING_POWER_W,), transitions=alone, reserve=0.0),
    )
    of_one = make_plan(request)
    baseline_s = of_one.plan.baseline_iteration_time_s
    found: list[QueuedPlans] = []
    for num_gpus in NUM_GPUS:
        queued = make_plan(request.with_options(gpus_at_once=num_gpus))
        times = alone.of_queue(num_gpus)
        time_s, energy_j = time_and_energy(
            replace(of_one.model, transitions=times), of_one.assignment
        )
        batch = (EarlyRequestBatch if queued.plan.requests else TransitionBatch)(queued.model)
        latest_s = float(batch.judged(np.array([queued.assignment]))[1][0])
        found.append(
            QueuedPlans(
                forward_ms=50 * scale,
                num_gpus=num_gpus,
                up_ms=1e3 * times.up_p50_s,
                alone_slowdown_percent=100 * (time_s / baseline_s - 1),
                alone_saving_percent=100 * (1 - energy_j / of_one.plan.baseline_energy_j),
                slowdown_percent=100 * (latest_s / baseline_s - 1),
                saving_percent=queued.plan.saving_percent,
            )
        )
    return found


def measure(arguments: argparse.Namespace) -> Report:
    """All lengths and numbers of GPUs."""
    del arguments
    rows: list[QueuedPlans] = []
    for scale in SCALES:
        show_progress(f"forwards of {50 * scale:g} ms")
        rows += plans_of(scale)
    eight = [row for row in rows if row.num_gpus == max(NUM_GPUS)]
    return Report(
        figures={"plans": [asdict(row) for row in rows]},
        text="predicted, clock changes of an A100\n\n" + _table(rows),
        limits=(
            at_most(
                "plan for the queue, slowdown, %",
                max(row.slowdown_percent for row in rows),
                MAX_VARYING_PERCENT,
            ),
            at_least(
                "plan for the queue, eight GPUs, saving, %",
                min(row.saving_percent for row in eight),
                MIN_SAVING_PERCENT,
            ),
            at_least(
                "plan for one GPU, eight in the queue, slowdown, %",
                min(row.alone_slowdown_percent for row in eight),
                MIN_ALONE_SLOWDOWN_PERCENT,
            ),
        ),
    )


def _table(rows: list[QueuedPlans]) -> str:
    header = "forward, ms|GPUs|up, ms|for one: slowdown, %|saving, %|for the queue: slowdown, %"
    return table(
        [*header.split("|"), "saving, %"],
        [
            [
                f"{row.forward_ms:g}",
                str(row.num_gpus),
                f"{row.up_ms:.1f}",
                f"{row.alone_slowdown_percent:+.2f}",
                f"{row.alone_saving_percent:.2f}",
                f"{row.slowdown_percent:+.2f}",
                f"{row.saving_percent:.2f}",
            ]
            for row in rows
        ],
    )


if __name__ == "__main__":
    sys.exit(run_benchmark(argparse.ArgumentParser(description=__doc__), measure))
