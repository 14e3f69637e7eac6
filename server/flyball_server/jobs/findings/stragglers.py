"""Reconciler of stragglers and drift: slowdowns found in the ranks' measured steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from flyball_server.jobs.findings.announcements import is_nearly
from flyball_server.jobs.findings.detector import RULES, Slowdowns, find_slowdowns
from flyball_server.jobs.findings.noting import note_findings
from flyball_server.jobs.findings.step_ratios import (
    ClockTimes,
    RankStep,
    clock_times,
    planned_clock_times,
    rank_step,
    stage_work,
)
from flyball_server.jobs.job_state import OVER
from flyball_server.jobs.loop_state import JobLoopState
from flyball_server.jobs.planning_inputs import WorkModel
from flyball_server.jobs.records import JobRecord, RankRecord
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.kit.lru import Lru
from flyball_wire.messages import Adaptation
from flyball_wire.plans.plan import Purpose

# Number of steps within which the next measured step is searched for: steps of an earlier run may
# be there too, and a step with an absurd number must not end the search.
_NEAR_STEPS = 128
# The same if none is found: ranks may have measured nothing for a while.
_FAR_STEPS = 10_000
# Number of steps that a plan holds before measurements on it may change it.
MIN_STEPS = 10


class DetectionWindow:
    """Newest steps on a plan version that were already read.

    A job may have hundreds of ranks, and without this cache the same steps would be read at each
    pass. Dropped entries are read again. The key is the job's start, the revision of its inputs and
    the version.

    Attributes:
        newest_step: newest step found on the version; initially `first_step`.
        detected_at_step: newest step at the last detection of slowdown factors.
        by_rank: usable steps by rank, in their order.
        newest: newest step that was read by rank, usable or not.
    """

    def __init__(
        self,
        job_id: str,
        version: int,
        first_step: int,
        key: tuple[datetime, int, int],
    ) -> None:
        self.job_id = job_id
        self.version = version
        self.key = key
        self.first_step = self.newest_step = self.detected_at_step = first_step
        self.by_rank: dict[int, deque[RankStep]] = {}
        self.newest: dict[int, int] = {}
        self._times_s: list[ClockTimes] | None = None

    def advance(self, reader: JobReader) -> None:
        """Find the newest step on the version.

        The search runs upward: a run that started over has left steps with higher numbers.
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

    def begin_detection(self, pause_steps: int) -> bool:
        """Begin a detection `pause_steps` steps after the last one; return whether it began."""
        if self.newest_step - self.detected_at_step < pause_steps:
            return False
        self.detected_at_step = self.newest_step
        return True

    def read(
        self,
        reader: JobReader,
        ranks: Mapping[int, RankRecord],
        num_steps: int,
        work: WorkModel | None = None,
    ) -> list[RankStep]:
        """Return each rank's usable steps of its newest `num_steps`, without the version's first.

        `work` is the announced work that the version was planned with; None: none was announced.
        """
        begin = 1 + min((self.newest.get(rank, self.first_step) for rank in ranks), default=0)
        begin = max(begin, self.first_step + 1, self.newest_step - num_steps + 1)
        measured = reader.list_steps(self.job_id, begin, self.newest_step + 1)
        records = {
            (record.rank, record.step): record
            for record in measured
            if record.plan_version == self.version
        }
        # Read only these: an earlier run may have left many later ones.
        details = reader.list_step_details(self.job_id, begin, limit=len(measured))
        for detail in details if records else ():
            record = records.get((detail.rank, detail.step))
            if record is None or detail.step <= self.newest.get(detail.rank, begin - 1):
                continue
            stage = ranks[detail.rank].stage
            times_s = self._stage_times_s(
                reader, stage, has_step_plans=work is not None and work.problem is None
            )
            step = rank_step(record, detail, times_s, stage_work(work, stage))
            if step is not None:
                self.by_rank.setdefault(detail.rank, deque(maxlen=num_steps)).append(step)
        for rank, step_number in records:
            self.newest[rank] = max(step_number, self.newest.get(rank, 0))
        return [step for of_rank in self.by_rank.values() for step in of_rank]

    def _stage_times_s(self, reader: JobReader, stage: int, *, has_step_plans: bool) -> ClockTimes:
        """Return the version's times, computed once; a new profile requires a new object.

        Steps of plans of their own change their clocks elsewhere than the version's plan does.
        """
        if self._times_s is None:
            profile = reader.find_profile(self.job_id)
            plan = reader.require_plan(self.job_id, self.version).plan
            if profile is None or plan.is_probe:
                return {}
            if has_step_plans:
                self._times_s = [clock_times(profile, each) for each in range(profile.num_stages)]
            else:
                self._times_s = planned_clock_times(profile, plan)
        return self._times_s[stage]


def advanced_window(
    reader: JobReader, job: JobRecord, kept: Lru[str, DetectionWindow]
) -> DetectionWindow | None:
    """Return the newest steps on a job's newest version; None: no step on it is planned yet."""
    newest = reader.newest_version(job.job_id)
    if newest is None or newest.first_step is None:
        return None
    key = (job.created_at, job.inputs_revision, newest.version)
    seen = kept.get(job.job_id)
    if seen is None or seen.key != key:
        seen = DetectionWindow(job.job_id, newest.version, newest.first_step, key)
        kept.put(job.job_id, seen)
    seen.advance(reader)
    return seen


