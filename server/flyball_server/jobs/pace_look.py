"""A look at what a running job's ranks measured, for their paces."""

from __future__ import annotations

from collections import deque

from flyball_server.jobs.control import JobControl
from flyball_server.jobs.inspection import newest_version, require_job, require_plan
from flyball_server.jobs.pace import PaceRules, Paces, find_paces
from flyball_server.jobs.pace_steps import ClockTimes, RankStep, clock_times, rank_step
from flyball_server.jobs.records import ADAPT_FRONTIER, PlanRecord, RankRecord
from flyball_server.jobs.store import JobReader
from flyball_server.planning.probe_plan import ProbePlan

# Of a version's steps, whatever the store still has: a run that started over has later ones too.
_MOST_STEPS = 128


class SeenSteps:
    """The newest steps of a plan version that were read already.

    A job may have hundreds of ranks, and the same steps would be read again at each look. What is
    forgotten is read again.

    Attributes:
        by_rank: usable steps, in their order.
        newest: by rank, the newest step that was read, usable or not.
    """

    def __init__(self) -> None:
        self._version: int | None = None
        self.by_rank: dict[int, deque[RankStep]] = {}
        self.newest: dict[int, int] = {}

    def read(
        self, reader: JobReader, plan: PlanRecord, first_step: int, num_steps: int
    ) -> list[RankStep]:
        """All usable ones among a rank's newest `num_steps` on this version, its first left out."""
        if self._version != plan.version:
            self._version = plan.version
            self.by_rank, self.newest = {}, {}
        ranks = {rank.rank: rank for rank in reader.list_ranks(plan.job_id)}
        newest_step = newest_measured_step(reader, plan.job_id)
        if newest_step is None:
            return []
        begin = min((self.newest.get(rank, first_step) for rank in ranks), default=first_step) + 1
        begin = max(begin, first_step + 1, newest_step - num_steps + 1)
        if not self._add(reader, plan, ranks, begin, num_steps) and not self.newest:
            # A run that started over has older steps with higher numbers.
            self._add(reader, plan, ranks, first_step + 1, num_steps)
        return [step for of_rank in self.by_rank.values() for step in of_rank]

    def _add(
        self,
        reader: JobReader,
        plan: PlanRecord,
        ranks: dict[int, RankRecord],
        begin: int,
        num_steps: int,
    ) -> bool:
        """Whether there were steps on this version from `begin` on."""
        profile = reader.find_profile(plan.job_id)
        records = {
            (record.rank, record.step): record
            for record in reader.list_steps(plan.job_id, begin, begin + _MOST_STEPS)
            if record.plan_version == plan.version
        }
        if profile is None or not records:
            return False
        times_s: dict[int, ClockTimes] = {}
        for detail in reader.list_step_details(plan.job_id, begin):
            record = records.get((detail.rank, detail.step))
            if record is None or detail.step <= self.newest.get(detail.rank, begin - 1):
                continue
            stage = ranks[detail.rank].stage
            if stage not in times_s:
                times_s[stage] = clock_times(profile, stage)
            step = rank_step(record, detail, times_s[stage])
            if step is not None:
                self.by_rank.setdefault(detail.rank, deque(maxlen=num_steps)).append(step)
        for rank, step_number in records:
            self.newest[rank] = max(step_number, self.newest.get(rank, 0))
        return True


def newest_measured_step(reader: JobReader, job_id: str) -> int | None:
    """The newest step that a rank has measured; None: none yet."""
    return max((record.step for record in reader.list_newest_steps(job_id, 1)), default=None)


def measured_paces(
    reader: JobReader,
    job_id: str,
    control: JobControl,
    seen: SeenSteps,
    *,
    now_unix_s: float,
    min_steps: int,
    rules: PaceRules | None = None,
) -> Paces | None:
    """What the ranks' paces are found to be; None: this is no time to look.

    That is while the newest plan does not hold yet, or has not held for `min_steps` steps, so
    that plans do not flap; and while steps are compared with the highest clocks.

    Args:
        reader: of the moment.
        job_id: a known job.
        control: its own.
        seen: of this job, as the last look left it, or new.
        now_unix_s: the time of day.
        min_steps: after a version's first step, at least 1.
        rules: None: the ordinary ones.
    """
    rules = rules or PaceRules()
    plan = _watched_plan(reader, job_id)
    if plan is None or plan.first_step is None:
        return None
    observed = seen.read(reader, plan, plan.first_step, rules.num_drift_steps)
    newest_step = max((step.step for step in observed), default=0)
    if newest_step < plan.first_step + min_steps:
        return None
    announced = {one.rank for one in control.stragglers if one.holds_at(now_unix_s)}
    return find_paces(
        observed,
        reader.list_ranks(job_id),
        Paces(stragglers=control.detected, drifts=control.in_force.stage_paces),
        now_unix_s=now_unix_s,
        announced=announced,
        rules=rules,
    )


def _watched_plan(reader: JobReader, job_id: str) -> PlanRecord | None:
    """The newest plan of a job that is watched; None: it is not, or not on this plan."""
    job = require_job(reader, job_id)
    version = newest_version(reader.list_activations(job_id))
    if job.in_force.adaptation != ADAPT_FRONTIER or job.planned_revision != job.inputs_revision:
        return None
    plan = None if version is None else require_plan(reader, job_id, version)
    if plan is None or plan.baseline_cycle or isinstance(plan.plan, ProbePlan):
        return None
    return plan
