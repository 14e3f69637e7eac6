"""HTTP/1.1 as uvicorn speaks it, for requests that arrive in finite time."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

# The app answers 408 to a body that is late; this is for whoever does not even take that, s.
_MARGIN_S = 5.0


def patient_protocol(timeout_s: float) -> type[H11Protocol]:
    """A protocol that breaks connections off whose request takes longer than this to arrive.

    A connection that has not sent anything counts as a request on its way; one that waits for
    its answer, or between two requests, does not.

    Args:
        timeout_s: s.
    """

    class PatientProtocol(H11Protocol):
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

    return PatientProtocol
