"""The planner on a socket, by uvicorn, from its first answer to its last."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from flyball_server.app import create_app, release_long_polls
from flyball_server.http.middleware.token_access import DOCS
from flyball_server.jobs.store.contract import JobStore
from flyball_server.planning.warm_up import warm_up
from flyball_server.serving.listening import TLS_CIPHERS, address_of, must_ask
from flyball_server.settings import Settings

# The app answers 408 to a body that is late; this is for whoever does not even take that, s.
_MARGIN_S = 5.0


def patient_protocol(timeout_s: float) -> type[H11Protocol]:
    """A protocol that breaks connections off whose request takes longer than this to arrive.

    A connection that has not sent anything counts as a request on its way; one that waits for
    its answer, or between two requests, does not.

    Args:
        timeout_s: s.
    """

    class RequestDeadlineProtocol(H11Protocol):
        """uvicorn's, with a bound on the time that a request may take to arrive."""

        _impatience: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
            super().connection_made(transport)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._rest()
            super().connection_lost(exc)

        def handle_events(self) -> None:
            super().handle_events()
            self._watch()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._watch()

        def shutdown(self) -> None:
            super().shutdown()
            # Over TLS a close waits for the other side's goodbye, which an idle one never says.
            if self.transport.is_closing() and not self.transport.get_write_buffer_size():
                self.transport.abort()

        def _watch(self) -> None:
            if not self._is_on_its_way():
                self._rest()
            elif self._impatience is None:
                self._impatience = self.loop.call_later(timeout_s + _MARGIN_S, self._break_off)

        def _rest(self) -> None:
            if self._impatience is not None:
                self._impatience.cancel()
                self._impatience = None

        def _is_on_its_way(self) -> bool:
            if self.conn.their_state is h11.SEND_BODY:
                return True
            begun = bool(self.conn.trailing_data[0]) or self.cycle is None
            return self.conn.their_state is h11.IDLE and begun

        def _break_off(self) -> None:
            self._impatience = None
            if self.transport is not None and not self.transport.is_closing():
                self.transport.abort()

    return RequestDeadlineProtocol


# A plan being made, or an answer being sent, may take so long to end at shutdown.
_GRACE_S = 10
# Ranks that post each step, or every half minute, need not connect each time.
_KEEP_ALIVE_S = 75


def serve_planner(settings: Settings, store: JobStore, listener: socket.socket) -> None:
    """Answer until SIGINT or SIGTERM; the store is open, the listener bound."""
    if settings.planning_processes == 0:
        warm_up()  # the first plan is then not made to wait for the compiler
    app = create_app(settings, store)
    if must_ask(listener, settings):
        app.state.planner.gate.ask_always()
    config = uvicorn.Config(
        app,
        log_config=None,  # nor log_level: uvicorn would set its own loggers' levels again
        access_log=settings.log_level == "debug",
        timeout_graceful_shutdown=_GRACE_S,
        timeout_keep_alive=_KEEP_ALIVE_S,
        http=patient_protocol(settings.body_timeout_s),
        ws="none",
        h11_max_incomplete_event_size=settings.max_header_bytes,
        limit_concurrency=settings.max_connections,
        server_header=False,
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
        ssl_ciphers=TLS_CIPHERS,
    )
    try:
        with _ended_by_sigterm_as_by_ctrl_c():
            _PlannerServer(config, app, address_of(listener, settings)).run(sockets=[listener])
    except KeyboardInterrupt:
        return  # Ctrl-C is how a planner in a terminal is ended; uvicorn has shut down by now


@contextmanager
def _ended_by_sigterm_as_by_ctrl_c() -> Iterator[None]:
    """Exit handlers run too: uvicorn raises the signal that ended it again, when it is done."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _spare_garbage_collection() -> None:
    """Exempt all objects made so far from garbage collection, which takes 0.1 s over them.

    That would come when a large plan does, with ranks waiting for it.
    """
    gc.collect()
    gc.freeze()


class _PlannerServer(uvicorn.Server):
    """uvicorn, which also says where it listens and does not wait for long polls at its end."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, address: str) -> None:
        super().__init__(config)
        self._app = app
        self._address = address

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            _spare_garbage_collection()
            print(
                f"Flyball planner listening on {self._address} (API: {self._address}{DOCS})",
                flush=True,
            )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # uvicorn first waits for open calls, and only then ends the app's lifespan.
        release_long_polls(self._app)
        await super().shutdown(sockets)
