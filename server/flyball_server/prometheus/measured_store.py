"""A job store that tells how long its transactions take and how they fail."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager

from flyball_server.jobs.errors import StoreError
from flyball_server.jobs.store.contract import JobReader, JobStore, JobWriter
from flyball_server.prometheus.process_metrics import ProcessMetrics


class MeasuredStore:
    """The JobStore contract over another store.

    Args:
        store: does the work.
        metrics: told of it.
    """

    def __init__(self, store: JobStore, metrics: ProcessMetrics) -> None:
        self._store = store
        self._metrics = metrics

    def open(self) -> None:
        """As the store's own."""
        with self._counting_errors():
            self._store.open()

    def close(self) -> None:
        """As the store's own."""
        self._store.close()

    @contextmanager
    def reading(self) -> Generator[JobReader]:
        """A transaction that only reads."""
        with self._measuring("read"), self._store.reading() as reader:
            yield reader

    @contextmanager
    def writing(self, subject: str) -> Generator[JobWriter]:
        """A transaction that may change things of this subject."""
        with self._measuring("write"), self._store.writing(subject) as writer:
            yield writer

    def turn(self, name: str, *, waits: bool = True) -> AbstractContextManager[bool]:
        """As the store's own; waiting for a turn is no transaction."""
        return self._store.turn(name, waits=waits)

    def signal(self, job_id: str) -> None:
        """As the store's own."""
        with self._counting_errors():
            self._store.signal(job_id)

    def listen(self, heard: Callable[[str | None], None]) -> None:
        """As the store's own."""
        self._store.listen(heard)

    @contextmanager
    def _measuring(self, kind: str) -> Generator[None]:
        started_s = time.perf_counter()
        try:
            with self._counting_errors():
                yield
        finally:
            self._metrics.observe_transaction(kind=kind, seconds=time.perf_counter() - started_s)

    @contextmanager
    def _counting_errors(self) -> Generator[None]:
        try:
            yield
        except StoreError as error:
            self._metrics.count_store_error(error)
            raise
