"""Delays of clock changes that a job measures in its own steps, beside those of its emulated GPUs.

Rank sessions run plans of the shipped example on emulated GPUs, by discrete events. The delays of
these GPUs are hidden: the plan counts the table of the A100. Instructions have 1 % of jitter, and
the profile that the planner has is off by 1 % from clock to clock. A delay that is not certain is
not used.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace

import numpy as np

from benchmark_report import Report, at_least, at_most, run_benchmark, show_progress, table_of
from flyball_client.gpu.emulated import IDEAL_GPU, EmulatedGpuSettings, RandomTime
from flyball_lab.emulation.emulated_pipeline import planned_ranks
from flyball_profiles.examples import load_example_profile
from flyball_profiles.gpu_windows import load_gpu_window
from flyball_profiles.stage_profile import StageProfile
from flyball_server.jobs.planning_inputs import MeasuredDelays
from flyball_server.planning.planner import PlanRequest, make_plan
from flyball_wire.plan_options import Effort, PlanOptions
from flyball_wire.plans.plan import Plan
from gpt3_cells import A100
from made_profiles import scaled
from noise_reserve import delays_of_ranks

NUM_MICROBATCHES = 12
JITTER, PROFILE_ERROR, SEED = 0.01, 0.01, 7
# Forwards of the example take 50 ms.
SCALES = (1.0, 0.25, 0.1)
# Hidden medians of changes up and down, ms, and their 99th percentile over the median.
HIDDEN_MS = ((5.8, 4.1), (12.0, 7.0), (40.0, 4.1), (60.0, 60.0))
TAIL = 1.5
# Short instructions show every delay.
MAX_ERROR, MIN_CERTAIN_SHARE, MAX_FORWARD_MS = 0.35, 0.8, 15.0


@dataclass(frozen=True, kw_only=True)
class FoundDelay:
    """One delay, as it is and as the job has measured it.

    Attributes:
        forward_ms: typical time of a forward.
        direction: `up` or `down`.
        hidden_ms: median of the emulated GPUs' delay.
        found_ms: measured median; None: not certain.
    """

    forward_ms: float
    direction: str
    hidden_ms: float
    found_ms: float | None

    @property
    def error(self) -> float | None:
        """Difference to the hidden one, as a share of it; None: not certain."""
        return None if self.found_ms is None else self.found_ms / self.hidden_ms - 1


def of_length(scale: float, error: float = 0.0) -> StageProfile:
    """Return the example with other times, and with an error of its own for each kind and clock."""
    generator = np.random.default_rng(SEED)
    errors: dict[tuple[object, int], float] = {}

    def factors(stage: int, kind: object, mhz: int) -> tuple[float, float]:
        del stage
        if (kind, mhz) not in errors:
            errors[kind, mhz] = float(generator.normal(1.0, error))
        return scale * errors[kind, mhz], scale

    return scaled(load_example_profile(), factors)


def planned(profile: StageProfile) -> Plan:
    """The plan of a job that knows the table of the A100."""
    options = PlanOptions(
        blocking_power_w=(A100.blocking_power_w,),
        transitions=load_gpu_window("a100").transitions,
        effort=Effort.LOW,
        reserve=0.0,
    )
    request = PlanRequest(profile=profile, num_microbatches=NUM_MICROBATCHES, options=options)
    return make_plan(request).plan


def measured(
    truth: StageProfile, known: StageProfile, plan: Plan, settings: EmulatedGpuSettings
) -> MeasuredDelays:
    """Return what a job measures in its first steps on the plan, without the very first."""
    requests = [
        [one[1:] for one in plan.pipelines[0].requests if one.stage == stage]
        for stage in range(len(plan.stages))
    ]
    with planned_ranks(
        truth,
        [[item[:3] for item in of_stage] for of_stage in plan.stages],
        iteration_time_s=plan.iteration_time_s,
        blocking_power_w=A100.blocking_power_w,
        settings=settings,
        requests=requests if plan.pipelines[0].requests else (),
    ) as ranks:
        return delays_of_ranks(ranks, plan, known)


def measure(_: argparse.Namespace) -> Report:
    """All forwards and hidden delays."""
    rows: list[FoundDelay] = []
    for scale in SCALES:
        truth, known = of_length(scale), of_length(scale, PROFILE_ERROR)
        plan = planned(known)
        for up_ms, down_ms in HIDDEN_MS:
            show_progress(f"forwards of {50 * scale:g} ms, {up_ms:g} and {down_ms:g} ms late")
            up, down = (
                RandomTime(p50_s=late_ms / 1e3, p99_s=TAIL * late_ms / 1e3)
                for late_ms in (up_ms, down_ms)
            )
            settings = replace(IDEAL_GPU, delay_up=up, delay_down=down, noise=JITTER, seed=SEED)
            delays = measured(truth, known, plan, settings)
            for direction, hidden_ms, found_s in (
                ("up", up_ms, delays.up_s),
                ("down", down_ms, delays.down_s),
            ):
                rows.append(
                    FoundDelay(
                        forward_ms=50 * scale,
                        direction=direction,
                        hidden_ms=hidden_ms,
                        found_ms=None if found_s is None else 1e3 * found_s,
                    )
                )
    certain = [row.error for row in rows if row.error is not None]
    short = [row for row in rows if row.forward_ms < MAX_FORWARD_MS]
    columns = {
        "forward, ms": "{forward_ms:g}",
        "change": "{direction}",
        "delay, ms": "{hidden_ms:g}",
        "found, ms (-: not certain)": "{found_ms:.2f}",
        "error": "{error:+.0%}",
    }
    share = sum(row.error is not None for row in short) / len(short)
    return Report(
        figures={"delays": rows},
        text=(
            f"{100 * JITTER:g} % of jitter, profile off by {100 * PROFILE_ERROR:g} % from clock to"
            f" clock; emulated\n\n{table_of(rows, columns)}"
        ),
        limits=[
            at_most("largest error of a certain delay, a share", max(map(abs, certain)), MAX_ERROR),
            at_least(
                f"certain delays, forwards below {MAX_FORWARD_MS:g} ms, a share",
                share,
                MIN_CERTAIN_SHARE,
            ),
        ],
    )


if __name__ == "__main__":
    run_benchmark(argparse.ArgumentParser(description=__doc__), measure)
