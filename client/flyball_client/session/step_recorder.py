"""Recorder of a rank's steps, and the measurements that it reports of them."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from flyball_client.governor._base import ClockGovernor, ClockReport
from flyball_client.gpu._base import EmulatedDevice, GpuDevice
from flyball_client.session.instruction_timings import InstructionTiming, TimingRecorder
from flyball_client.session.plan_cursor import CompiledPlan
from flyball_wire.messages import ClockTiming, InstructionReport, StepMeasurement

_logger = logging.getLogger(__name__)


class StepMeter:
    """Reads clock and energy counter when a step begins and ends.

    The counter is as coarse as the GPU's (about 100 ms), so the energy of a single short step
    is rough; over many steps the roughness cancels, since each step begins where the last
    one's reading stood. A counter that fails is not asked again: energies are then None.

    Args:
        gpu: whose energy it is; an emulated one also gives the time and counts overruns.
        governor: of its clock, which reads the clock back and knows how often it was missed.
        clock_s: monotonic time, s; None: emulated time on an emulated GPU, else the system's.
        rank_name: for the log.
    """

    def __init__(
        self,
        gpu: GpuDevice,
        governor: ClockGovernor,
        *,
        clock_s: Callable[[], float] | None,
        rank_name: str,
    ) -> None:
        self._governor = governor
        self._gpu = gpu
        self._emulated = gpu if isinstance(gpu, EmulatedDevice) else None
        if clock_s is None:
            clock_s = time.monotonic if self._emulated is None else self._emulated.emulated_time_s
        self.clock_s = clock_s
        self._rank_name = rank_name
        self._has_counter = True
        self._began_s = 0.0
        self._began_j: float | None = None
        self._began_overruns = 0
        self._began_report = ClockReport()
        self._readings: list[tuple[float, float] | None] = []

    def begin(self) -> None:
        """A step begins."""
        self._began_j = self._energy_j()
        self._began_overruns = self._num_overruns()
        self._began_report = self._governor.report()
        self._readings.clear()
        self._began_s = self.clock_s()

    @property
    def num_readings(self) -> int:
        """Return how often the counter was read within the step, or could not be."""
        return len(self._readings)

    def read_within(self) -> None:
        """Read the counter now, within the step."""
        now_j, began_j = self._energy_j(), self._began_j
        is_read = now_j is not None and began_j is not None
        self._readings.append(
            (self.clock_s() - self._began_s, (now_j or 0.0) - (began_j or 0.0)) if is_read else None
        )

    def end(self, *, step: int, plan_version: int | None, num_unplanned: int) -> StepMeasurement:
        """The step is over: what it took."""
        time_s = self.clock_s() - self._began_s
        ended_j = self._energy_j()
        report, began = self._governor.report(), self._began_report
        is_measured = self._began_j is not None and ended_j is not None
        return StepMeasurement(
            step=step,
            plan_version=plan_version,
            time_s=time_s,
            energy_j=(ended_j or 0.0) - (self._began_j or 0.0) if is_measured else None,
            num_unplanned=num_unplanned,
            num_overruns=self._num_overruns() - self._began_overruns,
            num_clock_misses=report.num_misses - began.num_misses,
            num_power_capped=report.num_power_capped - began.num_power_capped,
            num_thermally_capped=report.num_thermally_capped - began.num_thermally_capped,
            sm_clock_mhz=report.mean_sm_clock_mhz(began),
        )

    def readings(self, num_wanted: int) -> tuple[tuple[float, float], ...] | None:
        """The `[s, J]` read within the step; None: they are not as many, or one failed."""
        readings = tuple(reading for reading in self._readings if reading is not None)
        return readings if len(readings) == len(self._readings) == num_wanted else None

    def _energy_j(self) -> float | None:
        if not self._has_counter:
            return None
        try:
            return self._gpu.total_energy_j()
        except Exception as error:
            self._has_counter = False
            _logger.warning("%s: energy is not measured: %s", self._rank_name, error)
            return None

    def _num_overruns(self) -> int:
        return 0 if self._emulated is None else self._emulated.num_overruns


_CLOCKS, _INSTRUCTIONS = "clocks", "instructions"


def asks_for_details(report: str) -> bool:
    """Return whether a plan with this `report` wants more than the totals of a step."""
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
    """Return how many entries its details have together."""
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


class StepRecorder:
    """Totals, instructions and counter readings of the step that runs; totals of the last ones.

    Args:
        meter: of time and energy.
        history_length: steps whose totals are kept.

    Attributes:
        timings: of the instructions.
    """

    def __init__(self, meter: StepMeter, history_length: int) -> None:
        self.timings = TimingRecorder(meter.clock_s)
        self._meter = meter
        self._history: deque[StepMeasurement] = deque(maxlen=history_length)
        self._plan: CompiledPlan | None = None
        self._counter_reads: tuple[int, ...] = ()

    @property
    def history(self) -> tuple[StepMeasurement, ...]:
        """Totals of the last steps, in order."""
        return tuple(self._history)

    def begin_step(self, plan: CompiledPlan | None) -> None:
        """A step begins, on this plan; None: on none."""
        self._plan = plan
        self._counter_reads = () if plan is None else plan.counter_reads
        self._meter.begin()
        self.timings.begin_step()

    def end_instruction(self, position: int) -> None:
        """The instruction that began last is over, after which the plan is at this position."""
        self.timings.end()
        if self._counter_reads:
            # In their order, so each once: an end may be told twice.
            number = self._meter.num_readings
            if number < len(self._counter_reads) and position == self._counter_reads[number]:
                self._meter.read_within()

    def end_step(
        self, *, step: int, plan_version: int | None, num_unplanned: int, were_clocks_set: bool
    ) -> StepMeasurement:
        """The step is over: its totals, and what the plan asks for beside them.

        Args:
            step: its number.
            plan_version: as it is told.
            num_unplanned: instructions that the plan did not expect.
            were_clocks_set: to the end of the step.
        """
        totals = self._meter.end(step=step, plan_version=plan_version, num_unplanned=num_unplanned)
        self.timings.end_step()
        self._history.append(totals)
        plan = self._plan
        if plan is None:
            return totals
        told = totals
        if plan.counter_reads:
            readings = self._meter.readings(len(plan.counter_reads))
            told = replace(told, counter_readings=readings)
        if asks_for_details(plan.report):
            told = with_details(
                told, self.timings.last_step(), plan.report, were_clocks_set=were_clocks_set
            )
        return told
