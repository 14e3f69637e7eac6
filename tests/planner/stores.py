"""A job store for a test: SQLite's, in a folder that goes with it."""

from __future__ import annotations

import shutil
import tempfile
import threading
import weakref
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Engine

from flyball_server.jobs.errors import StoreUnavailableError
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.jobs.store.sqlite.sqlite_store import SqliteJobStore

# In memory where there is such a place: on a disk a database takes ten times as long to make.
_SHARED = Path("/dev/shm")  # noqa: S108 - a folder of its own is made there
MEMORY = _SHARED if _SHARED.is_dir() else None


class TemporaryJobStore(SqliteJobStore):
    """The store on a new file, which is removed when nobody holds the store any more."""

    def __init__(self) -> None:
        folder = tempfile.mkdtemp(dir=MEMORY)
        super().__init__(Path(folder) / "planner.sqlite")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)

    def open(self) -> None:
        """Make the file, or open it again."""
        super().open()
        if self._engine is not None:
            weakref.finalize(self, Engine.dispose, self._engine)


class HaltingStore(TemporaryJobStore):
    """Store whose reads wait or fail on request."""

    def __init__(self) -> None:
        super().__init__()
        self.may_read = threading.Event()
        self.may_read.set()
        self.fails = False
        self.error: Exception = StoreUnavailableError(location="here", reason="a test's")

    @contextmanager
    def reading(self) -> Generator[JobReader]:
        """Read, as soon as the store may."""
        self.may_read.wait(30)
        if self.fails:
            raise self.error
        with super().reading() as reader:
            yield reader


def opened_store() -> TemporaryJobStore:
    """One that is open."""
    store = TemporaryJobStore()
    store.open()
    return store
