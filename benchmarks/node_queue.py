"""Plans for GPUs of one node, whose clock changes queue. Predicted, and emulated.

The shipped profile of 8 stages x 12 microbatches, scaled to three lengths of its instructions.
Predicted: with the A100's times of clock changes, a plan for a single GPU a stage is evaluated with
the times of several that change together, beside the plan that counts these. Emulated: one GPU for
each of the eight stages, all in one node, run a plan that does not count their calls, and one that
does.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from benchmark_report import Report, at_least, at_most, run_benchmark, show_progress, table_of
from flyball_client.gpu.emulated import DEFAULT_PHYSICS
from flyball_lab.emulation.emulated_pipeline import planned_ranks, run_step
from flyball_profiles.clock_transitions import ClockTransitions
from flyball_profiles.examples import load_example_profile
from flyball_profiles.gpu_windows import load_gpu_window
from flyball_profiles.stage_profile import StageProfile
from flyball_server.planning.model.early_requests import EarlyRequestBatch
from flyball_server.planning.model.late_clocks import LateClockSimulator
from flyball_server.planning.model.simulator import time_and_energy
from flyball_server.planning.planner import PlanRequest, make_plan
from flyball_wire.plan_options import Effort, PlanOptions
from made_profiles import scaled
from transitions import BLOCKING_POWER_W, MAX_VARYING_PERCENT, NUM_MICROBATCHES

SCALES, NUM_GPUS = (1.0, 0.25, 0.1), (2, 4, 8)
# With eight GPUs.
MIN_ALONE_SLOWDOWN_PERCENT, MIN_SAVING_PERCENT = 1.0, 9.0
# Emulated: iterations of a plan, and what is allowed for the jitter of delays and calls.
NUM_EMULATED, MAX_SHARED_PERCENT = 12, 0.3


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
        profile=scaled(load_example_profile(), lambda *_: (scale, scale)),
        num_microbatches=NUM_MICROBATCHES,
        options=PlanOptions(blocking_power_w=(BLOCKING_POWER_W,), transitions=alone, reserve=0.0),
    )
    of_one = make_plan(request)
    baseline_s = of_one.plan.predicted.baseline_iteration_time_s
    found: list[QueuedPlans] = []
    for num_gpus in NUM_GPUS:
        queued = make_plan(request.with_options(gpus_at_once=num_gpus))
        times = alone.of_queue(num_gpus)
        time_s, energy_j = time_and_energy(
            replace(of_one.model, transitions=times), of_one.assignment
        )
        batch = (EarlyRequestBatch if queued.plan.pipelines[0].requests else LateClockSimulator)(
            queued.model
        )
        latest_s = float(batch.judged(np.array([queued.assignment]))[1][0])
        found.append(
            QueuedPlans(
                forward_ms=50 * scale,
                num_gpus=num_gpus,
                up_ms=1e3 * times.up_p50_s,
                alone_slowdown_percent=100 * (time_s / baseline_s - 1),
                alone_saving_percent=100 * (1 - energy_j / of_one.plan.predicted.baseline_energy_j),
                slowdown_percent=100 * (latest_s / baseline_s - 1),
                saving_percent=queued.plan.predicted.saving_percent,
            )
        )
    return found


@dataclass(frozen=True, kw_only=True)
class SharedNode:
    """A plan on eight stages of one GPU each in one node, emulated.

    Attributes:
        forward_ms: typical time of a forward.
        is_counted: whether the plan counts the calls of the node.
        num_switches: clock changes of an iteration.
        slowdown_percent, saving_percent: against the highest clocks, with the same physics, %.
    """

    forward_ms: float
    is_counted: bool
    num_switches: int
    slowdown_percent: float
    saving_percent: float


def in_one_node(scale: float) -> list[SharedNode]:
    """Both plans, the one that does not count the calls first."""
    call = DEFAULT_PHYSICS.call_time
    profile = scaled(load_example_profile(), lambda *_: (scale, scale))
    times = replace(
        ClockTransitions.of_medians(
            DEFAULT_PHYSICS.delay_up.p50_s, DEFAULT_PHYSICS.delay_down.p50_s
        ),
        call_p50_s=call.p50_s,
        call_p95_s=2 * call.p50_s,  # of the default physics, log-normal up to 12 ms
    )
    request = PlanRequest(
        profile=profile,
        num_microbatches=NUM_MICROBATCHES,
        options=PlanOptions(
            blocking_power_w=(BLOCKING_POWER_W,), transitions=times, reserve=0.0, effort=Effort.LOW
        ),
    )
    found: list[SharedNode] = []
    for num_gpus in (None, profile.num_stages):
        plan = make_plan(request.with_options(gpus_in_node=num_gpus)).plan
        clocked = [[item[:3] for item in stage] for stage in plan.stages]
        highest_mhz = max(mhz for stage in clocked for _, _, mhz in stage)
        at_highest = [[(kind, number, highest_mhz) for kind, number, _ in of] for of in clocked]
        requests = [
            [row[1:] for row in plan.pipelines[0].requests if row.stage == stage]
            for stage in range(profile.num_stages)
        ]
        baseline_s, baseline_j = _emulated(profile, at_highest, ())
        time_s, energy_j = _emulated(profile, clocked, requests)
        found.append(
            SharedNode(
                forward_ms=50 * scale,
                is_counted=num_gpus is not None,
                num_switches=plan.num_switches,
                slowdown_percent=100 * (time_s / baseline_s - 1),
                saving_percent=100 * (1 - energy_j / baseline_j),
            )
        )
    return found


def _emulated(
    profile: StageProfile,
    stages: Sequence[Sequence[tuple[str, int, int]]],
    requests: Sequence[Sequence[tuple[int, int, float]]],
) -> tuple[float, float]:
    """Return the mean time in s and energy in J of an iteration, the first one left out."""
    with planned_ranks(
        profile,
        stages,
        iteration_time_s=1.0,
        blocking_power_w=BLOCKING_POWER_W,
        settings=DEFAULT_PHYSICS,
        requests=requests,
    ) as ranks:
        _, *steps = (run_step(ranks, num_stages=profile.num_stages) for _ in range(NUM_EMULATED))
    times_s = [step[0].time_s for step in steps]
    energies_j = [sum(rank.energy_j or 0.0 for rank in step) for step in steps]
    return fmean(times_s), fmean(energies_j)


def measure(_: argparse.Namespace) -> Report:
    """All lengths and numbers of GPUs."""
    rows: list[QueuedPlans] = []
    shared: list[SharedNode] = []
    for scale in SCALES:
        show_progress(f"forwards of {50 * scale:g} ms")
        rows += plans_of(scale)
        shared += in_one_node(scale)
    eight = [row for row in rows if row.num_gpus == max(NUM_GPUS)]
    queued = {
        "forward, ms": "{forward_ms:g}",
        "GPUs": "{num_gpus}",
        "up, ms": "{up_ms:.1f}",
        "for one: slowdown, %": "{alone_slowdown_percent:+.2f}",
        "saving, %": "{alone_saving_percent:.2f}",
        "for the queue: slowdown, %": "{slowdown_percent:+.2f}",
        "its saving, %": "{saving_percent:.2f}",
    }
    emulated = {
        "forward, ms": "{forward_ms:g}",
        "counts the node": "{is_counted!s}",
        "switches": "{num_switches}",
        "slowdown, %": "{slowdown_percent:+.2f}",
        "saving, %": "{saving_percent:.2f}",
    }
    return Report(
        figures={"plans": rows, "shared_node": shared},
        text=f"predicted, clock changes of an A100\n\n{table_of(rows, queued)}\n\nemulated, eight"
        f" stages of a GPU each in one node\n\n{table_of(shared, emulated)}",
        limits=[
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
            at_most(
                "emulated, plan for the node, slowdown, %",
                max(row.slowdown_percent for row in shared if row.is_counted),
                MAX_SHARED_PERCENT,
            ),
        ],
    )


if __name__ == "__main__":
    run_benchmark(argparse.ArgumentParser(description=__doc__), measure)
