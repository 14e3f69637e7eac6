"""The limit on request bodies: 413 before more than the limit is in memory."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flyball_server.rest.edge_errors import BodyTooLargeError
from flyball_server.rest.problem_handlers import problem_response


class BodyLimit:
    """ASGI middleware: reads the body up to the limit, then hands it on whole."""

    def __init__(self, app: ASGIApp, *, max_body_bytes: int) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the call on, or answer it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        messages = None if self._declares_too_much(scope) else await self._read(receive)
        if messages is None:
            error = BodyTooLargeError(max_body_bytes=self._max_body_bytes)
            await problem_response(error)(scope, receive, send)
            return
        await self._app(scope, _replayed(messages, receive), send)

    def _declares_too_much(self, scope: Scope) -> bool:
        declared: bytes = dict(scope["headers"]).get(b"content-length", b"")
        if not declared.isdigit():
            return False  # none, or nonsense: counting what comes is what protects
        return len(declared) > 18 or int(declared) > self._max_body_bytes

    async def _read(self, receive: Receive) -> list[Message] | None:
        """All messages of the body; None when it grows beyond the limit."""
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


def _replayed(messages: list[Message], receive: Receive) -> Receive:
    waiting = iter(messages)

    async def next_message() -> Message:
        message = next(waiting, None)
        return await receive() if message is None else message

    return next_message
