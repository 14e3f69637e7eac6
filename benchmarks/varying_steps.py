"""A plan for each step of recorded production jobs, judged by the recorded times.

The jobs are of `shared/data/bytedance-osdi25`: SE, whose sequences differ, and ST, whose last stage
is heavier. Times and energies by clock are those of stage 3 of the shipped A100 profile, a waiting
GPU draws 83.64 W, and all pipelines wait for the slowest of the step. Beside it: ranks that meet in
every microbatch, as FSDP's do, and the processor time of `retime`.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from benchmark_report import Report, at_least, at_most, run_benchmark, show_progress, table_of
from flyball_pipeline.clock_rounding import ChangeDelays
from flyball_pipeline.dag import build_dag
from flyball_pipeline.instruction import equal_stages
from flyball_pipeline.retiming import RetimedPipeline, own_times, retime
from flyball_pipeline.schedules.inputs import ScheduleInputs
from flyball_pipeline.schedules.table import make_schedule
from flyball_pipeline.step_curves import ClockPoint
from flyball_profiles.clock_transitions import ClockTransitions
from flyball_profiles.examples import load_example_profile
from flyball_profiles.gpu_windows import load_gpu_window
from flyball_server.replay.steps.judged_steps import AT_ONCE, JudgedBy, NodeQueue
from flyball_server.replay.steps.predicted_work import (
    EXACT,
    PredictionError,
    chosen_reserves,
    planned_steps,
)
from flyball_server.replay.steps.recorded_steps import RecordedStep, parse_recorded_steps
from flyball_server.replay.steps.replayed_steps import (
    TimeAndSaving,
    bound_saved_percent,
    compared,
    highest_steps,
    one_clocks,
)
from flyball_server.replay.steps.step_models import Steps, pipeline_steps
from measured_process import BenchmarkError

CURVE_STAGE, BLOCKING_POWER_W = 3, 83.64
DEFAULT_FOLDER = Path(os.environ.get("FLYBALL_SHARED_DATA", "../shared/data")) / "bytedance-osdi25"
NUM_SEEDS, RESERVE_SEED = 10, 1_000_000
# Eight GPUs of a node: its pipelines, of two stages each.
QUEUE, GPUS_IN_NODE = NodeQueue(call_s=0.0045, num_pipelines=4), 8
SHORTER = 20
# Longer than the last of eight calls and its change take.
GAP_S = 0.05
SHAPES = {(2, 8): 1.0, (16, 64): 60.0, (64, 256): 700.0}
FSDP_RANKS, FSDP_MICROBATCHES, FSDP_STEPS = 8, 8, 40
FSDP_SCATTER, MAX_FSDP_PERCENT = 0.05, 0.05


@dataclass(frozen=True, kw_only=True)
class PlannedJob:
    """One job under one kind of plan.

    Attributes:
        job: SE or ST.
        plan: the plan, and the world that it is judged in.
        reserve_percent: its reserve, %.
        time_percent, saved_percent: against the highest clocks, %.
        most_time_percent, least_saved_percent: what it shall reach; None: nothing.
    """

    job: str
    plan: str
    time_percent: float
    saved_percent: float
    reserve_percent: float = 0.0
    most_time_percent: float | None = None
    least_saved_percent: float | None = None


@dataclass(frozen=True, kw_only=True)
class MetRanks:
    """Ranks that meet after every forward and every backward of a microbatch.

    Attributes:
        work_sigma: deviation of the logarithm of a microbatch's work.
        deadlines: where each rank has a deadline.
        time_percent, saved_percent: against the highest clocks, %.
    """

    work_sigma: float
    deadlines: str
    time_percent: float
    saved_percent: float


@dataclass(frozen=True, kw_only=True)
class ProcessorTime:
    """Of the plan of one step in plain Python: own times, both starts, rounding, late changes.

    Attributes:
        num_stages, num_microbatches: shape of the pipeline, 1F1B.
        time_ms: processor time of the fastest of some steps, ms.
        most_ms: limit.
    """

    num_stages: int
    num_microbatches: int
    time_ms: float
    most_ms: float


def a100_transitions() -> ClockTransitions:
    """Return the times of an A100's clock changes."""
    times = load_gpu_window("a100").transitions
    assert times is not None  # noqa: S101 - its table has them
    return times


def steps_of(
    recorded: Sequence[RecordedStep],
    *,
    transitions: ClockTransitions | None = None,
    delays: ChangeDelays | None = None,
    gap_s: float = 0.0,
) -> Steps:
    """Return the recorded steps with the shipped profile."""
    return pipeline_steps(
        recorded,
        load_example_profile(),
        [BLOCKING_POWER_W],
        curve_stage=CURVE_STAGE,
        transitions=transitions,
        delays=delays,
        gap_s=gap_s,
    )


