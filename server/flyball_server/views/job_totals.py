"""Running totals of a job's steps: each step is read once, when it is settled.

They are computed from the store, so that a restarted planner reports the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flyball_server.jobs.loop_state import GpuChange
from flyball_server.jobs.measurements.step_pairs import StepKinds, WholeStep
from flyball_server.jobs.measurements.step_reading import MOST_LATER, settled_steps, whole_step
from flyball_server.jobs.records import StepTotals
from flyball_server.jobs.savings.savings import JobSavings, SavingsFold
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_wire.read_models import MeasuredIteration, PredictedIteration, StepClocks

# Limit of single ranks' measurements in one read.
_ROWS_A_PIECE = 16_384
_FEWEST_A_PIECE = 8
_WIDER = 4
# Number of newest steps whose mean is the job's current measurement.
NEWEST_STEPS = 16


@dataclass
class Sum:
    """Sum of steps: their number, time, s, and the energy of those that have one, J."""

    num_steps: int = 0
    time_s: float = 0.0
    energy_j: float = 0.0

    def add(self, step: WholeStep) -> None:
        """Add the next step."""
        self.num_steps += 1
        self.time_s += step.time_s
        self.energy_j += step.energy_j or 0.0


class JobTotals:
    """Sums over the job's settled steps.

    A step is settled when all ranks have posted it, or never will. Steps posted again later, by a
    run that has started over from a checkpoint, are not counted again.

    Attributes:
        sums: sums over steps that all ranks have posted, by kind of clocks.
        num_incomplete: number of steps that not all ranks have posted.
        predicted_j, predicted_baseline_j: predicted energy of the steps in `sums[PLAN]`, on their
            plan and at the highest clocks, J.
    """

    def __init__(self) -> None:
        self.sums = {clocks: Sum() for clocks in StepClocks}
        self.num_incomplete = 0
        self.predicted_j = 0.0
        self.predicted_baseline_j = 0.0
        self.num_unplanned = 0
        self.num_clock_misses = 0
        self.num_power_capped = 0
        self.num_thermally_capped = 0
        self.after_step = -1
        self._widening = 1
        self._kinds: dict[int, StepKinds] = {}
        self._predictions: dict[int, PredictedIteration] = {}
        self._fold = SavingsFold(self._kinds)
        self._newest: deque[WholeStep] = deque(maxlen=NEWEST_STEPS)
        self._newest_is: tuple[int | None, StepClocks] | None = None
        self._savings = self._fold.so_far()
        self._savings_after: tuple[int, Sequence[GpuChange]] = (self.after_step, ())

    def know(self, version: int, kinds: StepKinds, prediction: PredictedIteration | None) -> None:
        """Add a version that steps may have run on; before they are read."""
        self._kinds[version] = kinds
        if prediction is not None:
            self._predictions[version] = prediction

    def read(
        self, reader: JobReader, job_id: str, num_ranks: int, is_late: Callable[[], bool]
    ) -> bool:
        """Read on in pieces; False: out of time before all settled steps were read."""
        num_steps = max(_ROWS_A_PIECE // num_ranks, _FEWEST_A_PIECE)
        while True:
            limit = min(num_steps * self._widening, 2 * MOST_LATER)
            piece = reader.list_step_totals(job_id, after_step=self.after_step, limit=limit)
            settled = settled_steps(piece, num_ranks)
            for totals in settled:
                self._add(totals, whole_step(totals, num_ranks))
            if len(piece) < limit:
                return True
            # While the first step is awaited, later ones decide whether it is given up.
            self._widening = 1 if settled else self._widening * _WIDER
            if is_late():
                return False

    @property
    def newest_steps(self) -> tuple[int, ...]:
        """Newest equal steps that all ranks have posted, rising."""
        return tuple(step.step for step in self._newest)

    @property
    def newest(self) -> MeasuredIteration | None:
        """Mean of the newest steps; None: no steps."""
        if not self._newest or self._newest_is is None:
            return None
        version, clocks = self._newest_is
        num_steps = len(self._newest)
        energies_j = [step.energy_j for step in self._newest if step.energy_j is not None]
        return MeasuredIteration(
            clocks=clocks,
            version=version,
            first_step=self._newest[0].step,
            last_step=self._newest[-1].step,
            num_steps=num_steps,
            iteration_time_s=sum(step.time_s for step in self._newest) / num_steps,
            energy_j=sum(energies_j) / num_steps if len(energies_j) == num_steps else None,
        )

    @property
    def num_steps(self) -> int:
        """Number of steps so far that all ranks have posted, at any clocks."""
        return sum(counted.num_steps for counted in self.sums.values())

    def savings(self, gpu_changes: Sequence[GpuChange] = ()) -> JobSavings:
        """Return the report's savings from the steps so far, with GPUs that were replaced."""
        after = (self.after_step, gpu_changes)
        if self._savings_after != after:
            self._savings = self._fold.so_far(gpu_changes)
            self._savings_after = after
        return self._savings

    def _add(self, totals: StepTotals, step: WholeStep) -> None:
        self.after_step = step.step
        self._fold.add(step)
        if step.is_unknown:
            return
        self.num_unplanned += totals.num_unplanned
        self.num_clock_misses += totals.num_clock_misses
        self.num_power_capped += totals.num_power_capped
        self.num_thermally_capped += totals.num_thermally_capped
        if not step.is_complete:
            self.num_incomplete += 1
            return
        clocks = self._clocks(step)
        self.sums[clocks].add(step)
        prediction = self._predictions.get(step.version or 0)
        if clocks == StepClocks.PLAN and prediction is not None:
            self.predicted_j += prediction.energy_j
            self.predicted_baseline_j += prediction.baseline_energy_j
        self._add_to_newest(step, clocks)

    def _clocks(self, step: WholeStep) -> StepClocks:
        if step.is_mixed:
            return StepClocks.MIXED
        if step.version is None:
            return StepClocks.DEFAULT
        kinds = self._kinds.get(step.version, StepKinds())
        if kinds.is_probe:
            return StepClocks.PROFILING
        return StepClocks.HIGHEST if kinds.is_baseline(step.step) else StepClocks.PLAN

    def _add_to_newest(self, step: WholeStep, clocks: StepClocks) -> None:
        kinds = self._kinds.get(step.version or 0, StepKinds())
        if clocks == StepClocks.MIXED or (clocks == StepClocks.HIGHEST and kinds.is_interleaved):
            return  # neither is a setting that the job keeps
        if self._newest_is != (step.version, clocks):
            self._newest.clear()
            self._newest_is = (step.version, clocks)
        self._newest.append(step)
