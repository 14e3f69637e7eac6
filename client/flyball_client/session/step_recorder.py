"""Recorder of a rank's steps, and the measurements that are posted of them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from statistics import fmean, variance

from flyball_client.governor._base import ClockGovernor, ClockReport
from flyball_client.gpu._base import EmulatedDevice, GpuDevice
from flyball_client.session.conditions_watch import ConditionsWatch
from flyball_client.session.energy_reader import EnergyCallback, EnergyReader
from flyball_client.session.instruction_timings import InstructionTiming, TimingRecorder
from flyball_client.session.plan_cursor import CompiledPlan
from flyball_pipeline.work import StepWork
from flyball_wire.measurements import (
    ClockTiming,
    InstructionReport,
    MeasurementDetail,
    StepMeasurement,
    StepPlanReport,
)
from flyball_wire.options import MAX_TEXT_CHARACTERS

_ENERGY_TIMEOUT_S = 1.0
# Counts of a step that its figures have, and their totals.
_COUNTS = (
    "num_unplanned",
    "num_overruns",
    "num_clock_misses",
    "num_power_capped",
    "num_thermally_capped",
)


class StepMetrics:
    """Figures of the last measured step, and totals of all of them."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._totals: dict[str, float] = {
            "total_num_steps": 0.0,
            "total_num_steps_without_plan": 0.0,
            "total_num_steps_with_own_plan": 0.0,
            "total_time_s": 0.0,
            **{f"total_{count}": 0.0 for count in _COUNTS},
        }

    def add(self, step: StepMeasurement) -> None:
        """Add a measured step."""
        last = {
            "step": float(step.step),
            "plan_version": float(step.plan_version or 0),
            "step_time_s": step.time_s,
            **{f"step_{count}": float(getattr(step, count)) for count in _COUNTS},
        }
        if step.energy_j is not None:
            last["step_energy_j"] = step.energy_j
            if step.time_s > 0:
                last["step_power_w"] = step.energy_j / step.time_s
        if step.sm_clock_mhz is not None:
            last["step_sm_clock_mhz"] = step.sm_clock_mhz
        if step.step_plan is not None:
            last["step_slack"], _, _, last["step_planned_saving_j"] = step.step_plan
        totals = self._totals
        totals["total_num_steps"] += 1
        totals["total_num_steps_without_plan"] += step.plan_version is None
        totals["total_num_steps_with_own_plan"] += step.step_plan is not None
        for name in ("time_s", "energy_j", "planned_saving_j", *_COUNTS):
            if (value := last.get(f"step_{name}")) is not None:
                totals[f"total_{name}"] = totals.get(f"total_{name}", 0.0) + value
        self._last = last

    def values(self) -> dict[str, float]:
        """Return the figures by name; one that was not measured is missing."""
        return self._last | self._totals


class _Counter:
    """Energy counter at one moment, once it is read."""

    def __init__(self) -> None:
        self.energy_j: float | None = None

    def set(self, energy_j: float | None) -> None:
        self.energy_j = energy_j


class StepMeter:
    """Readings of clock and energy counter at the start and end of a step.

    The energy counter moves about every 100 ms, so the energy of a single short step is
    imprecise; over many steps the errors cancel. Where it cannot be read, energies are None.

    Args:
        gpu: GPU of the rank; an emulated one also provides the time and counts overruns. None: it
            has none, and energies are None.
        governor: Governor of its clock, which reads the clock back and counts misses.
        clock_s: Monotonic clock in s; None: emulated time on an emulated GPU, else the system's.
        rank_name: Job and rank, for the log.
    """

    def __init__(
        self,
        gpu: GpuDevice | None,
        governor: ClockGovernor,
        *,
        clock_s: Callable[[], float] | None,
        rank_name: str,
    ) -> None:
        self._governor = governor
        self._emulated = gpu if isinstance(gpu, EmulatedDevice) else None
        if clock_s is None:
            clock_s = time.monotonic if self._emulated is None else self._emulated.emulated_time_s
        self.clock_s = clock_s
        self.energy = EnergyReader(gpu, rank_name=rank_name)
        self.conditions = ConditionsWatch(gpu, rank_name=rank_name)
        self._began_s = 0.0
        self._began = _Counter()
        self._began_overruns = 0
        self._began_report = ClockReport()

    def begin(self) -> None:
        """Start a step."""
        self._began = _Counter()
        self.energy.request(self._began.set)
        self._began_overruns = self._num_overruns()
        self._began_report = self._governor.report()
        self._began_s = self.clock_s()

    def end(
        self,
        *,
        step: int,
        plan_version: int | None,
        plan_id: str | None,
        num_unplanned: int,
        no_clocks: str | None,
    ) -> StepMeasurement:
        """End the step, and return its totals without the energy."""
        time_s = self.clock_s() - self._began_s
        report, began = self._governor.report(), self._began_report
        return StepMeasurement(
            step=step,
            plan_version=plan_version,
            time_s=time_s,
            energy_j=None,
            num_unplanned=num_unplanned,
            num_overruns=self._num_overruns() - self._began_overruns,
            num_clock_misses=report.num_misses - began.num_misses,
            num_power_capped=report.num_power_capped - began.num_power_capped,
            num_thermally_capped=report.num_thermally_capped - began.num_thermally_capped,
            sm_clock_mhz=report.mean_sm_clock_mhz(began),
            plan_id=plan_id,
            no_clocks=None if no_clocks is None else no_clocks[:MAX_TEXT_CHARACTERS],
        )

    def request_energy(self, then: EnergyCallback) -> None:
        """Call this function with the energy in J of the step that ends; None: not measured."""
        began = self._began

        def with_energy(ended_j: float | None) -> None:
            began_j = began.energy_j
            # A counter that has fallen counts again from somewhere, as of a new driver.
            is_measured = began_j is not None and ended_j is not None and ended_j >= began_j
            then((ended_j or 0.0) - (began_j or 0.0) if is_measured else None)

        self.energy.request(with_energy)

    def _num_overruns(self) -> int:
        return 0 if self._emulated is None else self._emulated.num_overruns


