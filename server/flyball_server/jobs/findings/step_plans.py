"""Base of the reconcilers that correct the inputs of steps' own plans as steps are measured."""

from __future__ import annotations

from abc import ABC, abstractmethod

from flyball_server.jobs.findings.noting import note_findings
from flyball_server.jobs.findings.stragglers import DetectionWindow, advanced_window
from flyball_server.jobs.job_state import OVER
from flyball_server.jobs.loop_state import JobLoopState
from flyball_server.jobs.planning_inputs import WorkModel
from flyball_server.jobs.records import JobRecord
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.jobs.versions.planning import read_planning
from flyball_server.kit.lru import Lru

_KEPT_JOBS = 32


class StepPlanReconciler(ABC):
    """Reconciler of a job's announced work or deadlines of steps, from the newest steps.

    It reads steps on a version that is the wanted one and whose delays are measured, after each
    `pause_steps` of them.
    """

    pause_steps: int
    #: Line for the log where something was found.
    why: str

    def __init__(self) -> None:
        self._seen = Lru[str, DetectionWindow](_KEPT_JOBS)

    def runs_after_posts(self, reader: JobReader, job: JobRecord) -> bool:
        """Return whether the job's steps have plans of their own that may be corrected."""
        return self._is_watched(job, reader.find_loop_state(job.job_id))

    def __call__(self, services: JobServices, job_id: str) -> None:
        """Store what the newest steps show; it makes another version."""
        with services.store.reading() as reader:
            job, loop_state = reader.require_job(job_id), reader.find_loop_state(job_id)
            if not self._is_watched(job, loop_state):
                return
            if not read_planning(reader, job).is_planned(services):
                return
            seen = advanced_window(reader, job, self._seen)
            if seen is None or seen.version != loop_state.timed_version:
                return
            if not seen.begin_detection(self.pause_steps):
                return
            now_unix_s = services.now().timestamp()
            found = self.found(reader, job, loop_state, seen, now_unix_s)
        if found == loop_state:
            return

        def changed(now: JobRecord, current: JobLoopState) -> JobLoopState:
            is_same = job.is_same_work(now) and current.lasting == loop_state.lasting
            if not is_same:
                return current
            return current.evolve(work=found.work, step_power=found.step_power)

        note_findings(services, job_id, changed, self.why)

    @abstractmethod
    def concerns(self, job: JobRecord, loop_state: JobLoopState, work: WorkModel) -> bool:
        """Return whether steps of a job that were planned with this work may be corrected."""

    @abstractmethod
    def found(
        self,
        reader: JobReader,
        job: JobRecord,
        loop_state: JobLoopState,
        seen: DetectionWindow,
        now_unix_s: float,
    ) -> JobLoopState:
        """Return the loop state with the work or deadlines that the steps show, if they differ."""

    def _is_watched(self, job: JobRecord, loop_state: JobLoopState) -> bool:
        work = loop_state.planned_inputs.step_work
        return (
            work is not None
            and work == loop_state.work
            and job.state not in OVER
            and job.problem is None
            and loop_state.open_comparison is None
            and self.concerns(job, loop_state, work)
        )
