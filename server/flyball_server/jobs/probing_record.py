"""What the store has of a job's online profiling: ranks, probe plans, what was measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flyball_profiles.gpu_windows import GpuWindow
from flyball_server.jobs.probing_setup import probe_setup, probed_versions, stage_steps
from flyball_server.jobs.records import JobRecord, JobSpec, PlanRecord, RankRecord
from flyball_server.jobs.store import JobReader
from flyball_server.planning.probe_plan import ProbePlan
from flyball_server.profiling.observations import ProbedVersion, ProbeSetup, StageStep

# Of the newest steps some may still be without the last rank's measurement.
_LOOK_BACK_STEPS = 8


@dataclass(frozen=True, kw_only=True)
class ProbingRecord:
    """Everything that the next move depends on.

    Attributes:
        versions: probe plans, oldest first.
        observed: the stages' steps from the first version's first step on.
    """

    spec: JobSpec
    ranks: tuple[RankRecord, ...]
    versions: tuple[ProbedVersion, ...]
    observed: tuple[StageStep, ...]

    @property
    def first_step(self) -> int | None:
        """Of the first version; None: not named yet."""
        return self.versions[0].first_step if self.versions else None

    @property
    def num_steps(self) -> int:
        """Looked at so far."""
        return len({step.step for step in self.observed})

    def setup(self, gpu_table: Callable[[str], GpuWindow]) -> ProbeSetup:
        """What is to be profiled.

        Raises:
            InvalidFieldError, GpuTableError, PlanningError: the job cannot be.
        """
        window = None if self.spec.gpu is None else gpu_table(self.spec.gpu)
        return probe_setup(self.spec, self.ranks, window)


def read_probing(reader: JobReader, job: JobRecord) -> ProbingRecord | None:
    """The record, where there may be something to do; None: ranks or steps are awaited."""
    ranks = reader.list_ranks(job.job_id)
    if len(ranks) < job.in_force.num_ranks:
        return None
    plans = _probe_plans(reader, job.job_id)
    if plans and not _is_measured(reader, plans[-1], len(ranks)):
        return None
    return ProbingRecord(
        spec=job.in_force,
        ranks=ranks,
        versions=probed_versions(plans),
        observed=_observed(reader, job.job_id, ranks, plans),
    )


def _probe_plans(reader: JobReader, job_id: str) -> list[PlanRecord]:
    plans = [reader.find_plan(job_id, entry.version) for entry in reader.list_activations(job_id)]
    return [plan for plan in plans if plan is not None and isinstance(plan.plan, ProbePlan)]


def _is_measured(reader: JobReader, newest: PlanRecord, num_ranks: int) -> bool:
    """Whether all ranks have told of the last step of the newest version's cycle, or a later."""
    if newest.first_step is None:
        return False
    last_step = newest.first_step + newest.cycle_length - 1
    counts: dict[int, int] = {}
    for record in reader.list_newest_steps(newest.job_id, _LOOK_BACK_STEPS):
        counts[record.step] = counts.get(record.step, 0) + 1
    return any(step >= last_step and count >= num_ranks for step, count in counts.items())


def _observed(
    reader: JobReader, job_id: str, ranks: tuple[RankRecord, ...], plans: list[PlanRecord]
) -> tuple[StageStep, ...]:
    first_step = plans[0].first_step if plans else None
    if first_step is None:
        return ()
    newest = reader.list_newest_steps(job_id, 1)
    steps = reader.list_steps(job_id, first_step, newest[-1].step + 1) if newest else ()
    details = reader.list_step_details(job_id, first_step)
    return stage_steps(probed_versions(plans), ranks, steps, details)
