"""What a measured step tells beside its totals, where the rank's plan asks for it.

`clocks`: what instructions of a kind took at each clock; `instructions`: that and each of them.
Whatever else a plan asks for, as one of a newer planner may, counts as `totals`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from flyball_client.session.instruction_timings import InstructionTiming
from flyball_wire.messages import ClockTiming, InstructionReport, StepMeasurement

_CLOCKS, _INSTRUCTIONS = "clocks", "instructions"


def asks_for_details(report: str) -> bool:
    """Whether a plan with this `report` wants more than the totals of a step."""
    return report in {_CLOCKS, _INSTRUCTIONS}


def with_details(
    measurement: StepMeasurement,
    timings: Sequence[InstructionTiming],
    report: str,
    *,
    were_clocks_set: bool,
) -> StepMeasurement:
    """The measurement with what `report` asks for.

    Args:
        measurement: of the step.
        timings: of its instructions, in the order of execution.
        report: of the rank's plan; it asks for details.
        were_clocks_set: to the end of the step; else no clock is told.
    """
    return replace(
        measurement,
        by_clock=_by_clock(timings, were_clocks_set=were_clocks_set),
        instructions=_each(timings) if report == _INSTRUCTIONS else None,
    )


def num_details(measurement: StepMeasurement) -> int:
    """How many entries its details have together."""
    details = (measurement.by_clock, measurement.instructions, measurement.counter_readings)
    return sum(len(entries or ()) for entries in details)


def _by_clock(
    timings: Iterable[InstructionTiming], *, were_clocks_set: bool
) -> tuple[ClockTiming, ...]:
    """In the order in which kind, chunk and clock came first."""
    times_s: dict[tuple[str, int, int | None], list[float]] = {}
    for timing in timings:
        # One whose end was not told has no time.
        if timing.compute_time_s > 0:
            sm_clock_mhz = timing.sm_clock_mhz if were_clocks_set else None
            key = (timing.kind, timing.chunk, sm_clock_mhz)
            times_s.setdefault(key, []).append(timing.compute_time_s)
    return tuple((*key, len(of_key), *_mean_variance(of_key)) for key, of_key in times_s.items())


def _mean_variance(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and variance about it with count - 1; 0 of one value."""
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return mean, 0.0
    # In two passes: the difference of sums of squares would lose small variances.
    return mean, math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def _each(timings: Iterable[InstructionTiming]) -> tuple[InstructionReport, ...]:
    return tuple(
        (
            timing.kind,
            timing.microbatch,
            timing.chunk,
            timing.began_s,
            timing.compute_time_s,
            timing.receive_time_s,
            timing.send_time_s,
        )
        for timing in timings
    )
