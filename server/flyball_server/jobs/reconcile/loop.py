"""Reconcile loop: threads that adapt each job to its measurements and to the time of day."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from flyball_server.jobs.errors import JobsError, StoreError, UnknownJobError
from flyball_server.jobs.reconcile.solve import NUM_SLOTS
from flyball_server.jobs.records import JobRecord
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.log_setup import about

_LOG = logging.getLogger(__name__)

# Planning a job blocks its thread while the solve runs elsewhere. Some threads are reserved for
# the reconcilers that do not plan.
NUM_THREADS = NUM_SLOTS + 2
# Thousands of ranks post every step: a job is reconciled at most this often, s.
SHORTEST_PAUSE_S = 0.1
# Every job is reconciled this often, s, as if it had changed: another planner on the store may have
# ended after a change without the actions that depend on it.
ROUND_S = 60.0
# Pause while another planner on the store reconciles the job, s.
_ELSEWHERE_S = 1.0
_STOP_TIMEOUT_S = 10.0
_STORE_RETRY_S = 5.0
# Limit of a wait: a condition cannot wait for centuries, which a reconciler may request.
_LONGEST_WAIT_S = 600.0
# Placeholders for all jobs, and for the rows of deleted ones: no job has these names.
_ALL, _DELETED = "", "/deleted"
_UNDONE = {
    _ALL: "jobs are not reconciled yet",
    _DELETED: "rows of deleted jobs are left for later",
}


class Reconciler(Protocol):
    """Reconciler of one job, which takes its next action, such as adding a version, or none.

    - It is called on the threads of the reconcile loop, never in a request: after a change of the
      job was stored (`JobServices.enqueue_reconcile`), at the time that it returned, and for every
      job when the planner starts and every minute. Repeated calls without a change in between do
      nothing. Calls for one job are serialised among all planners on the store; calls for several
      jobs run at once.
    - After posts of measured steps it is called only if one of the reconcilers may have something
      to do then. What a killed planner has left undone is found within the minute, by whichever
      planner runs.
    - It keeps its state in the store, so that a restarted planner continues.
    - Errors of the tree in `jobs.errors` may escape: they are logged, and the job is reconciled
      again after its next change, within the minute; after store errors within a few seconds.
    """

    @property
    def runs_after_posts(self) -> Callable[[JobReader, JobRecord], bool] | None:
        """Function that returns whether a post may give it something to do; None: none does."""
        ...

    def __call__(self, services: JobServices, job_id: str) -> float | None:
        """Take the job's next action.

        Returns:
            Maximum time in s until the next call, even without a change; None: only after a
                change.
        """
        ...


class ReconcileLoop:
    """Threads that call the reconcilers for each enqueued job, one thread per job at a time.

    Among several planners on one store only one reconciles a job at a time. They also remove the
    rows of deleted jobs, a few at a time.

    Args:
        reconcilers: reconcilers called for each job, in their order.
        round_s: period at which all jobs are enqueued, s.
    """

    def __init__(self, reconcilers: Sequence[Reconciler], *, round_s: float = ROUND_S) -> None:
        self._reconcilers = tuple(reconcilers)
        self._round_s = round_s
        self._changed = threading.Condition()
        # By job, time of the next reconciliation, monotonic s.
        self._due_s: dict[str, float] = {}
        self._reconciled_s: dict[str, float] = {}
        self._in_progress: set[str] = set()
        self._is_stopping = False
        self._threads: tuple[threading.Thread, ...] = ()

    def enqueue_reconcile(self, job_id: str) -> None:
        """Enqueue a job after a change; thread-safe and cheap."""
        with self._changed:
            soonest_s = self._reconciled_s.get(job_id, 0.0) + SHORTEST_PAUSE_S
            self._be_due(job_id, max(time.monotonic(), soonest_s))

    def enqueue_all(self) -> None:
        """Enqueue all jobs after a possible change; thread-safe and cheap."""
        with self._changed:
            self._reconciled_s.clear()
            for placeholder in (_ALL, _DELETED):
                self._be_due(placeholder, time.monotonic())

    def runs_after_posts(self, reader: JobReader, job: JobRecord) -> bool:
        """Return whether a reconciler may have something to do after a post of the ranks."""
        asked = (reconciler.runs_after_posts for reconciler in self._reconcilers)
        return any(runs is not None and runs(reader, job) for runs in asked)

    def start(self, services: JobServices) -> None:
        """Start to reconcile all stored jobs, and from then on those that change."""
        self._is_stopping = False
        self.enqueue_all()
        self._threads = tuple(
            threading.Thread(
                target=self._run, args=(services,), name=f"flyball-reconcile-{number}", daemon=True
            )
            for number in range(NUM_THREADS)
        )
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End after the jobs in progress, whose planning may take a while."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        deadline_s = time.monotonic() + _STOP_TIMEOUT_S
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def _be_due(self, job_id: str, due_s: float) -> None:
        if due_s < self._due_s.get(job_id, float("inf")):
            self._due_s[job_id] = due_s
            self._changed.notify()

    def _run(self, services: JobServices) -> None:
        while (job_id := self._wait_for_job()) is not None:
            try:
                again_s = self._reconcile_due(services, job_id)
            except Exception:
                _LOG.exception("%s", _UNDONE.get(job_id, f"job {job_id}: not reconciled"))
                again_s = self._retry_s(job_id)
            self._end(job_id, again_s)

    def _wait_for_job(self) -> str | None:
        """Return the next due job that no thread reconciles; None: the loop ends."""
        with self._changed:
            while not self._is_stopping:
                now_s = time.monotonic()
                waiting = self._due_s.keys() - self._in_progress
                job_id = min(waiting, key=self._due_s.__getitem__, default=None)
                if job_id is not None and self._due_s[job_id] <= now_s:
                    del self._due_s[job_id]
                    self._reconciled_s[job_id] = now_s
                    self._in_progress.add(job_id)
                    self._changed.notify()  # another may be due as well
                    return job_id
                wait_s = _LONGEST_WAIT_S if job_id is None else self._due_s[job_id] - now_s
                self._changed.wait(min(wait_s, _LONGEST_WAIT_S))
            return None

    def _end(self, job_id: str, again_s: float | None) -> None:
        with self._changed:
            self._in_progress.discard(job_id)
            if again_s is not None:
                self._be_due(job_id, time.monotonic() + max(again_s, SHORTEST_PAUSE_S))
            self._changed.notify()  # it may have been enqueued meanwhile

    def _reconcile_due(self, services: JobServices, job_id: str) -> float | None:
        """Reconcile one job, or act on a placeholder; return the seconds until it is due again."""
        try:
            if job_id == _ALL:
                return self._enqueue_all(services)
            if job_id == _DELETED:
                return 0.0 if services.store.forget_some() else self._round_s
            with (
                services.store.lock(f"reconcile {job_id}", waits=False) as is_mine,
                about(job=job_id),
            ):
                return self._reconcile(services, job_id) if is_mine else _ELSEWHERE_S
        except JobsError as error:
            undone = _UNDONE.get(job_id, f"job {job_id} is not reconciled yet")
            _LOG.warning("%s: %s", undone, error.message)
            return self._retry_s(job_id)

    def _retry_s(self, job_id: str) -> float:
        # Nobody waits for the rows of deleted jobs: a full disk is not logged every few seconds.
        return self._round_s if job_id == _DELETED else _STORE_RETRY_S

    def _enqueue_all(self, services: JobServices) -> float:
        """Enqueue every job once, spread over the round; new ones now."""
        with services.store.reading() as reader:
            job_ids = [job.job_id for job in reader.list_jobs()]
        with self._changed:
            now_s = time.monotonic()
            for number, job_id in enumerate(job_ids):
                is_new = job_id not in self._reconciled_s
                wait_s = 0.0 if is_new else self._round_s * number / len(job_ids)
                self._be_due(job_id, now_s + wait_s)
            for gone in self._reconciled_s.keys() - {*job_ids, *self._due_s, *_UNDONE}:
                del self._reconciled_s[gone]
        return self._round_s

    def _reconcile(self, services: JobServices, job_id: str) -> float | None:
        asked_s: list[float] = []
        for reconciler in self._reconcilers:
            try:
                again_s = reconciler(services, job_id)
            except UnknownJobError:  # deleted, or renamed
                with self._changed:
                    self._be_due(_DELETED, time.monotonic())
                return None
            except JobsError as error:
                _LOG.warning("job %s: %s", job_id, error.message)
                asked_s += [_STORE_RETRY_S] if isinstance(error, StoreError) else []
            except Exception:
                _LOG.exception("job %s: a reconciler failed", job_id)
            else:
                asked_s += [] if again_s is None else [again_s]
        return min(asked_s, default=None)
