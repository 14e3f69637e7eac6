"""Stragglers and drift: what the job's plan is made for follows what is announced and measured."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from datetime import datetime

from flyball_server.jobs.job_state import OVER
from flyball_server.jobs.loop_state import JobLoopState, PlanningInputs
from flyball_server.jobs.records import ADAPT_FRONTIER, JobRecord
from flyball_server.jobs.registry.inspection import newest_plan, require_job
from flyball_server.jobs.replanning.planning_slots import PLENTY, PlanningSlots
from flyball_server.jobs.replanning.solve import is_same_work
from flyball_server.jobs.replanning.update_and_replan import update_and_replan
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.contract import JobReader
from flyball_server.jobs.stragglers.detection_window import DetectionWindow, measured_slowdowns
from flyball_server.jobs.stragglers.detector import Slowdowns
from flyball_server.jobs.stragglers.reports import slowdowns_at
from flyball_server.planning.request_options import DEFAULT_POLICY, Effort

# A plan holds for so many steps before what is measured on it may change it.
MIN_STEPS = 10
# Of a job with many ranks the measured steps are looked at less often: ranks per step.
_RANKS_PER_STEP = 64
# What is remembered of a job goes after so long without a look, s.
MEMORY_S = 600.0


class StragglerReconciler:
    """Has a job planned for its stragglers, and again without them.

    Announced ones hold from their time on and until their end; detected ones, and drift, in jobs
    whose `adaptation` is `frontier`. A change is answered at once with the least effort; once
    that plan holds, one with the job's own effort follows.

    What it remembers saves looking at the same steps again, and decides nothing.

    Args:
        slots: of the plannings that the reconcile loop waits for.
    """

    order = 50

    def __init__(self, slots: PlanningSlots = PLENTY) -> None:
        self._slots = slots
        self._guard = threading.Lock()
        self._memories: dict[str, _Memory] = {}

    def runs_after_posts(self, reader: JobReader, job: JobRecord) -> bool:
        """Return whether stragglers and drift are looked for in what its ranks measure."""
        del reader
        return adapts_frontier(job)

    def __call__(self, services: JobServices, job_id: str) -> float | None:
        """Plan for what holds now; ask to be called when an announced time comes."""
        now_unix_s = services.now().timestamp()
        with services.store.reading() as reader:
            job = require_job(reader, job_id)
            if job.state in OVER:
                return None
            loop_state = reader.find_loop_state(job_id)
            found = self._look(reader, job, loop_state, now_unix_s)
            is_refined = _wants_refining(reader, job, loop_state)

        def changed(now: JobRecord, current: JobLoopState) -> JobLoopState:
            # What was found is found against a profile: somebody may have put another meanwhile.
            matters = found if is_same_work(job, now) else None
            return _with_slowdowns(current, matters, now_unix_s, _quick_effort(now))

        if changed(job, loop_state) != loop_state:
            why = "wanted for the slowdowns of its ranks as they are"
            update_and_replan(services, job_id, changed, why, self._slots)
        elif is_refined:
            why = "wanted again with its own effort"
            update_and_replan(services, job_id, _refined, why, self._slots)
        return _next_change_s(loop_state, now_unix_s)

    def _look(
        self, reader: JobReader, job: JobRecord, loop_state: JobLoopState, now_unix_s: float
    ) -> Slowdowns | None:
        """Return what was measured since the last look; None: nothing that matters."""
        activations = reader.list_activations(job.job_id)
        first_step = activations[-1].first_step if activations else None
        if not adapts_frontier(job) or first_step is None:
            return None
        version = activations[-1].version
        key = (job.created_at, job.inputs_revision, version)
        memory = self._memory(job.job_id)
        if memory.key != key:
            memory.key, memory.seen = key, DetectionWindow(job.job_id, version, first_step)
            memory.looked_at_step = first_step
        memory.seen.advance(reader)
        pause = 1 + job.in_force.num_ranks // _RANKS_PER_STEP
        if memory.seen.newest_step - memory.looked_at_step < pause:
            return None
        memory.looked_at_step = memory.seen.newest_step
        return measured_slowdowns(
            reader, loop_state, memory.seen, now_unix_s=now_unix_s, min_steps=MIN_STEPS
        )

    def _memory(self, job_id: str) -> _Memory:
        """Of this job; those of jobs that nobody has looked at for long are dropped."""
        now_s = time.monotonic()
        with self._guard:
            memories = self._memories
            for old in [old for old, of in memories.items() if now_s - of.used_s > MEMORY_S]:
                del memories[old]
            memory = memories.setdefault(job_id, _Memory(seen=DetectionWindow(job_id, 0, 0)))
            memory.used_s = now_s
            return memory


@dataclass(kw_only=True)
class _Memory:
    """Of one job: what was read, and when.

    Attributes:
        key: start of the job, revision of the inputs and version that `seen` is of.
        looked_at_step: the newest step when slowdown factors were last looked for.
        used_s: when it was last used, monotonic, s.
    """

    seen: DetectionWindow
    key: tuple[datetime, int, int] | None = None
    looked_at_step: int = 0
    used_s: float = 0.0


def _with_slowdowns(
    loop_state: JobLoopState, found: Slowdowns | None, now_unix_s: float, effort: str | None
) -> JobLoopState:
    """The control with what holds now; announced ones that are over are dropped."""
    left = tuple(
        one
        for one in loop_state.stragglers
        if one.until_unix_s is None or now_unix_s < one.until_unix_s
    )
    loop_state = loop_state.evolve(
        stragglers=left, detected=loop_state.detected if found is None else found.stragglers
    )
    before = loop_state.in_force
    after = replace(
        before,
        rank_slowdowns=slowdowns_at(loop_state, now_unix_s),
        stage_slowdowns=before.stage_slowdowns if found is None else found.drifts,
    )
    return loop_state.evolve(
        in_force=after if _same_times(before, after) else replace(after, effort=effort)
    )


def _same_times(before: PlanningInputs, after: PlanningInputs) -> bool:
    slowdowns = [
        {slowed.rank: slowed.slowdown for slowed in one.rank_slowdowns if slowed.slowdown != 1}
        for one in (before, after)
    ]
    return slowdowns[0] == slowdowns[1] and before.stage_slowdowns == after.stage_slowdowns


def _quick_effort(job: JobRecord) -> str | None:
    """Return the immediate answer to a change; None: the job's own effort is no more than that."""
    is_searched = (job.in_force.policy or DEFAULT_POLICY) == "frontier"
    return Effort.LOW.value if is_searched and job.in_force.effort != Effort.LOW else None


def _refined(job: JobRecord, loop_state: JobLoopState) -> JobLoopState:
    del job
    return loop_state.evolve(in_force=replace(loop_state.in_force, effort=None))


def _wants_refining(reader: JobReader, job: JobRecord, loop_state: JobLoopState) -> bool:
    """Return whether the newest plan was made at once, and all ranks have it by now.

    One that is being compared with the highest clocks is left alone until that is over.
    """
    if loop_state.in_force.effort is None or job.planned_revision != job.inputs_revision:
        return False
    newest = newest_plan(reader, job.job_id)
    return newest is not None and newest.first_step is not None and not newest.baseline_cycle


def _next_change_s(loop_state: JobLoopState, now_unix_s: float) -> float | None:
    """Return how long until something announced begins or ends, s."""
    times_s = [
        unix_s
        for one in loop_state.stragglers
        for unix_s in (one.from_unix_s, one.until_unix_s)
        if unix_s is not None and unix_s > now_unix_s
    ]
    return min(times_s) - now_unix_s if times_s else None


def adapts_frontier(job: JobRecord) -> bool:
    """Return whether stragglers and drift are looked for in what its ranks measure."""
    return job.in_force.adaptation == ADAPT_FRONTIER
