"""A look at what a running job's ranks measured, for their slowdown factors."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from flyball_server.jobs.loop_state import JobLoopState
from flyball_server.jobs.records import RankRecord
from flyball_server.jobs.registry.inspection import require_plan
from flyball_server.jobs.store.contract import JobReader
from flyball_server.jobs.stragglers.detector import SlowdownRules, Slowdowns, find_slowdowns
from flyball_server.jobs.stragglers.step_ratios import ClockTimes, RankStep, clock_times, rank_step
from flyball_server.planning.probe_plan import ProbePlan

# So many steps further on the next measured step is looked for: those of a run before this one
# may lie there too, and a step with an absurd number must not end all looking.
_NEAR_STEPS = 128
# Where there is none: ranks may have measured nothing for a while.
_FAR_STEPS = 10_000


class DetectionWindow:
    """The newest steps on a plan version that were read already.

    A job may have hundreds of ranks, and the same steps would be read again at each look. What is
    forgotten is read again.

    Args:
        job_id: a known job.
        version: of its plans.
        first_step: of that version.

    Attributes:
        newest_step: on the version, as far as it was looked for; at first `first_step`.
        by_rank: usable steps, in their order.
        newest: by rank, the newest step that was read, usable or not.
    """

    def __init__(self, job_id: str, version: int, first_step: int) -> None:
        self.job_id = job_id
        self.version = version
        self.first_step = self.newest_step = first_step
        self.by_rank: dict[int, deque[RankStep]] = {}
        self.newest: dict[int, int] = {}
        self._times_s: dict[int, ClockTimes] = {}

    def advance(self, reader: JobReader) -> None:
        """Find the newest step on the version.

        It is looked for upward: a run that started over has left steps with higher numbers.
        """
        end_step = self.newest_step + 1 + _NEAR_STEPS
        is_near = reader.newest_step(self.job_id, after_step=self.newest_step, before_step=end_step)
        reach = _FAR_STEPS if is_near is None else _NEAR_STEPS
        while True:
            found = reader.newest_step(
                self.job_id,
                version=self.version,
                after_step=self.newest_step,
                before_step=self.newest_step + 1 + reach,
            )
            if found is None:
                return
            self.newest_step = found
            reach = min(2 * reach, _FAR_STEPS)

    def read(
        self, reader: JobReader, ranks: Mapping[int, RankRecord], num_steps: int
    ) -> list[RankStep]:
        """All usable ones among a rank's newest `num_steps`; the version's first is left out."""
        begin = 1 + min((self.newest.get(rank, self.first_step) for rank in ranks), default=0)
        begin = max(begin, self.first_step + 1, self.newest_step - num_steps + 1)
        measured = reader.list_steps(self.job_id, begin, self.newest_step + 1)
        records = {
            (record.rank, record.step): record
            for record in measured
            if record.plan_version == self.version
        }
        # No more than these have: a run before this one may have left many that come after.
        details = reader.list_step_details(self.job_id, begin, limit=len(measured))
        for detail in details if records else ():
            record = records.get((detail.rank, detail.step))
            if record is None or detail.step <= self.newest.get(detail.rank, begin - 1):
                continue
            step = rank_step(record, detail, self._stage_times_s(reader, ranks[detail.rank].stage))
            if step is not None:
                self.by_rank.setdefault(detail.rank, deque(maxlen=num_steps)).append(step)
        for rank, step_number in records:
            self.newest[rank] = max(step_number, self.newest.get(rank, 0))
        return [step for of_rank in self.by_rank.values() for step in of_rank]

    def _stage_times_s(self, reader: JobReader, stage: int) -> ClockTimes:
        """Return the profile's times, read once; another profile makes this object useless."""
        if stage not in self._times_s:
            profile = reader.find_profile(self.job_id)
            self._times_s[stage] = {} if profile is None else clock_times(profile, stage)
        return self._times_s[stage]


def measured_slowdowns(
    reader: JobReader,
    loop_state: JobLoopState,
    seen: DetectionWindow,
    *,
    now_unix_s: float,
    min_steps: int,
    rules: SlowdownRules | None = None,
) -> Slowdowns | None:
    """Return what the ranks' slowdown factors are found to be; None: this is no time to look.

    That is while the version has not held for `min_steps` steps, so that plans do not flap; and
    while a job is profiled, or its steps are compared with the highest clocks. Where a newer plan
    failed this one holds, and is looked at.

    Args:
        reader: of the moment.
        loop_state: of the job.
        seen: of its newest version, as the last look left it, or new, and advanced.
        now_unix_s: the time of day.
        min_steps: after the version's first step, at least 1.
        rules: None: the ordinary ones.
    """
    rules = rules or SlowdownRules()
    if seen.newest_step < seen.first_step + min_steps or not _is_watched(reader, seen):
        return None
    ranks = {rank.rank: rank for rank in reader.list_ranks(seen.job_id)}
    observed = seen.read(reader, ranks, rules.num_drift_steps)
    if max((step.step for step in observed), default=0) < seen.first_step + min_steps:
        return None
    announced = {one.rank for one in loop_state.stragglers if one.holds_at(now_unix_s)}
    return find_slowdowns(
        observed,
        tuple(ranks.values()),
        Slowdowns(stragglers=loop_state.detected, drifts=loop_state.in_force.stage_slowdowns),
        now_unix_s=now_unix_s,
        announced=announced,
        rules=rules,
    )


def _is_watched(reader: JobReader, seen: DetectionWindow) -> bool:
    plan = require_plan(reader, seen.job_id, seen.version)
    return not plan.baseline_cycle and not isinstance(plan.plan, ProbePlan)