def with_details(
    measurement: StepMeasurement,
    timings: Sequence[InstructionTiming],
    detail: MeasurementDetail,
) -> StepMeasurement:
    """Return the measurement with the details that the rank's plan requests.

    Args:
        measurement: Totals of the step.
        timings: Timings of its instructions, in the order of execution.
        detail: Detail that the rank's plan requests, not the totals alone.
    """
    were_clocks_set = measurement.no_clocks is None  # else clocks are reported as None
    return replace(
        measurement,
        by_clock=_by_clock(timings, were_clocks_set=were_clocks_set),
        instructions=_each(timings, were_clocks_set=were_clocks_set)
        if detail == MeasurementDetail.INSTRUCTIONS
        else None,
    )


def num_details(measurement: StepMeasurement) -> int:
    """Return the number of entries of its details."""
    details = (measurement.by_clock, measurement.instructions)
    return sum(len(entries or ()) for entries in details)


def _by_clock(
    timings: Iterable[InstructionTiming], *, were_clocks_set: bool
) -> tuple[ClockTiming, ...]:
    """Return counts, means and variances by kind, chunk and clock, in order of appearance."""
    times_s: dict[tuple[str, int, int | None], list[float]] = {}
    for timing in timings:
        # Instructions without a recorded end have no time.
        if timing.compute_time_s > 0:
            sm_clock_mhz = timing.sm_clock_mhz if were_clocks_set else None
            key = (timing.kind, timing.chunk, sm_clock_mhz)
            times_s.setdefault(key, []).append(timing.compute_time_s)
    return tuple((*key, len(of_key), *_mean_variance(of_key)) for key, of_key in times_s.items())


def _mean_variance(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and sample variance; the variance of one value is 0."""
    return fmean(values), variance(values) if len(values) > 1 else 0.0


def _each(
    timings: Iterable[InstructionTiming], *, were_clocks_set: bool
) -> tuple[InstructionReport, ...]:
    return tuple(
        (
            timing.kind,
            timing.microbatch,
            timing.chunk,
            timing.began_s,
            timing.compute_time_s,
            timing.receive_time_s,
            timing.send_time_s,
            timing.sm_clock_mhz if were_clocks_set else None,
        )
        for timing in timings
    )


class StepRecorder:
    """Totals and instructions of the current step; totals of the last ones."""

    def __init__(self, meter: StepMeter, history_length: int) -> None:
        self.timings = TimingRecorder(meter.clock_s)
        self.metrics = StepMetrics()
        self._meter = meter
        self._history: deque[StepMeasurement] = deque(maxlen=history_length)
        self._plan: CompiledPlan | None = None
        # Steps begun on this plan without a break.
        self._num_on_plan = 0

    @property
    def history(self) -> tuple[StepMeasurement, ...]:
        """Return the totals of the last steps, in order; wait for the last step's energy."""
        self._meter.energy.wait(_ENERGY_TIMEOUT_S)
        return tuple(self._history)

    def begin_step(self, plan: CompiledPlan | None) -> None:
        """Start a step on this plan; None: without a plan."""
        self._num_on_plan = self._num_on_plan + 1 if plan is self._plan else 1
        self._plan = plan
        self._meter.begin()
        self.timings.begin_step()

    def end_step(
        self,
        *,
        step: int,
        plan_version: int | None,
        num_unplanned: int,
        no_clocks: str | None,
        work: StepWork | None = None,
        step_plan: StepPlanReport | None = None,
        then: Callable[[StepMeasurement], None],
    ) -> None:
        """End the step, and call `then` with its totals and the details that the plan requests.

        That is once the energy is read, on a real GPU by the thread that reads it. The other
        arguments are the fields of StepMeasurement.
        """
        plan = self._plan
        totals = self._meter.end(
            step=step,
            plan_version=plan_version,
            plan_id=None if plan is None or plan_version is None else plan.plan_id,
            num_unplanned=num_unplanned,
            no_clocks=no_clocks,
        )
        self.timings.end_step()
        detail = MeasurementDetail.TOTALS if plan is None else self._detail(plan)
        measured = totals
        if detail != MeasurementDetail.TOTALS:
            measured = with_details(totals, self.timings.last_step(), detail)

        def with_energy(energy_j: float | None) -> None:
            step_totals = replace(totals, energy_j=energy_j, step_plan=step_plan)
            self._history.append(step_totals)
            self.metrics.add(step_totals)
            conditions = self._meter.conditions.read_if_due()
            then(
                replace(
                    measured,
                    energy_j=energy_j,
                    work=work,
                    step_plan=step_plan,
                    conditions=conditions,
                )
            )

        self._meter.request_energy(with_energy)

    def close(self) -> None:
        """Wait until the energies of all steps are read, at most 1 s; none are read later."""
        self._meter.energy.close(_ENERGY_TIMEOUT_S)

    def _detail(self, plan: CompiledPlan) -> MeasurementDetail:
        """Return the detail of this step; clocks settle in the first step on a plan."""
        is_timed = 1 < self._num_on_plan <= 1 + plan.num_timed_steps
        return MeasurementDetail.INSTRUCTIONS if is_timed else plan.measurement_detail