def per_step(
    steps: Steps,
    *,
    world: JudgedBy = AT_ONCE,
    error: PredictionError = EXACT,
    num_seeds: int = 1,
) -> tuple[TimeAndSaving, float]:
    """Return a plan for each step, mean of some seeds, and its mean reserve in %."""
    reserves = chosen_reserves(steps, error, RESERVE_SEED, world)
    highest = highest_steps(steps)
    found = [
        compared(highest, world.judged(steps, planned_steps(steps, error, reserves, seed), seed))
        for seed in range(num_seeds)
    ]
    times, savings = zip(*found, strict=True)
    return TimeAndSaving(fmean(times), fmean(savings)), 100 * fmean(map(sum, reserves))


def exact_jobs(job: str, steps: Steps, least_saved_percent: float) -> list[PlannedJob]:
    """Return the static plan, one clock, a plan for each step and the bound."""
    highest = highest_steps(steps)
    static = ([one.model.retimed.plan_mhz for one in each] for each in steps)
    of_plans = {
        "one plan of the medians": compared(highest, AT_ONCE.judged(steps, static, 0)),
        "one clock a pipeline and step": compared(
            highest, AT_ONCE.judged(steps, one_clocks(steps), 0)
        ),
        "bound": TimeAndSaving(0.0, bound_saved_percent(steps)),
    }
    figures, _ = per_step(steps)
    return [
        *(PlannedJob(job=job, plan=plan, **each._asdict()) for plan, each in of_plans.items()),
        PlannedJob(
            job=job,
            plan="a plan for each step",
            **figures._asdict(),
            most_time_percent=0.0,
            least_saved_percent=least_saved_percent,
        ),
    ]


def late_jobs(recorded: Sequence[RecordedStep]) -> list[PlannedJob]:
    """Return plans for each step with late clock changes, of a node's queue too."""
    times = a100_transitions()
    alone = ChangeDelays(up_s=times.up_p95_s, down_s=times.down_p5_s)
    queued = alone.in_node(QUEUE.call_s, GPUS_IN_NODE)
    shorter = [_shorter(each) for each in recorded]
    found: list[PlannedJob] = []
    for plan, steps, world, limits in (
        (
            "A100's delays",
            steps_of(recorded, transitions=times),
            JudgedBy(transitions=times),
            (0.02, 26.0),
        ),
        (
            f"times / {SHORTER}, A100's delays, gap {1e3 * GAP_S:g} ms",
            steps_of(shorter, transitions=times, gap_s=GAP_S),
            JudgedBy(transitions=times, gap_s=GAP_S),
            None,
        ),
        (
            f"times / {SHORTER}, A100's delays, no gap",
            steps_of(shorter, transitions=times),
            JudgedBy(transitions=times),
            None,
        ),
        (
            f"times / {SHORTER}, calls of 8 GPUs queue, gap {1e3 * GAP_S:g} ms",
            steps_of(shorter, transitions=times, delays=queued, gap_s=GAP_S),
            JudgedBy(transitions=times, gap_s=GAP_S, queue=QUEUE),
            (0.05, 24.7),
        ),
        (
            f"times / {SHORTER}, calls of 8 GPUs queue, no gap",
            steps_of(shorter, transitions=times, delays=queued),
            JudgedBy(transitions=times, queue=QUEUE),
            None,
        ),
    ):
        show_progress(f"SE, {plan}")
        figures, _ = per_step(steps, world=world)
        most, least = limits or (None, None)
        found.append(
            PlannedJob(
                job="SE",
                plan=plan,
                **figures._asdict(),
                most_time_percent=most,
                least_saved_percent=least,
            )
        )
    return found


def _shorter(recorded: RecordedStep) -> RecordedStep:
    return replace(
        recorded,
        pipelines=tuple(
            replace(
                pipeline,
                stages=tuple(
                    tuple(each._replace(time_s=each.time_s / SHORTER) for each in stage)
                    for stage in pipeline.stages
                ),
            )
            for pipeline in recorded.pipelines
        ),
    )


