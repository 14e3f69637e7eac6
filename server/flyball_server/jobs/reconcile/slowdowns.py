"""Stragglers and drift: what the job's plan is made for follows what is announced and measured."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from datetime import datetime

from flyball_server.jobs.control import InForce, JobControl
from flyball_server.jobs.job_state import OVER
from flyball_server.jobs.reconcile.triggers import adapts_frontier
from flyball_server.jobs.records import JobRecord
from flyball_server.jobs.registry.inspection import newest_plan, require_job
from flyball_server.jobs.replanning.planning_slots import PLENTY, PlanningSlots
from flyball_server.jobs.replanning.solve import is_same_work
from flyball_server.jobs.replanning.update_and_replan import steer
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.contract import JobReader
from flyball_server.jobs.stragglers.detection_window import SeenSteps, measured_paces
from flyball_server.jobs.stragglers.detector import Paces
from flyball_server.jobs.stragglers.reports import paces_at
from flyball_server.planning.request_options import DEFAULT_POLICY, Effort

# A plan holds for so many steps before what is measured on it may change it.
MIN_STEPS = 10
# Of a job with many ranks the measured steps are looked at less often: ranks per step.
_RANKS_PER_STEP = 64
# What is remembered of a job goes after so long without a look, s.
MEMORY_S = 600.0


class Pacing:
    """The reaction that brings stragglers in force, and takes them back.

    Announced ones hold from their time on and until their end; detected ones, and drift, in jobs
    whose `adaptation` is `frontier`. A change is answered at once with the least effort; once
    that plan holds, one with the job's own effort follows.

    What it remembers saves looking at the same steps again, and decides nothing.

    Args:
        slots: of the plannings that the reactor waits for.
    """

    def __init__(self, slots: PlanningSlots = PLENTY) -> None:
        self._slots = slots
        self._guard = threading.Lock()
        self._memories: dict[str, _Memory] = {}

    def __call__(self, services: JobServices, job_id: str) -> float | None:
        """Bring in force what holds now; look again when an announced time comes."""
        now_unix_s = services.now().timestamp()
        with services.store.reading() as reader:
            job = require_job(reader, job_id)
            if job.state in OVER:
                return None
            control = reader.find_control(job_id)
            found = self._look(reader, job, control, now_unix_s)
            is_refined = _wants_refining(reader, job, control)

        def changed(now: JobRecord, current: JobControl) -> JobControl:
            # What was found is found against a profile: somebody may have put another meanwhile.
            matters = found if is_same_work(job, now) else None
            return _with_paces(current, matters, now_unix_s, _quick_effort(now))

        with self._slots.steering(services) as steering:
            if changed(job, control) != control:
                steer(steering, job_id, changed, "wanted for the paces of its ranks as they are")
            elif is_refined:
                steer(steering, job_id, _refined, "wanted again with its own effort")
        with services.store.reading() as reader:
            return _next_moment_s(reader.find_control(job_id), now_unix_s)

    def _look(
        self, reader: JobReader, job: JobRecord, control: JobControl, now_unix_s: float
    ) -> Paces | None:
        """What was measured since the last look; None: nothing that matters."""
        activations = reader.list_activations(job.job_id)
        first_step = activations[-1].first_step if activations else None
        if not adapts_frontier(job) or first_step is None:
            return None
        version = activations[-1].version
        key = (job.created_at, job.inputs_revision, version)
        memory = self._memory(job.job_id)
        if memory.key != key:
            memory.key, memory.seen = key, SeenSteps(job.job_id, version, first_step)
            memory.looked_at_step = first_step
        memory.seen.advance(reader)
        pause = 1 + job.in_force.num_ranks // _RANKS_PER_STEP
        if memory.seen.newest_step - memory.looked_at_step < pause:
            return None
        memory.looked_at_step = memory.seen.newest_step
        return measured_paces(
            reader, control, memory.seen, now_unix_s=now_unix_s, min_steps=MIN_STEPS
        )

    def _memory(self, job_id: str) -> _Memory:
        """Of this job; those of jobs that nobody has looked at for long are dropped."""
        now_s = time.monotonic()
        with self._guard:
            memories = self._memories
            for old in [old for old, of in memories.items() if now_s - of.used_s > MEMORY_S]:
                del memories[old]
            memory = memories.setdefault(job_id, _Memory(seen=SeenSteps(job_id, 0, 0)))
            memory.used_s = now_s
            return memory


@dataclass(kw_only=True)
class _Memory:
    """Of one job: what was read, and when.

    Attributes:
        key: start of the job, revision of the inputs and version that `seen` is of.
        looked_at_step: the newest step when paces were last looked for.
        used_s: when it was last used, monotonic, s.
    """

    seen: SeenSteps
    key: tuple[datetime, int, int] | None = None
    looked_at_step: int = 0
    used_s: float = 0.0


def _with_paces(
    control: JobControl, found: Paces | None, now_unix_s: float, effort: str | None
) -> JobControl:
    """The control with what holds now; announced ones that are over are dropped."""
    left = tuple(
        one
        for one in control.stragglers
        if one.until_unix_s is None or now_unix_s < one.until_unix_s
    )
    control = control.evolve(
        stragglers=left, detected=control.detected if found is None else found.stragglers
    )
    before = control.in_force
    after = replace(
        before,
        rank_paces=paces_at(control, now_unix_s),
        stage_paces=before.stage_paces if found is None else found.drifts,
    )
    return control.evolve(
        in_force=after if _same_times(before, after) else replace(after, effort=effort)
    )


def _same_times(before: InForce, after: InForce) -> bool:
    slowdowns = [
        {pace.rank: pace.slowdown for pace in one.rank_paces if pace.slowdown != 1}
        for one in (before, after)
    ]
    return slowdowns[0] == slowdowns[1] and before.stage_paces == after.stage_paces


def _quick_effort(job: JobRecord) -> str | None:
    """What a change is answered with at once; None: the job's own effort is no more than that."""
    is_searched = (job.in_force.policy or DEFAULT_POLICY) == "frontier"
    return Effort.LOW.value if is_searched and job.in_force.effort != Effort.LOW else None


def _refined(job: JobRecord, control: JobControl) -> JobControl:
    del job
    return control.evolve(in_force=replace(control.in_force, effort=None))


def _wants_refining(reader: JobReader, job: JobRecord, control: JobControl) -> bool:
    """Whether the newest plan was made at once, and all ranks have it by now.

    One that is being compared with the highest clocks is left alone until that is over.
    """
    if control.in_force.effort is None or job.planned_revision != job.inputs_revision:
        return False
    newest = newest_plan(reader, job.job_id)
    return newest is not None and newest.first_step is not None and not newest.baseline_cycle


def _next_moment_s(control: JobControl, now_unix_s: float) -> float | None:
    """How long until something announced begins or ends, s."""
    moments = [
        moment
        for one in control.stragglers
        for moment in (one.from_unix_s, one.until_unix_s)
        if moment is not None and moment > now_unix_s
    ]
    return min(moments) - now_unix_s if moments else None
