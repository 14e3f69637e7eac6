"""The planner's uvicorn server."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from flyball_server.app import create_app, release_long_polls
from flyball_server.http.middleware.token_access import DOCS
from flyball_server.jobs.store.contract import JobStore
from flyball_server.serving.certificate import ServedCertificate
from flyball_server.serving.listening import TLS_CIPHERS, address_of, must_ask
from flyball_server.settings import Settings, SettingsError

# The app answers 408 to a late body; a connection that is still open after this is aborted, s.
_MARGIN_S = 5.0


def request_deadline_protocol(timeout_s: float) -> type[H11Protocol]:
    """Return a protocol that aborts connections whose request takes too long to arrive.

    The time also runs on a new connection that has sent nothing, but not between requests or
    while a request is answered.

    Args:
        timeout_s: limit on the time in which a request arrives, s.
    """

    class RequestDeadlineProtocol(H11Protocol):
        """uvicorn's protocol with a limit on the time in which a request arrives."""

        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
            super().connection_made(transport)
            self._update_deadline()

        def connection_lost(self, exc: Exception | None) -> None:
            self._cancel_deadline()
            super().connection_lost(exc)

        def handle_events(self) -> None:
            super().handle_events()
            self._update_deadline()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._update_deadline()

        def shutdown(self) -> None:
            super().shutdown()
            # Over TLS a close waits for the client's close, which an idle client does not send.
            if self.transport.is_closing() and not self.transport.get_write_buffer_size():
                self.transport.abort()

        def _update_deadline(self) -> None:
            if not self._is_arriving():
                self._cancel_deadline()
            elif self._deadline is None:
                self._deadline = self.loop.call_later(timeout_s + _MARGIN_S, self._abort)

        def _cancel_deadline(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

        def _is_arriving(self) -> bool:
            if self.conn.their_state is h11.SEND_BODY:
                return True
            begun = bool(self.conn.trailing_data[0]) or self.cycle is None
            return self.conn.their_state is h11.IDLE and begun

        def _abort(self) -> None:
            self._deadline = None
            if self.transport is not None and not self.transport.is_closing():
                self.transport.abort()

    return RequestDeadlineProtocol


# Time that running calls have to end at shutdown, s.
_GRACE_S = 10
# Longer than the pause between two posts of a rank, s.
_KEEP_ALIVE_S = 75


def serve_planner(settings: Settings, store: JobStore, listener: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM; the store is open and the listener bound."""
    app = create_app(settings, store)
    if must_ask(listener, settings):
        app.state.planner.gate.ask_always()
    config = uvicorn.Config(
        app,
        log_config=None,  # and no log_level: uvicorn would reset its loggers' levels
        access_log=settings.log_level == "debug",
        timeout_graceful_shutdown=_GRACE_S,
        timeout_keep_alive=_KEEP_ALIVE_S,
        http=request_deadline_protocol(settings.body_timeout_s),
        ws="none",
        h11_max_incomplete_event_size=settings.max_header_bytes,
        limit_concurrency=settings.max_connections,
        server_header=False,
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
        ssl_ciphers=TLS_CIPHERS,
    )
    certificate = _served_certificate(settings, config)
    server = _PlannerServer(config, app, address_of(listener, settings), certificate)
    try:
        with _ended_by_sigterm_as_by_ctrl_c():
            server.run(sockets=[listener])
    except KeyboardInterrupt:
        return  # uvicorn has shut down by now


def _served_certificate(settings: Settings, config: uvicorn.Config) -> ServedCertificate | None:
    """Return the certificate that uvicorn's connections get; None: plain HTTP."""
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    try:
        config.load()
    except OSError as error:  # the files were replaced after their check
        raise SettingsError(
            f"{settings.tls_certificate} and {settings.tls_key} cannot be loaded ({error});"
            " start the planner again"
        ) from None
    if config.ssl is None:
        return None
    return ServedCertificate(config.ssl, Path(settings.tls_certificate), Path(settings.tls_key))


@contextmanager
def _ended_by_sigterm_as_by_ctrl_c() -> Iterator[None]:
    """Run exit handlers after SIGTERM too: uvicorn raises the signal again after its shutdown."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _spare_garbage_collection() -> None:
    """Exempt all current objects from garbage collection, which takes 0.1 s over them.

    A collection would delay a large plan, for which ranks wait.
    """
    gc.collect()
    gc.freeze()


class _PlannerServer(uvicorn.Server):
    """uvicorn's server, which prints its address and answers long polls at shutdown."""

    def __init__(
        self,
        config: uvicorn.Config,
        app: FastAPI,
        address: str,
        certificate: ServedCertificate | None,
    ) -> None:
        super().__init__(config)
        self._app = app
        self._address = address
        self._certificate = certificate
        self._watch: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            if self._certificate is not None:
                self._watch = asyncio.create_task(self._certificate.watch())
            _spare_garbage_collection()
            print(
                f"Flyball planner listening on {self._address} (API: {self._address}{DOCS})",
                flush=True,
            )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # uvicorn waits for open calls before it ends the app's lifespan.
        release_long_polls(self._app)
        if self._watch is not None:
            self._watch.cancel()
        await super().shutdown(sockets)
