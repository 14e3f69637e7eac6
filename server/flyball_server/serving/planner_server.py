"""The planner on a socket, by uvicorn, from its first answer to its last."""

from __future__ import annotations

import gc
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from flyball_server.app import create_app, release_long_polls
from flyball_server.http.middleware.token_access import DOCS
from flyball_server.jobs.store.contract import JobStore
from flyball_server.planning.warm_up import warm_up
from flyball_server.serving.listening import TLS_CIPHERS, address_of, must_ask
from flyball_server.serving.request_deadline_protocol import patient_protocol
from flyball_server.settings import Settings

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
    """What is there by now stays: looking through it for garbage takes a tenth of a second.

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