def measured_slowdowns(
    reader: JobReader,
    loop_state: JobLoopState,
    seen: DetectionWindow,
    *,
    now_unix_s: float,
) -> Slowdowns | None:
    """Return the ranks' measured slowdown factors; None: not to be measured now.

    This is so until the version has held for `MIN_STEPS` steps, so that plans do not flap, and
    while a job is profiled or compared with the highest clocks. If a newer plan failed, this one
    holds, and its steps are read.
    """
    if seen.newest_step < seen.first_step + MIN_STEPS or not _is_watched(reader, seen):
        return None
    ranks = {rank.rank: rank for rank in reader.list_ranks(seen.job_id)}
    # Factors that are too far off for steps' plans still tell slow ranks from long work.
    work = loop_state.planned_inputs.work
    observed = seen.read(reader, ranks, RULES.num_drift_steps, work)
    if max((step.step for step in observed), default=0) < seen.first_step + MIN_STEPS:
        return None
    announced = {
        slowdown.rank for slowdown in loop_state.stragglers if slowdown.holds_at(now_unix_s)
    }
    return find_slowdowns(
        observed,
        tuple(ranks.values()),
        Slowdowns(stragglers=loop_state.detected, drifts=loop_state.drifts),
        now_unix_s=now_unix_s,
        announced=announced,
    )


def _is_watched(reader: JobReader, seen: DetectionWindow) -> bool:
    plan = reader.require_plan(seen.job_id, seen.version)
    return plan.purpose in {Purpose.PLAN, Purpose.RAISE}


# The measured steps of a job with many ranks are read less often: ranks per step.
_RANKS_PER_STEP = 64
# Jobs whose steps are cached.
_MOST_WATCHED = 256


class StragglerReconciler:
    """Reconciler that finds slow ranks and drifted stages, in jobs with `adaptation` `frontier`.

    Announcements that are over are dropped, in all jobs. Its cache only avoids reading the same
    steps again.
    """

    def __init__(self) -> None:
        self._seen = Lru[str, DetectionWindow](_MOST_WATCHED)

    def runs_after_posts(self, reader: JobReader, job: JobRecord) -> bool:
        """Return whether stragglers and drift are detected from the ranks' measurements."""
        del reader
        return adapts_frontier(job)

    def __call__(self, services: JobServices, job_id: str) -> None:
        """Store the slowdowns that the newest steps show."""
        now_unix_s = services.now().timestamp()
        with services.store.reading() as reader:
            job = reader.require_job(job_id)
            if job.state in OVER:
                return
            loop_state = reader.find_loop_state(job_id)
            found = self._measured_slowdowns(reader, job, loop_state, now_unix_s)

        def changed(now: JobRecord, current: JobLoopState) -> JobLoopState:
            # Slowdowns are relative to a profile, which may have been replaced meanwhile.
            return _with_slowdowns(current, found if job.is_same_work(now) else None, now_unix_s)

        if changed(job, loop_state) != loop_state:
            note_findings(services, job_id, changed, "the slowdowns of its ranks have changed")

    def _measured_slowdowns(
        self, reader: JobReader, job: JobRecord, loop_state: JobLoopState, now_unix_s: float
    ) -> Slowdowns | None:
        """Return the slowdowns measured since the last pass; None: no relevant change."""
        seen = advanced_window(reader, job, self._seen) if adapts_frontier(job) else None
        if seen is None:
            return None
        pause = 1 + job.spec.num_expected_ranks // _RANKS_PER_STEP
        if not seen.begin_detection(pause):
            return None
        return measured_slowdowns(reader, loop_state, seen, now_unix_s=now_unix_s)


def _with_slowdowns(
    loop_state: JobLoopState, found: Slowdowns | None, now_unix_s: float
) -> JobLoopState:
    """Return the findings with the current slowdowns; ended announcements are dropped."""
    left = tuple(
        slowdown
        for slowdown in loop_state.stragglers
        if slowdown.until_unix_s is None or now_unix_s < slowdown.until_unix_s
    )
    if found is not None:
        announced = {
            slowdown.rank: slowdown.slowdown for slowdown in left if slowdown.holds_at(now_unix_s)
        }
        detected = [
            replace(slowed, slowdown=_noted(slowed.slowdown, announced.get(slowed.rank)))
            for slowed in found.stragglers
        ]
        drifts = [replace(slowed, slowdown=_noted(slowed.slowdown)) for slowed in found.drifts]
        loop_state = loop_state.evolve(detected=tuple(detected), drifts=tuple(drifts))
    return loop_state.evolve(stragglers=left)


def _noted(slowdown: float, announced: float | None = None) -> float:
    """Return a measured slowdown as it is stored: rounded, or as announced if that is close."""
    if announced is not None and is_nearly(slowdown, announced):
        return announced
    return round(slowdown, 3)


def adapts_frontier(job: JobRecord) -> bool:
    """Return whether stragglers and drift are detected from the ranks' measurements."""
    return job.spec.adaptation == Adaptation.FRONTIER
