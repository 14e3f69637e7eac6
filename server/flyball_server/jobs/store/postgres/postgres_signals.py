"""Signals between planners on one PostgreSQL: NOTIFY and LISTEN on one connection for each."""

from __future__ import annotations

import logging
import selectors
import socket
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import psycopg
from psycopg.pq.abc import PGconn

from flyball_server.jobs.store.postgres.postgres_engine import PostgresAddress

_LOG = logging.getLogger(__name__)
_CHANNEL = "flyball"
# Signals in this interval are sent together: each sending is a transaction of its own, s.
_SEND_PAUSE_S = 0.005
_FIRST_RETRY_S, _LONGEST_RETRY_S = 0.1, 5.0
_STOP_TIMEOUT_S = 10.0

Heard = Callable[[str | None], None]


class PostgresSignals:
    """Signals of the JobStore contract.

    The thread and its connection start with the first signal or listener after `start`. While
    PostgreSQL is unreachable, signals reach this process alone; afterwards they are sent, and the
    listener is called with None. The same holds if the process has no thread or file left for them.
    """

    def __init__(self, address: PostgresAddress) -> None:
        self._address = address
        self._guard = threading.Lock()
        self._heard: Heard | None = None
        self._unsent: set[str] = set()
        self._is_started = False
        self._is_stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._waker: socket.socket | None = None
        self._has_no_thread = False
        self._is_away = False  # used by the thread alone

    def start(self) -> None:
        """Start to send and receive."""
        self._is_started = True
        self._is_stopping.clear()
        if self._heard is not None:
            self._run_thread()

    def stop(self) -> None:
        """Send the remaining signals if possible at once, and stop."""
        with self._guard:
            self._is_started = False
            self._is_stopping.set()
            thread, self._thread = self._thread, None
            waker, self._waker = self._waker, None
        if thread is not None and waker is not None:
            waker.close()  # which wakes the thread
            thread.join(_STOP_TIMEOUT_S)

    def signal(self, job_id: str) -> None:
        """Notify all listeners: this process's at once, the others' by PostgreSQL."""
        self._tell(job_id)
        with self._guard:
            is_new = job_id not in self._unsent
            self._unsent.add(job_id)
        self._run_thread()
        if is_new:
            self._wake()

    def listen(self, heard: Heard) -> None:
        """Register the callback for each job that any planner signals; None: any job."""
        self._heard = heard
        self._run_thread()

    def _run_thread(self) -> None:
        with self._guard:
            if self._thread is not None or not self._is_started:
                return
            try:
                self._start_thread()
            except (OSError, RuntimeError) as error:  # retried at the next signal
                if not self._has_no_thread:
                    _LOG.warning("signals between planners are paused, no thread: %s", error)
                self._has_no_thread = True
            else:
                self._has_no_thread = False

    def _start_thread(self) -> None:
        """Start the thread; OSError or RuntimeError if the process has no more files or threads."""
        waker, woken = socket.socketpair()
        waker.setblocking(False)
        woken.setblocking(False)
        thread = threading.Thread(
            target=self._run, args=(woken,), name="flyball-signals", daemon=True
        )
        try:
            thread.start()
        except BaseException:
            waker.close()
            woken.close()
            raise
        self._waker, self._thread = waker, thread

    def _wake(self) -> None:
        with self._guard:
            try:
                if self._waker is not None:
                    self._waker.send(b"\0")
            except BlockingIOError:
                return  # already woken

    def _run(self, woken: socket.socket) -> None:
        retry_s = _FIRST_RETRY_S
        with closing(woken):
            while True:
                try:
                    with (
                        closing(self._address.connect(autocommit=True)) as connection,
                        selectors.DefaultSelector() as ready,
                    ):
                        retry_s = _FIRST_RETRY_S
                        self._serve(connection, woken, ready)
                        return
                except Exception as error:
                    if retry_s == _FIRST_RETRY_S and not self._is_stopping.is_set():
                        is_databases = isinstance(error, psycopg.Error)
                        _LOG.warning(
                            "signals between planners are paused: %s",
                            self._address.error(error).message if is_databases else error,
                            exc_info=None if is_databases else error,
                        )
                        self._is_away = True
                if self._is_stopping.wait(retry_s):
                    return
                retry_s = min(2 * retry_s, _LONGEST_RETRY_S)

    def _serve(
        self,
        connection: psycopg.Connection[Any],
        woken: socket.socket,
        ready: selectors.BaseSelector,
    ) -> None:
        """Send and receive until `woken` signals the end or the connection ends."""
        own_process = connection.info.backend_pid

        def note(process: int, job_id: str) -> None:
            if process != own_process:
                self._tell(job_id)

        connection.add_notify_handler(lambda notify: note(notify.pid, notify.payload))
        connection.execute(f"LISTEN {_CHANNEL}")
        if self._is_away:
            self._is_away = False
            _LOG.info("signals between planners resumed: the database is reachable")
        self._tell(None)  # earlier signals are unknown
        ready.register(connection.fileno(), selectors.EVENT_READ)
        ready.register(woken, selectors.EVENT_READ)
        while True:
            self._send(connection)
            _hear(connection.pgconn, note)
            if self._is_stopping.is_set():
                return
            for key, _ in ready.select():
                if key.fileobj is woken:
                    _empty(woken)
                else:
                    connection.pgconn.consume_input()

    def _send(self, connection: psycopg.Connection[Any]) -> None:
        with self._guard:
            sent, self._unsent = self._unsent, set()
        if not sent:
            return
        try:
            connection.execute(
                "SELECT pg_notify(%s, job_id) FROM unnest(%s::text[]) AS job_id",
                (_CHANNEL, sorted(sent)),
            )
        except psycopg.Error:
            with self._guard:
                self._unsent |= sent
            raise
        self._is_stopping.wait(_SEND_PAUSE_S)

    def _tell(self, job_id: str | None) -> None:
        heard = self._heard
        if heard is None:
            return
        try:
            heard(job_id)
        except Exception:
            _LOG.exception("a listener failed")


def _hear(connection: PGconn, note: Callable[[int, str], None]) -> None:
    """Record notifications that arrived along with the answers to our own statements."""
    while (notify := connection.notifies()) is not None:
        note(notify.be_pid, notify.extra.decode())


def _empty(woken: socket.socket) -> None:
    try:
        while woken.recv(4096):
            continue
    except BlockingIOError:
        return
