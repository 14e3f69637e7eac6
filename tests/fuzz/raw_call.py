"""Calls as bytes on a socket: what no HTTP client would let anybody send."""

from __future__ import annotations

import http.client
import io
import json
import socket
from dataclasses import dataclass
from typing import Any, cast

PATIENCE_S = 60.0
_PIECE_BYTES = 2**16


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answer of the planner."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def content_type(self) -> str:
        """Without its parameters."""
        return self.headers.get("content-type", "").partition(";")[0]

    @property
    def problem(self) -> dict[str, Any]:
        """The body as a Problem, which it must be."""
        assert self.content_type == "application/json", (self.status, self.headers, self.body)
        problem = json.loads(self.body)
        assert set(problem) == {"detail", "errors"}
        assert problem["detail"]
        assert "\n" not in problem["detail"]
        return cast("dict[str, Any]", problem)


def call(method: str, path: str, body: bytes | None = None, *headers: str) -> bytes:
    """The bytes of a call that asks for the connection to be closed after the answer.

    Args:
        method: as it is written.
        path: likewise.
        body: with its length declared; None: neither.
        headers: lines without their ends; a `Content-Length` among them replaces ours.
    """
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close", *headers]
    is_declared = any(line.lower().startswith(("content-length", "transfer-")) for line in headers)
    if body is not None and not is_declared:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


def json_call(method: str, path: str, body: str | bytes, *headers: str) -> bytes:
    """A call with a JSON body."""
    content = body.encode() if isinstance(body, str) else body
    return call(method, path, content, "Content-Type: application/json", *headers)


def send(address: tuple[str, int], sent: bytes, *, ends: bool = False) -> bytes:
    """Send these bytes on a connection of their own; all that comes back until it is closed.

    Args:
        address: of the planner.
        sent: at once, as far as the planner takes them.
        ends: whether nothing more can follow: the sending side is closed.
    """
    with socket.create_connection(address, timeout=PATIENCE_S) as connection:
        try:
            connection.sendall(sent)
            if ends:
                connection.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has answered, and read no further
        received = bytearray()
        try:
            while piece := connection.recv(_PIECE_BYTES):
                received += piece
        except ConnectionResetError:
            pass  # likewise, with bytes of ours unread
        return bytes(received)


def answers(received: bytes) -> list[Answer]:
    """The answers in what came back, one after another."""
    stream = _Stream(received)
    found: list[Answer] = []
    while stream.tell() < len(received):
        answer = http.client.HTTPResponse(cast("socket.socket", stream))
        answer.begin()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        found.append(Answer(status=answer.status, headers=headers, body=answer.read()))
    return found


class _Stream(io.BytesIO):
    """Socket for http.client that stays open after the end of an answer."""

    def makefile(self, _mode: str) -> io.BytesIO:
        return self

    def close(self) -> None:
        pass
