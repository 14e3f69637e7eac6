"""Solving for a job in the planner's executor: slots, time limit, obsolete results."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import CancelledError, Future, wait
from contextlib import contextmanager
from typing import TypeVar

from flyball_server.jobs.errors import PlanningStoppedError, StoreError, UnknownJobError
from flyball_server.jobs.records import JobRecord
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.planning.errors import PlanningError
from flyball_server.solving.in_thread import SolverAwayError, SolverLostError, SolveStoppedError

_LOG = logging.getLogger(__name__)
ResultT = TypeVar("ResultT")

# Period in s at which the job's inputs are read again to detect changes.
POLL_PERIOD_S = 0.25
# A solve is retried once if its process ends.
_NUM_ATTEMPTS = 2
_AGAIN = "; it is tried again, with growing pauses"
# Field of a PlanningError that no part of the request has caused.
PLANNING_FIELD = "planning"


# Number of jobs that the reconcile loop plans concurrently; each solve occupies a thread.
NUM_SLOTS = 16
# Delay in s before a job that found no free slot is tried again.
SLOT_RETRY_S = 1.0


class SlottedReconciler:
    """Base of the reconcilers that solve.

    Args:
        slots: slots for the plannings that the reconcile loop waits for; None: its own.
    """

    def __init__(self, slots: threading.Semaphore | None = None) -> None:
        self._slots = slots or threading.Semaphore(NUM_SLOTS)

    @contextmanager
    def slot(self) -> Generator[bool]:
        """Try to take a slot for the block, without waiting; yield true if one was free."""
        is_free = self._slots.acquire(blocking=False)
        try:
            yield is_free
        finally:
            if is_free:
                self._slots.release()


class SupersededError(Exception):
    """The job's inputs have changed since; the result is obsolete."""


# The result of a solve that they end is no longer wanted.
OBSOLETE = (SupersededError, PlanningStoppedError, UnknownJobError)


IsWanted = Callable[[JobReader, JobRecord], bool]


def solve(
    services: JobServices,
    job: JobRecord,
    function: Callable[..., ResultT],
    *args: object,
    is_wanted: IsWanted | None = None,
) -> ResultT:
    """Return the function's result from the executor.

    The calling thread waits and reads the job meanwhile: another planner on the same store may
    have changed it.

    Args:
        services: services of the use cases.
        job: record of the job that the arguments were made from.
        function: importable by name, with picklable arguments if another process solves.
        args: arguments of the function.
        is_wanted: function from the current job that returns whether the result is wanted; None: as
            long as profile and specification stay.

    Raises:
        SupersededError: the job's inputs have changed; the solve is stopped.
        UnknownJobError: the job has been deleted; the solve is stopped.
        PlanningStoppedError: the planner shuts down.
        PlanningError: raised by the function; or, with field `planning`: the solve exceeded the
            time limit, or its process ended, and did so again at a second attempt.
    """
    is_wanted = is_wanted or (lambda _, now: now.is_same_work(job))
    lost: SolverLostError | None = None
    with services.trace_solve(job, function):
        for _ in range(_NUM_ATTEMPTS):
            try:
                future = services.executor.submit(function, *args)
            except RuntimeError:
                raise PlanningStoppedError(job_id=job.job_id) from None
            try:
                return _awaited(services, job, future, is_wanted)
            except SolverAwayError as error:
                raise PlanningError(f"{error}{_AGAIN}", field=PLANNING_FIELD) from error
            except SolverLostError as error:
                lost = error
                _LOG.warning("job %s: not solved: %s", job.job_id, error)
            finally:
                future.cancel()  # no effect if it is done
    raise PlanningError(
        f"{lost}, also at a second attempt; check the available memory{_AGAIN}",
        field=PLANNING_FIELD,
    ) from lost


def _awaited(
    services: JobServices, job: JobRecord, future: Future[ResultT], is_wanted: IsWanted
) -> ResultT:
    began_s: float | None = None
    limit_s = services.planning_timeout_s
    while not wait([future], POLL_PERIOD_S).done:
        _check_wanted(services, job, is_wanted)
        if future.running():
            # Waiting for a process does not count.
            began_s = began_s or time.monotonic()
            if time.monotonic() - began_s > limit_s:
                raise PlanningError(
                    f"took longer than {limit_s:g} s, and was stopped; request less effort, or"
                    f" allow more in FLYBALL_PLANNING_TIMEOUT_S{_AGAIN}",
                    field=PLANNING_FIELD,
                )
    try:
        return future.result()
    except (SolveStoppedError, CancelledError):
        raise PlanningStoppedError(job_id=job.job_id) from None


def _check_wanted(services: JobServices, job: JobRecord, is_wanted: IsWanted) -> None:
    try:
        with services.store.reading() as reader:
            is_current = is_wanted(reader, reader.require_job(job.job_id))
    except StoreError as error:
        _LOG.debug("job %s: not read: %s", job.job_id, error.message)
        return
    if not is_current:
        raise SupersededError
