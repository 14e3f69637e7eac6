"""The newest steps of a job by stages, kept up to date: each step is rendered when it changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from flyball_server.jobs.records import JobRecord
from flyball_server.jobs.registry.inspection import require_job
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.contract import JobReader
from flyball_server.views.stage_steps import StagesSummary, most_steps, steps_by_stage

# Steps that are kept; fewer where they would be made of more than so many measurements of single
# ranks, or hold more than so many stages.
KEPT_STEPS = 200
KEPT_MEASUREMENTS = 65_536
KEPT_STAGES = 16_384
# So often all of them are read again: what ranks posted late, or again after a restart, s.
RENEWAL_S = 10.0
# In between only steps after the complete ones are, and no more than so many measurements; where
# that leaves some out, all are read again.
_MEASUREMENTS_A_LOOK = 16_384
_FEWEST_A_LOOK = 4


@dataclass(frozen=True, kw_only=True)
class WindowStep:
    """A step as it stands.

    Attributes:
        revision: rises over all steps with each change of one.
        is_complete: whether all ranks of the job have posted it.
    """

    step: int
    revision: int
    is_complete: bool
    rendered: bytes


class StepWindow:
    """Looks at the newest steps of one job; one thread at a time.

    Args:
        render: a step as it is sent.
        clock: monotonic, s.
    """

    def __init__(
        self,
        render: Callable[[StagesSummary], bytes],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._render = render
        self._clock = clock
        self._steps: tuple[WindowStep, ...] = ()
        self._run: datetime | None = None
        self._revision = 0
        self._renewed_at_s = float("-inf")

    def look(self, services: JobServices, job_id: str) -> tuple[WindowStep, ...]:
        """The newest steps, rising; the same object where nothing has changed.

        Raises:
            UnknownJobError: no such job.
            StoreError: the store cannot be read.
        """
        now_s = self._clock()
        with services.store.reading() as reader:
            job = require_job(reader, job_id)
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

    def _newer(self, reader: JobReader, job: JobRecord) -> tuple[StagesSummary, ...] | None:
        """Steps after the complete ones; None: between these and those known some are left out."""
        some = max(_MEASUREMENTS_A_LOOK // job.in_force.num_ranks, _FEWEST_A_LOOK)
        limit = min(_num_kept(job), some)
        found = _read(reader, job, after_step=settled_step(self._steps), limit=limit)
        newest = self._steps[-1].step if self._steps else -1
        return None if len(found) == limit and found[0].step > newest else found

    def _take(
        self, job: JobRecord, kept: Sequence[WindowStep], found: Sequence[StagesSummary]
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
                    is_complete=summary.num_ranks >= job.in_force.num_ranks,
                    rendered=rendered,
                )
            steps[summary.step] = known
        newest = tuple(steps[step] for step in sorted(steps)[-_num_kept(job) :])
        if newest != self._steps:
            self._steps = newest


def _read(
    reader: JobReader, job: JobRecord, *, after_step: int, limit: int
) -> tuple[StagesSummary, ...]:
    return steps_by_stage(
        reader.list_stage_totals(job.job_id, after_step=after_step, num_steps=limit)
    )


def _num_kept(job: JobRecord) -> int:
    return most_steps(
        job.in_force, KEPT_STEPS, num_measurements=KEPT_MEASUREMENTS, num_stages=KEPT_STAGES
    )


def settled_step(steps: Sequence[WindowStep]) -> int:
    """The last of these steps up to which all are complete; -1: not even the first is."""
    settled = -1
    for each in steps:
        if not each.is_complete:
            break
        settled = each.step
    return settled
