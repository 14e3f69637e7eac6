"""The thread on which the planner reacts: to what ranks measure, and to the time of day."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from flyball_server.jobs.errors import JobsError
from flyball_server.jobs.inspection import list_jobs
from flyball_server.jobs.reactions._base import Reaction
from flyball_server.jobs.services import JobServices

_LOG = logging.getLogger(__name__)

# Thousands of ranks post every step: a job is not looked at more often than this, s.
SHORTEST_PAUSE_S = 0.1
_STOP_TIMEOUT_S = 10.0
_STORE_RETRY_S = 5.0
# A condition cannot wait for centuries, and a reaction may ask for that.
_LONGEST_WAIT_S = 600.0


class Reactor:
    """Calls the reactions for each job that was noticed, one job after the other.

    Args:
        reactions: called in this order for each job.
    """

    def __init__(self, reactions: Sequence[Reaction]) -> None:
        self._reactions = tuple(reactions)
        self._changed = threading.Condition()
        # By job, when to look at it next, monotonic s.
        self._due_s: dict[str, float] = {}
        self._looked_s: dict[str, float] = {}
        self._is_stopping = False
        self._thread: threading.Thread | None = None

    def notice(self, job_id: str) -> None:
        """Something about the job has changed; from any thread, costs nothing."""
        with self._changed:
            soonest_s = self._looked_s.get(job_id, 0.0) + SHORTEST_PAUSE_S
            due_s = max(time.monotonic(), soonest_s)
            if due_s < self._due_s.get(job_id, float("inf")):
                self._due_s[job_id] = due_s
                self._changed.notify()

    def start(self, services: JobServices) -> None:
        """Look at all jobs that the store has, and from now on at those that change."""
        self._is_stopping = False
        self._thread = threading.Thread(
            target=self._run, args=(services,), name="flyball-reactor", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End after the job that is being looked at, whose planning may take a while."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(_STOP_TIMEOUT_S)

    def _run(self, services: JobServices) -> None:
        self._notice_all(services)
        while (job_id := self._wait_for_job()) is not None:
            self._look(services, job_id)

    def _notice_all(self, services: JobServices) -> None:
        """Look at every job once, as soon as the store can tell them."""
        while not self._is_stopping:
            try:
                summaries = list_jobs(services)
            except JobsError as error:
                _LOG.warning("jobs are not looked at yet: %s", error.message)
                with self._changed:
                    self._changed.wait(_STORE_RETRY_S)
            else:
                for summary in summaries:
                    self.notice(summary.job.job_id)
                return

    def _wait_for_job(self) -> str | None:
        """The next job whose time has come; None: the end."""
        with self._changed:
            while not self._is_stopping:
                now_s = time.monotonic()
                job_id = min(self._due_s, key=self._due_s.__getitem__, default=None)
                if job_id is not None and self._due_s[job_id] <= now_s:
                    del self._due_s[job_id]
                    self._looked_s[job_id] = now_s
                    return job_id
                wait_s = _LONGEST_WAIT_S if job_id is None else self._due_s[job_id] - now_s
                self._changed.wait(min(wait_s, _LONGEST_WAIT_S))
            return None

    def _look(self, services: JobServices, job_id: str) -> None:
        for reaction in self._reactions:
            try:
                again_s = reaction(services, job_id)
            except JobsError as error:
                _LOG.warning("job %s: %s", job_id, error.message)
            except Exception:
                _LOG.exception("job %s: a reaction failed", job_id)
            else:
                self._look_again(job_id, again_s)

    def _look_again(self, job_id: str, again_s: float | None) -> None:
        if again_s is None:
            return
        with self._changed:
            due_s = time.monotonic() + max(again_s, SHORTEST_PAUSE_S)
            self._due_s[job_id] = min(due_s, self._due_s.get(job_id, float("inf")))
