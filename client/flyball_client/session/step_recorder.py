"""What a rank keeps of the steps that it trains, and what it tells of them."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from flyball_client.session.instruction_timings import TimingRecorder
from flyball_client.session.plan_cursor import CompiledPlan
from flyball_client.session.step_details import asks_for_details, with_details
from flyball_client.session.step_meter import StepMeter
from flyball_wire.messages import StepMeasurement


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
