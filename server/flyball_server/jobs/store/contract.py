"""Contract of a job store, which stores jobs, ranks, profiles, plans and measurements."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.jobs.store.sql.job_writer import JobWriter

# Subject of `writing` for changes of tokens: no job has this name.
TOKENS = "/tokens"


@dataclass(frozen=True, kw_only=True)
class StoreSpace:
    """Space that a store takes, and space that is left for it."""

    #: Size of the database, bytes.
    size_bytes: int
    #: Free space on the database's disk, bytes; None: on another machine, not known here.
    free_bytes: int | None


class JobStore(Protocol):
    """Store of jobs.

    Contract, tested over every implementation by `tests/contract/test_job_store*.py`, and, as far
    as the REST API exposes it, over a live server:

    - Any thread may use the store at any time, but one transaction belongs to one thread.
    - Writing transactions of one subject run one after another, across processes too if they
      share the store; data read of that subject stays valid until the end. Those of different
      subjects may run at once, but one that deletes a job waits for those of the job. A reading
      transaction sees a snapshot and waits for no writer.
    - A `with` block that ends normally has stored all its changes when it returns; one that
      raises has stored none of them.
    - Records are passed by value: a read record equals the stored one, floats to the last bit, and
      no later change affects it.
    - Data of a job can only be saved while the job exists (and measured steps only while their
      rank does): otherwise ValueError, which is a mistake of the caller.
    - Plans are never changed, and removed only with their job.
    - A deleted job cannot be found any more, nor can its rows, which may be millions. `forget_some`
      removes them; what a killed planner has left, another removes.
    - A step belongs to a run of its job, by number. The totals of a job's steps are stored with the
      place that they have reached, so that no step is added to them twice.
    - A lock has one holder at a time, across processes too if they share the store, and ends with
      the process that holds it.
    - A signal reaches the listeners of all processes that share the store, the caller's too, and
      may reach them more than once; if one was perhaps missed, they are called with None.
    - `open` creates or migrates the database, and may be called again; `close` too.
    - `StoreClosedError`: not open. `StoreUnavailableError`: cannot be opened, read or written.
      `StoreFullError`, of these: a write found no room. `StoreBusyError`: another process holds
      it; trying again may help. `StoreDamagedError`, `StoreForeignError`, `StoreTooNewError`:
      `open` found something it must not touch.
    """

    def open(self) -> None:
        """Make the store ready for use."""
        ...

    def close(self) -> None:
        """Free the store's resources; stored data is kept."""
        ...

    def reading(self) -> AbstractContextManager[JobReader]:
        """Open a reading transaction."""
        ...

    def writing(self, subject: str) -> AbstractContextManager[JobWriter]:
        """Open a transaction that may change data of a job, by its ID, or TOKENS."""
        ...

    def forget_some(self) -> bool:
        """Remove some rows of deleted jobs, for a moment; return whether more are left."""
        ...

    def check_writing(self) -> None:
        """Store a small change that changes no data.

        Raises:
            StoreError: it, or a larger one, could not be stored.
        """
        ...

    def space(self) -> StoreSpace:
        """Return the size of the database and the space left for it.

        Raises:
            StoreError: it cannot be read.
        """
        ...

    def lock(self, name: str, *, waits: bool = True) -> AbstractContextManager[bool]:
        """Hold the lock of this name until the block ends; yield true if it is held.

        With `waits` it waits for the lock; otherwise it yields False if another process holds it.
        """
        ...

    def signal(self, job_id: str) -> None:
        """Notify all listeners that data of this job has been stored."""
        ...

    def listen(self, heard: Callable[[str | None], None]) -> None:
        """Register the callback, called from any thread with each signalled job; must not block.

        None: any job may have been. There is one listener in each process.
        """
        ...
