"""Measurement of an instruction at a clock: repeated until settled, then until accurate."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise

from flyball_client.gpu._base import EmulatedDevice, GpuDevice, GpuError
from flyball_client.gpu.window_draft import draft_window
from flyball_client.profiling.counter_watch import CounterWatch, watch_counter
from flyball_client.profiling.counter_window import CounterReading, WindowEstimate, estimate
from flyball_client.profiling.held_clock import HeldClock
from flyball_client.profiling.points_file import MeasuredPoint, point_of
from flyball_client.profiling.workload import RunOnce, Workload, WorkloadError, described
from flyball_pipeline.instruction import InstructionKind
from flyball_profiles.gpu_windows import (
    GpuTableError,
    gpu_window_of,
    window_clocks_mhz,
)

DEFAULT_NUM_RISES = 5

Measure = Callable[[InstructionKind, int], MeasuredPoint]


class Sweep:
    """Order of measurement: each instruction at each clock, from high to low.

    Below some clock both time and energy rise, and no plan uses it: an instruction's sweep ends
    after a number of rises of its energy in a row. Points whose clock was below the lock are not
    counted.

    Args:
        kinds: Instructions to sweep.
        clocks_mhz: Clocks in MHz, falling.
        num_rises: Number of rises in a row that end a sweep; 0: never.
        known: Points that are not measured again.
    """

    def __init__(
        self,
        kinds: Sequence[InstructionKind],
        clocks_mhz: Sequence[int],
        *,
        num_rises: int = DEFAULT_NUM_RISES,
        known: Iterable[MeasuredPoint] = (),
    ) -> None:
        self._kinds = kinds
        self._clocks_mhz = clocks_mhz
        self._num_rises = num_rises
        self._known = {(point.kind, point.frequency_mhz): point for point in known}
        self.stopped_at_mhz: dict[InstructionKind, int] = {}

    def run(self, measure: Measure) -> Iterator[MeasuredPoint]:
        """Measure and yield the points that are not known yet.

        `stopped_at_mhz` then has the instructions whose sweep ended early.
        """
        for kind in self._kinds:
            energies_j: list[float] = []
            for clock_mhz in self._clocks_mhz:
                point = self._known.get((kind, clock_mhz))
                if point is None:
                    point = measure(kind, clock_mhz)
                    yield point
                if point.held_by is None:
                    energies_j.append(point.energy_j)
                if self._only_rises(energies_j) and clock_mhz != self._clocks_mhz[-1]:
                    self.stopped_at_mhz[kind] = clock_mhz
                    break

    def _only_rises(self, energies_j: Sequence[float]) -> bool:
        if not self._num_rises or len(energies_j) <= self._num_rises:
            return False
        return all(after > before for before, after in pairwise(energies_j[-self._num_rises - 1 :]))


def clock_grid(
    supported_mhz: Sequence[int],
    *,
    table_name: str | None,
    every_clock: bool,
    lowest_mhz: int | None = None,
    highest_mhz: int | None = None,
    step_mhz: int | None = None,
) -> tuple[int, ...]:
    """Return the clocks to profile, MHz, falling.

    Args:
        supported_mhz: Clocks that the GPU supports, MHz.
        table_name: Name of the GPU in the table, or a file; None: a window is drafted, see
            `draft_window`.
        every_clock: True: without a table's name, all clocks are used.
        lowest_mhz: Lowest clock, instead of the window's.
        highest_mhz: Highest clock, instead of the window's.
        step_mhz: Step, instead of the window's.

    Raises:
        GpuTableError: There is no such GPU, no such window, or it has fewer than two clocks.
        ValueError: The GPU has fewer than two clocks.
    """
    if table_name is not None:
        window = gpu_window_of(table_name, os.environ)
    else:
        window = draft_window("this GPU", supported_mhz, origin="asked of the GPU")
        if every_clock:
            window = replace(window, filter_min_mhz=min(supported_mhz), granularity_mhz=1)
    window = replace(
        window,
        filter_min_mhz=lowest_mhz or window.filter_min_mhz,
        filter_max_mhz=highest_mhz or window.filter_max_mhz,
        granularity_mhz=step_mhz or window.granularity_mhz,
    )
    clocks_mhz = window_clocks_mhz(window, supported_mhz)
    if len(clocks_mhz) < 2:
        raise GpuTableError(
            f"only {max(clocks_mhz)} MHz lies in the window of {window.filter_min_mhz} to"
            f" {window.filter_max_mhz} MHz at a step of {window.granularity_mhz}; a profile needs"
            " two clocks"
        )
    return clocks_mhz


# Time between two readings of the counter: short against its 100 ms, long against a driver call.
_BATCH_S = 0.02
_MOST_AT_ONCE = 10_000
# Time and repetitions after which the counter is considered stuck.
_STILL_S = 5.0
_STILL_REPETITIONS = 3

_FEWEST_MOVEMENTS = 4
_FEWEST_REPETITIONS = 4
# Growth of a window between two checks of its error.
_GROWTH = 1.25
# Limits of the drift between two windows, beyond twice their standard error.
_TIME_DRIFT = 0.005
_POWER_DRIFT = 0.01


@dataclass(frozen=True, kw_only=True)
class MeasuringRule:
    """Duration of the measurement of one instruction at one clock.

    Attributes:
        wanted_error: Target relative standard error of time and energy, above 0, below 1.
        min_periods: Least number of movements of the energy counter, at least 4.
        max_point_s: Longest time of a point in s, above 0.
        settle_window_s: Length in s of two windows that must agree first, above 0.
        max_settle_s: Time in s after which a point is measured without settling, above 0.

    Raises:
        ValueError: A value is out of its range; the text names it.
    """

    wanted_error: float = 0.005
    min_periods: int = 20
    max_point_s: float = 20.0
    settle_window_s: float = 1.0
    max_settle_s: float = 30.0

    def __post_init__(self) -> None:
        if not 0 < self.wanted_error < 1:
            raise ValueError(f"wanted_error must be above 0 and below 1, not {self.wanted_error}")
        if self.min_periods < _FEWEST_MOVEMENTS:
            raise ValueError(f"min_periods must be at least {_FEWEST_MOVEMENTS}")
        for name in ("max_point_s", "settle_window_s", "max_settle_s"):
            value: float = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be positive and finite, not {value}")


class Repetition:
    """Repetition of one instruction, with readings of the energy counter.

    Args:
        gpu: GPU that runs it.
        run_once: The instruction.
        now_s: Monotonic clock in s.
        renew_clock: Function that is called between batches, and raises if the clock was lost.
    """

    def __init__(
        self,
        gpu: GpuDevice,
        run_once: RunOnce,
        *,
        now_s: Callable[[], float],
        renew_clock: Callable[[], None],
    ) -> None:
        self._gpu = gpu
        self._run_once = run_once
        self._now_s = now_s
        self._renew_clock = renew_clock
        self._num_at_once = 1
        # Ends of the last batches: moment, repetitions and busy time so far.
        self._batch_ends: deque[tuple[float, int, float]] = deque([(now_s(), 0, 0.0)], maxlen=256)

    def run_for(self, seconds: float) -> None:
        """Repeat it for this time in s, at least once."""
        until_s = self._now_s() + seconds
        self._run_batch()
        while self._now_s() < until_s:
            self._run_batch()

    def settle(self, rule: MeasuringRule) -> bool:
        """Repeat it until time and power stop drifting; return whether they did in time.

        Raises:
            GpuError: The GPU cannot be read, or its energy counter does not move.
            WorkloadError: The instruction failed.
        """
        give_up_s = self._now_s() + rule.max_settle_s
        # Excludes one-time costs, such as a first allocation.
        self._run_batch()
        with watch_counter(self._gpu, self._now_s) as watch:
            before = self._settling_window(rule, watch)
            while True:
                after = self._settling_window(rule, watch)
                if _is_alike(before, after):
                    return True
                if self._now_s() >= give_up_s:
                    return False
                before = after

    def measure(self, rule: MeasuringRule) -> WindowEstimate:
        """Repeat it until the error is small enough, or the time is over.

        Raises:
            GpuError: The GPU cannot be read, or its energy counter does not move.
            WorkloadError: The instruction failed.
        """
        with watch_counter(self._gpu, self._now_s) as watch:
            return self._measure(rule, watch)

    def _measure(self, rule: MeasuringRule, watch: CounterWatch) -> WindowEstimate:
        readings = [self._next_movement(watch)]
        num_periods = rule.min_periods
        while True:
            readings.append(self._next_movement(watch))
            is_late = readings[-1].moment_s - readings[0].moment_s >= rule.max_point_s
            if not _is_enough(readings, _FEWEST_MOVEMENTS if is_late else num_periods):
                continue
            found = estimate(readings)
            if is_late or found.relative_error <= rule.wanted_error:
                return found
            # A check after every movement would stop at the first error that is small by chance.
            num_periods = math.ceil(_GROWTH * len(readings))

    def _settling_window(self, rule: MeasuringRule, watch: CounterWatch) -> WindowEstimate:
        readings = [self._next_movement(watch)]
        while (
            not _is_enough(readings, _FEWEST_MOVEMENTS)
            or readings[-1].moment_s - readings[0].moment_s < rule.settle_window_s
        ):
            readings.append(self._next_movement(watch))
        return estimate(readings)

    def _next_movement(self, watch: CounterWatch) -> CounterReading:
        """Repeat until the counter moves, and return the readings then."""
        began_s, num_before, _ = self._batch_ends[-1]
        while True:
            self._run_batch()
            if (movement := watch.next()) is not None:
                break
            now_s, num_repetitions, _ = self._batch_ends[-1]
            if now_s - began_s > _STILL_S and num_repetitions - num_before >= _STILL_REPETITIONS:
                raise GpuError(
                    f"the energy counter of {self._gpu.name} did not move for {_STILL_S:g} s,"
                    " so energy cannot be measured"
                )
        while watch.is_concurrent and self._batch_ends[-1][0] < movement.moment_s:
            self._run_batch()
        num_repetitions_then, busy_s = self._progress_at(movement.moment_s)
        return CounterReading(
            num_repetitions=num_repetitions_then, busy_s=busy_s, **asdict(movement)
        )

    def _progress_at(self, moment_s: float) -> tuple[float, float]:
        """Return repetitions and busy time in s until a moment; even progress in a batch."""
        after_s, num_after, busy_after_s = self._batch_ends[-1]
        for before_s, num_before, busy_before_s in reversed(self._batch_ends):
            if before_s <= moment_s < after_s:
                share = (moment_s - before_s) / (after_s - before_s)
                return (
                    num_before + share * (num_after - num_before),
                    busy_before_s + share * (busy_after_s - busy_before_s),
                )
            after_s, num_after, busy_after_s = before_s, num_before, busy_before_s
        _, num_repetitions, busy_s = self._batch_ends[-1]
        return num_repetitions, busy_s

    def _run_batch(self) -> None:
        self._renew_clock()
        num_now = self._num_at_once
        began_s = self._now_s()
        try:
            for _ in range(num_now):
                self._run_once()
        except Exception as error:
            raise WorkloadError(described(error)) from None
        ended_s = self._now_s()
        batch_s = ended_s - began_s
        _, num_repetitions, busy_s = self._batch_ends[-1]
        self._batch_ends.append((ended_s, num_repetitions + num_now, busy_s + batch_s))
        fitting = int(_BATCH_S * num_now / batch_s) if batch_s > 0 else _MOST_AT_ONCE
        # At most doubled, since one batch may be short by chance.
        self._num_at_once = max(1, min(fitting, 2 * num_now, _MOST_AT_ONCE))


def _is_enough(readings: list[CounterReading], num_movements: int) -> bool:
    num_repetitions = readings[-1].num_repetitions - readings[0].num_repetitions
    return len(readings) > num_movements and num_repetitions >= _FEWEST_REPETITIONS


def _is_alike(before: WindowEstimate, after: WindowEstimate) -> bool:
    time_error = math.hypot(before.time_error_s, after.time_error_s) / after.time_s
    power_error = math.hypot(
        before.energy_error_j / before.energy_j, after.energy_error_j / after.energy_j
    )
    time_drift = abs(after.time_s - before.time_s) / after.time_s
    power_drift = abs(after.power_w - before.power_w) / after.power_w
    return time_drift <= _TIME_DRIFT + 2 * time_error and power_drift <= (
        _POWER_DRIFT + 2 * power_error
    )


@dataclass(frozen=True, kw_only=True)
class StageProfiler:
    """Profiler of one stage's instructions on one GPU.

    Attributes:
        warm_up_s: Time in s that each instruction is run first, at its first clock.
        now_s: Monotonic clock in s; None: the emulated GPU's, else the system's.
        on_begin: Function that is called with each instruction and clock before its measurement.
    """

    gpu: GpuDevice
    workload: Workload
    rule: MeasuringRule
    warm_up_s: float = 0.0
    now_s: Callable[[], float] | None = None
    on_begin: Callable[[InstructionKind, int], None] = lambda kind, clock_mhz: None

    def measure(self, sweep: Sweep, clock: HeldClock) -> Iterator[MeasuredPoint]:
        """Yield each point when it is measured.

        Raises:
            GpuError: The GPU cannot be read, or its clock cannot be set.
            WorkloadError: An instruction failed.
        """
        warmed: set[InstructionKind] = set()

        def measure_point(kind: InstructionKind, clock_mhz: int) -> MeasuredPoint:
            self.on_begin(kind, clock_mhz)
            clock.set_mhz(clock_mhz)
            repetition = Repetition(
                self.gpu,
                self.workload.instructions[kind.value],
                now_s=self._time(),
                renew_clock=clock.renew,
            )
            try:
                if kind not in warmed:
                    warmed.add(kind)
                    repetition.run_for(self.warm_up_s)
                is_settled = repetition.settle(self.rule)
                found = repetition.measure(self.rule)
            except WorkloadError as error:
                raise WorkloadError(f"{kind} at {clock_mhz} MHz: {error}") from None
            return point_of(kind, clock_mhz, found, is_settled=is_settled)

        return sweep.run(measure_point)

    def _time(self) -> Callable[[], float]:
        if self.now_s is not None:
            return self.now_s
        gpu = self.gpu
        return gpu.emulated_time_s if isinstance(gpu, EmulatedDevice) else time.perf_counter
