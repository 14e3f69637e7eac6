"""Use case: a job's measured steps by stages, up to the limit of an answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from flyball_server.jobs.measurements.pruning import MOST_MEASUREMENTS, MOST_STAGES, most_steps
from flyball_server.jobs.records import JobRecord
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.step_records import StageTotals
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_wire.read_models import StageOfStep, StagesOfStep


def list_stage_steps(
    services: JobServices, job_id: str, *, limit: int, after_step: int = -1
) -> tuple[StagesOfStep, ...]:
    """Return the job's newest `limit` steps after `after_step`, rising; fewer if too large.

    Raises:
        UnknownJobError: the job does not exist.
    """
    with services.store.reading() as reader:
        spec = reader.require_job(job_id).spec
        num_steps = most_steps(
            spec, limit, num_measurements=MOST_MEASUREMENTS, num_stages=MOST_STAGES
        )
        totals = reader.list_stage_totals(job_id, after_step=after_step, num_steps=num_steps)
    return steps_by_stage(totals)


def steps_by_stage(totals: Iterable[StageTotals]) -> tuple[StagesOfStep, ...]:
    """Return each step of these totals, which are sorted by step, then stage."""
    return tuple(
        _step(step, tuple(of_step)) for step, of_step in groupby(totals, key=lambda each: each.step)
    )


def _step(step: int, totals: Sequence[StageTotals]) -> StagesOfStep:
    versions = {total.plan_version for total in totals if total.unknown_version is None}
    unknown = {total.unknown_version for total in totals if total.unknown_version is not None}
    return StagesOfStep(
        step=step,
        num_ranks=sum(total.num_ranks for total in totals),
        plan_versions=tuple(sorted(versions, key=lambda version: version or 0)),
        time_s=max(total.time_s for total in totals),
        energy_j=sum_of_energies_j(totals),
        stages=tuple(
            _stage(stage, tuple(of_stage))
            for stage, of_stage in groupby(totals, key=lambda each: each.stage)
        ),
        unknown_versions=tuple(sorted(unknown)),
    )


def _stage(stage: int, totals: Sequence[StageTotals]) -> StageOfStep:
    return StageOfStep(
        stage=stage,
        num_ranks=sum(total.num_ranks for total in totals),
        time_s=max(total.time_s for total in totals),
        energy_j=sum_of_energies_j(totals),
        num_clock_misses=sum(total.num_clock_misses for total in totals),
        num_power_capped=sum(total.num_power_capped for total in totals),
        num_thermally_capped=sum(total.num_thermally_capped for total in totals),
        sm_clock_mhz=mean_clock_mhz(totals),
    )


def sum_of_energies_j(totals: Sequence[StageTotals]) -> float | None:
    """Return the sum of the energies, J; None: one could not be read."""
    energies_j = [total.energy_j for total in totals if total.energy_j is not None]
    return sum(energies_j) if len(energies_j) == len(totals) else None


def mean_clock_mhz(totals: Sequence[StageTotals]) -> float | None:
    """Return the mean over all ranks with a clock reading, MHz; None: no readings."""
    sums_mhz = [
        total.num_with_clock * total.sm_clock_mhz
        for total in totals
        if total.sm_clock_mhz is not None
    ]
    return sum(sums_mhz) / sum(total.num_with_clock for total in totals) if sums_mhz else None


# Limits of the kept steps: their number, the measurements of single ranks in them, and their
# stages.
KEPT_STEPS = 200
KEPT_MEASUREMENTS = 65_536
KEPT_STAGES = 16_384
# Period at which all of them are read again, for late and repeated posts, s.
RENEWAL_S = 10.0
# In between only steps after the complete ones are read, up to this number of measurements; if
# some are left out, all are read again.
_MEASUREMENTS_PER_READ = 16_384
_FEWEST_STEPS_PER_READ = 4


@dataclass(frozen=True, kw_only=True)
class WindowStep:
    """A step in its current state.

    Attributes:
        revision: number that rises over all steps with each change of one.
        is_complete: true once all ranks of the job have posted it.
    """

    step: int
    revision: int
    is_complete: bool
    rendered: bytes


class StepWindow:
    """Window of the newest steps of one job; one thread at a time.

    Args:
        render: function that serialises a step.
        clock: monotonic, s.
    """

    def __init__(
        self,
        render: Callable[[StagesOfStep], bytes],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._render = render
        self._clock = clock
        self._steps: tuple[WindowStep, ...] = ()
        self._run: datetime | None = None
        self._revision = 0
        self._renewed_at_s = float("-inf")

    def read(self, reader: JobReader, job: JobRecord) -> tuple[WindowStep, ...]:
        """Return the newest steps, rising; the same object if nothing has changed.

        Raises:
            StoreError: the store cannot be read.
        """
        now_s = self._clock()
        is_other_run = self._run != job.created_at
        is_renewal = is_other_run or now_s - self._renewed_at_s >= RENEWAL_S
        found = None if is_renewal else self._newer(reader, job)
        if found is None:
            is_renewal, found = True, _read(reader, job, after_step=-1, limit=_num_kept(job))
        if is_other_run:
            self._steps, self._run = (), job.created_at
        if is_renewal:
            self._renewed_at_s = now_s
        self._take(job, () if is_renewal else self._steps, found)
        return self._steps

    def _newer(self, reader: JobReader, job: JobRecord) -> tuple[StagesOfStep, ...] | None:
        """Return the steps after the complete ones; None: some in between were left out."""
        num_steps = max(
            _MEASUREMENTS_PER_READ // job.spec.num_expected_ranks, _FEWEST_STEPS_PER_READ
        )
        limit = min(_num_kept(job), num_steps)
        found = _read(reader, job, after_step=settled_step(self._steps), limit=limit)
        newest = self._steps[-1].step if self._steps else -1
        return None if len(found) == limit and found[0].step > newest else found

    def _take(
        self, job: JobRecord, kept: Sequence[WindowStep], found: Sequence[StagesOfStep]
    ) -> None:
        before = {known.step: known for known in self._steps}
        steps = {known.step: known for known in kept}
        for summary in found:
            rendered = self._render(summary)
            known = before.get(summary.step)
            if known is None or known.rendered != rendered:
                self._revision += 1
                known = WindowStep(
                    step=summary.step,
                    revision=self._revision,
                    is_complete=summary.num_ranks >= job.spec.num_expected_ranks,
                    rendered=rendered,
                )
            steps[summary.step] = known
        newest = tuple(steps[step] for step in sorted(steps)[-_num_kept(job) :])
        if newest != self._steps:
            self._steps = newest


def _read(
    reader: JobReader, job: JobRecord, *, after_step: int, limit: int
) -> tuple[StagesOfStep, ...]:
    return steps_by_stage(
        reader.list_stage_totals(job.job_id, after_step=after_step, num_steps=limit)
    )


def _num_kept(job: JobRecord) -> int:
    return most_steps(
        job.spec, KEPT_STEPS, num_measurements=KEPT_MEASUREMENTS, num_stages=KEPT_STAGES
    )


def older_steps(
    services: JobServices,
    job_id: str,
    render: Callable[[StagesOfStep], bytes],
    *,
    after_step: int,
    num_steps: int,
) -> tuple[WindowStep, ...]:
    """Return the newest steps at most, also those before a window; fewer if too large.

    Raises:
        UnknownJobError: the job does not exist.
        StoreError: the store cannot be read.
    """
    found = list_stage_steps(services, job_id, limit=num_steps, after_step=after_step)
    return tuple(
        WindowStep(step=total.step, revision=0, is_complete=True, rendered=render(total))
        for total in found
    )


def settled_step(steps: Sequence[WindowStep]) -> int:
    """Return the last step up to which all are complete; -1: the first is incomplete."""
    settled = -1
    for step in steps:
        if not step.is_complete:
            break
        settled = step.step
    return settled
