"""Answers of server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Protocol

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

EVENT_STREAM = "text/event-stream"
# Pause before a client reconnects, ms.
_PREAMBLE = b"retry: 1000\n\n"
# A comment line, for proxies that close silent connections.
_HEARTBEAT = b":\n\n"
# Time after which a client that does not read is disconnected at the end, s.
_GRACE_S = 2.0


class EventSource(Protocol):
    """Events for one client; used on the event loop."""

    @property
    def changed(self) -> asyncio.Event:
        """Event that is set when there may be news."""
        ...

    @property
    def over(self) -> asyncio.Event:
        """Event that is set when there will be no more news."""
        ...

    def news(self) -> bytes:
        """Return events of all changes since the last call; empty: none."""
        ...


def event(name: str, data: bytes, *, event_id: int | None = None) -> bytes:
    """Return one event, whose data is one line."""
    head = b"" if event_id is None else b"id: %d\n" % event_id
    return head + b"event: " + name.encode("ascii") + b"\ndata: " + data + b"\n\n"


class EventStream(Response):
    """Answer that sends a source's news for some time.

    A slow client receives the state at the time of its reading. The stream ends for a client that
    disconnects or does not read.

    Args:
        source: source of the events.
        wait_s: duration, s; 0: end after the current state.
        ready: returns when the answer may begin; None: at once.
        closing: resources that are closed at the end.
        heartbeat_s: longest silence before a comment line is sent, s.
    """

    media_type = EVENT_STREAM

    def __init__(
        self,
        source: EventSource,
        *,
        wait_s: float,
        closing: ExitStack,
        heartbeat_s: float,
        ready: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self._source = source
        self._wait_s = wait_s
        self._closing = closing
        self._ready = ready
        self._heartbeat_s = heartbeat_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the end of the stream."""
        del scope
        with self._closing:
            async with anyio.create_task_group() as tasks:
                stop = tasks.cancel_scope.cancel
                tasks.start_soon(_until_the_client_goes, receive, stop)
                if self._ready is not None:
                    await self._ready()
                with anyio.move_on_after(self._wait_s + _GRACE_S):
                    tasks.start_soon(_until_it_is_over, self._source.over, stop)
                    await self._send_news(send)
                stop()

    async def _send_news(self, send: Send) -> None:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._wait_s
        source = self._source
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )
        data = _PREAMBLE + _news(source)
        while True:
            if data:
                await send({"type": "http.response.body", "body": data, "more_body": True})
            remaining_s = deadline_s - loop.time()
            is_over = source.over.is_set() and not source.changed.is_set()
            if is_over or remaining_s <= 0:
                break
            has_changed = await _is_set(source.changed, min(self._heartbeat_s, remaining_s))
            data = _news(source) if has_changed or deadline_s <= loop.time() else _HEARTBEAT
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _news(source: EventSource) -> bytes:
    source.changed.clear()
    return source.news()


async def _is_set(event: asyncio.Event, longest_s: float) -> bool:
    try:
        async with asyncio.timeout(longest_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def _until_the_client_goes(receive: Receive, stop: Callable[[], None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    stop()


async def _until_it_is_over(over: asyncio.Event, stop: Callable[[], None]) -> None:
    """Stop some time after the last news, for a client that does not read."""
    await over.wait()
    await anyio.sleep(_GRACE_S)
    stop()
