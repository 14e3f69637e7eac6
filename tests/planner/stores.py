"""A job store for a test: SQLite's, in a folder that goes with it."""

from __future__ import annotations

import shutil
import tempfile
import threading
import weakref
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import Dialect, Engine

from flyball_server.jobs.errors import StoreUnavailableError
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.jobs.store.sqlite.sqlite_store import SqliteJobStore, make_sqlite_engine

# In memory where there is such a place: on a disk a database takes ten times as long to make.
_SHARED = Path("/dev/shm")  # noqa: S108 - a folder of its own is made there
MEMORY = _SHARED if _SHARED.is_dir() else None


# Compiled statements of all stores: to compile them for each took a fifth of the time of tests.
_COMPILED: dict[Any, Any] = {}


@cache
def _empty_database() -> tuple[bytes, Dialect]:
    """Return a file with the schema and no job, and the dialect of compiled statements."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        file = Path(folder) / "planner.sqlite"
        store = SqliteJobStore(file)
        store.open()
        store.close()
        engine = make_sqlite_engine(file)
        engine.connect().close()
        engine.dispose()
        return file.read_bytes(), engine.dialect


class TemporaryJobStore(SqliteJobStore):
    """The store on a new file, which is removed when nobody holds the store any more."""

    def __init__(self) -> None:
        folder = tempfile.mkdtemp(dir=MEMORY)
        file = Path(folder) / "planner.sqlite"
        file.write_bytes(_empty_database()[0])
        super().__init__(file)
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)

    def open(self) -> None:
        """Open the file, or open it again."""
        was_open = self._engine is not None
        super().open()
        if self._engine is not None and not was_open:
            self._engine.dialect = _empty_database()[1]
            self._engine = self._engine.execution_options(compiled_cache=_COMPILED)
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
