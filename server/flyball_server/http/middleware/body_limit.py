"""Limits on requests: 431 and 413 for too large ones, 408 for ones that do not arrive."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flyball_server.http.edge_errors import (
    BodyTooLargeError,
    BodyTooSlowError,
    FramingError,
    HeadersTooLargeError,
)
from flyball_server.http.problem_handlers import problem_response

_ENDS = {b"content-length", b"transfer-encoding"}


class HeaderCheck:
    """ASGI middleware: refuse calls whose headers are too long, or declare two ends.

    A proxy may go by the other end, and take the rest for another call (request smuggling).

    Args:
        app: app behind it.
        max_header_bytes: limit on the request line with all headers.
    """

    def __init__(self, app: ASGIApp, *, max_header_bytes: int) -> None:
        self._app = app
        self._max_header_bytes = max_header_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the call, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif {name for name, _ in scope["headers"]} >= _ENDS:
            response = problem_response(FramingError())
            response.headers["Connection"] = "close"
            await response(scope, receive, send)
        elif _num_header_bytes(scope) > self._max_header_bytes:
            long = HeadersTooLargeError(max_header_bytes=self._max_header_bytes)
            await problem_response(long)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


class BodyLimit:
    """ASGI middleware: read the body within the limits, then forward the call.

    Args:
        app: app behind it.
        max_body_bytes: limit on the body, which is also the most that is kept in memory.
        body_timeout_s: limit on the time in which the body arrives, s.
    """

    def __init__(self, app: ASGIApp, *, max_body_bytes: int, body_timeout_s: float) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._body_timeout_s = body_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the call, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self._body_timeout_s):
                messages = None if self._declares_too_much(scope) else await self._read(receive)
        except TimeoutError:
            slow = BodyTooSlowError(timeout_s=f"{self._body_timeout_s:g}")
            response = problem_response(slow)
            response.headers["Connection"] = "close"  # the rest of the body is not read
            await response(scope, receive, send)
            return
        if messages is None:
            error = BodyTooLargeError(max_body_bytes=self._max_body_bytes)
            await problem_response(error)(scope, receive, send)
            return
        await self._app(scope, _replayed(messages, receive), send)

    def _declares_too_much(self, scope: Scope) -> bool:
        declared: bytes = dict(scope["headers"]).get(b"content-length", b"")
        if not declared.isdigit():
            return False  # absent or invalid: the bytes are counted as they arrive
        return len(declared) > 18 or int(declared) > self._max_body_bytes

    async def _read(self, receive: Receive) -> list[Message] | None:
        """Return all messages of the body; None: it exceeds the limit."""
        messages: list[Message] = []
        num_bytes = 0
        while True:
            message = await receive()
            messages.append(message)
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._max_body_bytes:
                return None
            if message["type"] != "http.request" or not message.get("more_body", False):
                return messages


def _num_header_bytes(scope: Scope) -> int:
    """Return the size of the address and the headers, without separators."""
    address: int = len(scope.get("raw_path") or b"") + len(scope["query_string"])
    return address + sum(len(name) + len(value) for name, value in scope["headers"])


def _replayed(messages: list[Message], receive: Receive) -> Receive:
    waiting = iter(messages)

    async def next_message() -> Message:
        message = next(waiting, None)
        return await receive() if message is None else message

    return next_message
