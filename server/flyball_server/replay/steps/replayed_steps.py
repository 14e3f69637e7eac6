"""Recorded steps under a static plan, one clock for each step, and a plan for each step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from flyball_pipeline.paths import earliest_finish_s
from flyball_server.replay.steps.judged_steps import (
    AT_ONCE,
    JudgedBy,
    JudgedStep,
    judged_at_once,
)
from flyball_server.replay.steps.predicted_work import (
    EXACT,
    PredictionError,
    chosen_reserves,
    planned_steps,
)
from flyball_server.replay.steps.step_bound import StepBound
from flyball_server.replay.steps.step_models import PipelineStep, Steps

_TOLERANCE = 1 + 1e-9
# Seeds of a reserve are no seeds of what it is judged with.
_RESERVE_SEED = 1_000_000


class TimeAndSaving(NamedTuple):
    """Steps against the same steps at the highest clocks."""

    #: Time beyond theirs, %.
    time_percent: float
    #: Energy below theirs, %.
    saved_percent: float


@dataclass(frozen=True, kw_only=True)
class StepsReplay:
    """Recorded steps under several plans; times and energies are summed over the steps."""

    #: Number of steps, and of pipelines in all of them.
    steps: int
    pipeline_steps: int
    #: One plan made of the medians, for all steps.
    static: TimeAndSaving
    #: One clock for each pipeline and step, no slower than the highest clocks.
    one_clock: TimeAndSaving
    #: A plan for each step.
    per_step: TimeAndSaving
    #: Saving that no clocks exceed which are no slower and change at once, %.
    bound_saved_percent: float
    #: Mean reserve of the plans for each step, of the step or of each instruction, %.
    reserve_percent: float
    #: Clocks of the plans for each step, by step, pipeline and node, MHz.
    clocks_mhz: tuple[tuple[tuple[int, ...], ...], ...]


def replay_steps(
    steps: Steps,
    *,
    world: JudgedBy = AT_ONCE,
    error: PredictionError = EXACT,
    seed: int = 0,
) -> StepsReplay:
    """Return the steps under all plans, judged by the recorded times.

    Args:
        steps: the steps, one after the other.
        world: times of clock changes.
        error: errors of the times that the plan of a step is made of.
        seed: of the errors and of delays.
    """
    highest = highest_steps(steps)
    reserves = chosen_reserves(steps, error, seed + _RESERVE_SEED, world)
    clocks = tuple(tuple(of_step) for of_step in planned_steps(steps, error, reserves, seed))
    static = ([pipeline.model.retimed.plan_mhz for pipeline in step] for step in steps)
    return StepsReplay(
        steps=len(steps),
        pipeline_steps=sum(map(len, steps)),
        static=compared(highest, world.judged(steps, static, seed)),
        one_clock=compared(highest, world.judged(steps, one_clocks(steps), seed)),
        per_step=compared(highest, world.judged(steps, iter(clocks), seed)),
        bound_saved_percent=bound_saved_percent(steps),
        reserve_percent=100 * sum(map(sum, reserves)) / len(reserves),
        clocks_mhz=clocks,
    )


def highest_steps(steps: Steps) -> list[JudgedStep]:
    """Return the steps at the highest clocks."""
    return [
        judged_at_once(step, [pipeline.model.highest_mhz for pipeline in step]) for step in steps
    ]


def compared(highest: Sequence[JudgedStep], judged: Sequence[JudgedStep]) -> TimeAndSaving:
    """Return steps against the same at the highest clocks."""
    time_s, energy_j = (sum(values) for values in zip(*highest, strict=True))
    took_s, took_j = (sum(values) for values in zip(*judged, strict=True))
    return TimeAndSaving(100 * (took_s / time_s - 1), 100 * (1 - took_j / energy_j))


def one_clocks(steps: Steps) -> Iterator[list[tuple[int, ...]]]:
    """Yield the clock of each pipeline of least energy that is no slower than the slowest."""
    for pipelines, highest in zip(steps, highest_steps(steps), strict=True):
        yield [_one_clock(pipeline, highest.time_s) for pipeline in pipelines]


def _one_clock(pipeline: PipelineStep, time_s: float) -> tuple[int, ...]:
    model, factors = pipeline.model, pipeline.factors
    best, best_j = model.highest_mhz, float("inf")
    of_curves = list({id(by_clock): by_clock for by_clock in model.by_clock}.values())
    shared = [mhz for mhz in of_curves[0] if all(mhz in by_clock for by_clock in of_curves)]
    for mhz in sorted(shared, reverse=True):
        both = [by_clock[mhz] for by_clock in model.by_clock]
        durations_s = [factor * time for factor, (time, _) in zip(factors, both, strict=True)]
        if max(earliest_finish_s(model.dag, durations_s)) > time_s * _TOLERANCE:
            break
        net_j = sum(factor * cost_j for factor, (_, cost_j) in zip(factors, both, strict=True))
        if net_j < best_j:
            best, best_j = (mhz,) * len(factors), net_j
    return best


def bound_saved_percent(steps: Steps) -> float:
    """Return the saving that no clocks exceed which are no slower and change at once, %."""
    bound, least_j, highest_j = StepBound(), 0.0, 0.0
    for pipelines, highest in zip(steps, highest_steps(steps), strict=True):
        power_w = sum(pipeline.model.waiting_power_w for pipeline in pipelines)
        least_j += power_w * highest.time_s
        least_j += sum(bound.least_j(pipeline, highest.time_s) for pipeline in pipelines)
        highest_j += highest.energy_j
    return 100 * (1 - least_j / highest_j)
