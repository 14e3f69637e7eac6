"""Server-sent events as an answer: what is new, for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Protocol

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

EVENT_STREAM = "text/event-stream"
# A client that was cut off comes back after so long, ms.
_PREAMBLE = b"retry: 1000\n\n"
# A line that says nothing, for whoever closes connections that are silent.
_HEARTBEAT = b":\n\n"
# A client that takes nothing is cut off so long after its time, s.
_GRACE_S = 2.0


class EventSource(Protocol):
    """Events for one client; used on the event loop."""

    @property
    def changed(self) -> asyncio.Event:
        """Set when there may be something new."""
        ...

    @property
    def over(self) -> asyncio.Event:
        """Set when nothing new will come."""
        ...

    def news(self) -> bytes:
        """Events for all that is new since the last call; empty: nothing is."""
        ...


def event(name: str, data: bytes, *, event_id: int | None = None) -> bytes:
    """One event; its data is one line."""
    head = b"" if event_id is None else b"id: %d\n" % event_id
    return head + b"event: " + name.encode("ascii") + b"\ndata: " + data + b"\n\n"


class EventStream(Response):
    """Tells a client what is new for a while.

    A client that reads slowly is told what there is when it reads; one that is gone, or does not
    read at all, is given up.

    Args:
        source: what there is to tell.
        wait_s: how long, s; 0: what there is now.
        ready: returns when there is what to begin with; None: there is. Nothing of the answer is
            sent before.
        closing: closed when it ends, however it ends.
        heartbeat_s: after so much silence a line is sent that says nothing, s.
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
        """Send events until it is over."""
        del scope
        with self._closing:
            async with anyio.create_task_group() as tasks:
                stop = tasks.cancel_scope.cancel
                tasks.start_soon(_until_the_client_goes, receive, stop)
                if self._ready is not None:
                    await self._ready()
                with anyio.move_on_after(self._wait_s + _GRACE_S):
                    tasks.start_soon(_until_it_is_over, self._source.over, stop)
                    await self._tell(send)
                stop()

    async def _tell(self, send: Send) -> None:
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
        told = _PREAMBLE + _news(source)
        while True:
            if told:
                await send({"type": "http.response.body", "body": told, "more_body": True})
            remaining_s = deadline_s - loop.time()
            is_over = source.over.is_set() and not source.changed.is_set()
            if is_over or remaining_s <= 0:
                break
            has_changed = await _is_set(source.changed, min(self._heartbeat_s, remaining_s))
            told = _news(source) if has_changed or deadline_s <= loop.time() else _HEARTBEAT
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
    """It ends by itself then, but for a client that takes nothing."""
    await over.wait()
    await anyio.sleep(_GRACE_S)
    stop()
