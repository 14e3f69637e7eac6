"""The newest steps of a job by stages, kept up to date: each step is rendered when it changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from flyball_server.jobs.inspection import require_job
from flyball_server.jobs.records import JobRecord
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.stage_steps import StagesSummary, most_steps, steps_by_stage
from flyball_server.jobs.store import JobReader

# Steps that are kept; fewer where they would be made of more than so many measurements of single
# ranks, or hold more than so many stages.
KEPT_STEPS = 200
KEPT_MEASUREMENTS = 65_536
KEPT_STAGES = 16_384
# So often all of them are read again: what ranks posted late, or again after a restart, s.
RENEWAL_S = 10.0
# In between only steps after the complete ones are, and no more than so many measurements.
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
            after_step = -1 if is_renewal else settled_step(self._steps)
            found = _read(reader, job, after_step=after_step, is_renewal=is_renewal)
        if is_other_run:
            self._steps, self._run = (), job.created_at
        if is_renewal:
            self._renewed_at_s = now_s
        self._take(job, () if is_renewal else self._steps, found)
        return self._steps

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
    reader: JobReader, job: JobRecord, *, after_step: int, is_renewal: bool
) -> tuple[StagesSummary, ...]:
    num_steps = _num_kept(job)
    if not is_renewal:
        some = max(_MEASUREMENTS_A_LOOK // job.in_force.num_ranks, _FEWEST_A_LOOK)
        num_steps = min(num_steps, some)
    return steps_by_stage(
        reader.list_stage_totals(job.job_id, after_step=after_step, num_steps=num_steps)
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
