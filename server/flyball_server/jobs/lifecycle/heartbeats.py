"""Heartbeats: ranks that called recently, recorded at each call and stored periodically."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable

from flyball_server.jobs.errors import StoreError
from flyball_server.jobs.lifecycle.job_life import KEEP_PERIOD_S
from flyball_server.jobs.services import JobServices

_LOG = logging.getLogger(__name__)

_STOP_TIMEOUT_S = 5.0


class Heartbeats:
    """Buffer of the ranks that called, written to the store every `KEEP_PERIOD_S` seconds.

    Heartbeats that a killed planner had not written are lost; the ranks call again.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._seen: dict[str, set[int]] = {}
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def note(self, job_id: str, ranks: Iterable[int]) -> None:
        """Record that these ranks of a job have just called; thread-safe and cheap."""
        with self._guard:
            self._seen.setdefault(job_id, set()).update(ranks)

    def start(self, services: JobServices) -> None:
        """Start to write to this store periodically."""
        self._stopping.clear()
        self._thread = threading.Thread(
            target=self._run, args=(services,), name="flyball-presence", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Write the remaining heartbeats and stop."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(_STOP_TIMEOUT_S)

    def keep(self, services: JobServices) -> None:
        """Write the heartbeats to the store; those that fail are written the next time.

        Raises:
            StoreError: the store cannot be written.
        """
        now = services.now()
        with self._guard:
            taken, self._seen = self._seen, {}
        failure: StoreError | None = None
        for job_id, ranks in taken.items():
            try:
                with services.store.writing(job_id) as writer:
                    writer.touch_ranks(job_id, ranks, now)
            except StoreError as error:
                # The next job may be writable.
                self.note(job_id, ranks)
                failure = error
        if failure is not None:
            raise failure

    def _run(self, services: JobServices) -> None:
        is_last = False
        while not is_last:
            is_last = self._stopping.wait(KEEP_PERIOD_S)
            try:
                self.keep(services)
            except StoreError as error:
                _LOG.debug("heartbeats not stored: %s", error)
            except Exception:
                _LOG.exception("storing heartbeats failed")