def wrong_jobs(steps: Steps) -> list[PlannedJob]:
    """Return plans for each step made of times with errors, mean of the seeds."""
    found: list[PlannedJob] = []
    for deviation, is_shared, most_percent, least_percent in (
        (0.02, False, 0.1, 25.7),
        (0.05, False, 0.2, 24.7),
        (0.02, True, 0.12, 25.0),
        (0.05, True, 0.2, 22.5),
    ):
        plan = f"errors of {100 * deviation:g} % a{' microbatch' if is_shared else 'n instruction'}"
        show_progress(f"SE, {plan}")
        error = PredictionError(deviation=deviation, is_shared=is_shared)
        figures, reserve_percent = per_step(steps, error=error, num_seeds=NUM_SEEDS)
        found.append(
            PlannedJob(
                job="SE",
                plan=plan,
                **figures._asdict(),
                reserve_percent=reserve_percent,
                most_time_percent=most_percent,
                least_saved_percent=least_percent,
            )
        )
    return found


def met_ranks(work_sigma: float) -> list[MetRanks]:
    """Return ranks that meet after every forward and backward, with three kinds of deadlines."""
    num = 2 * FSDP_MICROBATCHES
    curves = {
        kind: tuple(
            ClockPoint(point.frequency_mhz, point.time_s, point.energy_j)
            for point in load_example_profile().points[CURVE_STAGE, kind]
        )
        for kind in equal_stages(1, 1).stages[0]
    }
    dag = build_dag(make_schedule("1f1b", ScheduleInputs(shape=equal_stages(1, FSDP_MICROBATCHES))))
    points = [curves[each.kind] for each in dag.instruction]
    by_clock = [{point.clock_mhz: point for point in curve} for curve in points]
    meetings: dict[str, Sequence[int]] = {
        "one, at the step's end": [0] * num,
        "each microbatch": [node // 2 for node in range(num)],
        "each forward and backward": range(num),
    }
    found: list[MetRanks] = []
    for deadlines, meeting in meetings.items():
        pipeline = RetimedPipeline(
            dag=dag, points=points, waiting_power_w=[BLOCKING_POWER_W], meeting=meeting
        )
        rng = random.Random(1)
        highest_s = took_s = saved_j = highest_j = 0.0
        for _ in range(FSDP_STEPS):
            ranks = [_work(rng, work_sigma) for _ in range(FSDP_RANKS)]
            own_s = [own_times(pipeline, factors) for factors in ranks]
            clocks = [
                retime(pipeline, factors, [max(each) for each in zip(*own_s, strict=True)])
                for factors in ranks
            ]
            highest = [[curve[0] for curve in points]] * FSDP_RANKS
            chosen = [
                [of_node[mhz] for of_node, mhz in zip(by_clock, each, strict=True)]
                for each in clocks
            ]
            before_s, before_j = _met(ranks, highest)
            after_s, after_j = _met(ranks, chosen)
            highest_s, took_s = highest_s + before_s, took_s + after_s
            highest_j, saved_j = highest_j + before_j, saved_j + before_j - after_j
        found.append(
            MetRanks(
                work_sigma=work_sigma,
                deadlines=deadlines,
                time_percent=100 * (took_s / highest_s - 1),
                saved_percent=100 * saved_j / highest_j,
            )
        )
    return found


def _work(rng: random.Random, sigma: float) -> list[float]:
    """Return the factors of a rank's step: forward and backward of each microbatch in turn."""
    factors: list[float] = []
    for _ in range(FSDP_MICROBATCHES):
        work = rng.lognormvariate(0, sigma)
        factors += [work, work * (1 + FSDP_SCATTER * rng.gauss(0, 1))]
    return factors


def _met(
    ranks: Sequence[Sequence[float]], points: Sequence[Sequence[ClockPoint]]
) -> tuple[float, float]:
    """Return time and energy of a step whose ranks wait for each other after each instruction."""
    times_s = [
        [factor * point.time_s for factor, point in zip(*both, strict=True)]
        for both in zip(ranks, points, strict=True)
    ]
    time_s = sum(map(max, zip(*times_s, strict=True)))
    busy_j = sum(
        factor * (point.energy_j - BLOCKING_POWER_W * point.time_s)
        for both in zip(ranks, points, strict=True)
        for factor, point in zip(*both, strict=True)
    )
    return time_s, busy_j + FSDP_RANKS * BLOCKING_POWER_W * time_s


def processor_time(num_stages: int, num_microbatches: int, most_ms: float) -> ProcessorTime:
    """Return the processor time of the fastest of some steps, with two starts and late changes."""
    times = a100_transitions()
    shape = equal_stages(num_stages, num_microbatches)
    dag = build_dag(make_schedule("1f1b", ScheduleInputs(shape=shape)))
    curves = {
        kind: tuple(
            ClockPoint(point.frequency_mhz, point.time_s, point.energy_j)
            for point in load_example_profile().points[CURVE_STAGE, kind]
        )
        for kind in shape.stages[0]
    }
    pipeline = RetimedPipeline(
        dag=dag,
        points=[curves[each.kind] for each in dag.instruction],
        waiting_power_w=[BLOCKING_POWER_W] * num_stages,
        plan_mhz=[1305 if each.microbatch % 2 else 1200 for each in dag.instruction],
        delays=ChangeDelays(up_s=times.up_p95_s, down_s=times.down_p5_s),
    )
    rng, found_s = random.Random(1), []
    for _ in range(20 if dag.num_nodes < 1000 else 5):
        work = [rng.lognormvariate(0, 0.3) for _ in range(num_microbatches)]
        factors = [work[each.microbatch] for each in dag.instruction]
        begin_s = time.process_time()
        (own_s,) = own_times(pipeline, factors)
        retime(pipeline, factors, [1.05 * own_s])
        found_s.append(time.process_time() - begin_s)
    return ProcessorTime(
        num_stages=num_stages,
        num_microbatches=num_microbatches,
        time_ms=1e3 * min(found_s),
        most_ms=most_ms,
    )


def measure(arguments: argparse.Namespace) -> Report:
    """All of them."""
    try:
        recorded = {
            job: parse_recorded_steps((arguments.steps / name).read_text(encoding="utf-8"))
            for job, name in (("SE", "sequence-imbalance.csv"), ("ST", "stage-imbalance.csv"))
        }
    except OSError as error:
        raise BenchmarkError(
            f"{arguments.steps}: no recorded steps ({error.strerror}); --steps, or"
            " FLYBALL_SHARED_DATA, names the folder"
        ) from None
    jobs: list[PlannedJob] = []
    for job, least_percent in (("SE", 26.1), ("ST", 13.9)):
        show_progress(job)
        jobs += exact_jobs(job, steps_of(recorded[job]), least_percent)
    jobs += late_jobs(recorded["SE"])
    jobs += wrong_jobs(steps_of(recorded["SE"]))
    ranks = [each for sigma in (0.1, 0.2, 0.3) for each in met_ranks(sigma)]
    show_progress("processor time")
    processor = [processor_time(*shape, most_ms) for shape, most_ms in SHAPES.items()]
    return Report(
        figures={"jobs": jobs, "meetings": ranks, "processor": processor},
        text="\n\n".join(_tables(jobs, ranks, processor)),
        limits=[
            *(
                at_least(f"{each.job}, {each.plan}: saved, %", each.saved_percent, least)
                for each in jobs
                if (least := each.least_saved_percent) is not None
            ),
            *(
                # Times in another order differ by rounding.
                at_most(f"{each.job}, {each.plan}: time, %", each.time_percent, most + 1e-9)
                for each in jobs
                if (most := each.most_time_percent) is not None
            ),
            *(
                at_most(
                    f"meetings, work sigma {each.work_sigma:g}: time, %",
                    each.time_percent,
                    MAX_FSDP_PERCENT,
                )
                for each in ranks[2::3]
            ),
            *(
                at_most(
                    f"{each.num_stages} x {each.num_microbatches}: processor time, ms",
                    each.time_ms,
                    each.most_ms,
                )
                for each in processor
            ),
        ],
    )


def _tables(
    jobs: Sequence[PlannedJob], ranks: Sequence[MetRanks], processor: Sequence[ProcessorTime]
) -> list[str]:
    return [
        table_of(
            jobs,
            {
                "predicted, against the highest clocks": "{job}: {plan}",
                "reserve, %": "{reserve_percent:.1f}",
                "saved, %": "{saved_percent:.2f}",
                "at least": "{least_saved_percent}",
                "time, %": "{time_percent:+.3f}",
                "at most": "{most_time_percent}",
            },
        ),
        table_of(
            ranks,
            {
                "meetings after each forward and backward: deadlines": "{deadlines}",
                "work sigma": "{work_sigma:g}",
                "time, %": "{time_percent:+.2f}",
                "saved, %": "{saved_percent:.2f}",
            },
        ),
        table_of(
            processor,
            {
                "processor time of a step's plan": "{num_stages} x {num_microbatches}",
                "ms": "{time_ms:.2f}",
                "at most": "{most_ms:g}",
            },
        ),
    ]


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument(
        "--steps",
        metavar="DIR",
        type=Path,
        default=DEFAULT_FOLDER,
        help="folder of the recorded steps (default: %(default)s)",
    )
    run_benchmark(options, measure)
