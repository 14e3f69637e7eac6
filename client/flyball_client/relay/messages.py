"""HTTP/1.1 as the ranks of a node speak it to their relay: requests with a known length."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

# Answered by the relay itself: it is there.
PING = "/relay"
# More than the largest batch that a rank posts.
MAX_BODY_BYTES = 64 * 2**20
MAX_HEADER_BYTES = 64 * 2**10
_JSON = "application/json"
# Of one connection only: they are not passed on.
_NOT_PASSED_ON = frozenset(
    {"connection", "keep-alive", "content-length", "transfer-encoding", "host", "upgrade", "te"}
)
# What says who calls: only calls that agree in it may be joined.
_CREDENTIALS = ("flyball-token", "authorization")


class MessageError(Exception):
    """What came is no request that a rank would send."""


@dataclass(frozen=True, kw_only=True)
class RelayRequest:
    """A rank's call.

    Attributes:
        target: path and query as they were sent.
        headers: by their names in lower case.
    """

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def credentials(self) -> tuple[tuple[str, str], ...]:
        """The headers that say who calls."""
        return tuple((name, self.headers[name]) for name in _CREDENTIALS if name in self.headers)

    @property
    def passed_on(self) -> dict[str, str]:
        """The headers for the planner."""
        return {name: text for name, text in self.headers.items() if name not in _NOT_PASSED_ON}


@dataclass(frozen=True, kw_only=True)
class RelayAnswer:
    """What a rank is answered; `headers` beside those of the body."""

    status: int
    body: bytes = b""
    content_type: str = _JSON
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def of_json(cls, document: object, *, status: int = 200) -> RelayAnswer:
        """An answer with this JSON as its body."""
        return cls(status=status, body=json.dumps(document).encode())

    @classmethod
    def problem(cls, status: int, detail: str) -> RelayAnswer:
        """An error, in the planner's form."""
        return cls.of_json({"detail": detail, "errors": []}, status=status)

    def encoded(self) -> bytes:
        """As it is sent."""
        lines = [
            f"HTTP/1.1 {self.status} {_reason(self.status)}",
            *(f"{name}: {text}" for name, text in self.headers.items()),
        ]
        if self.status != HTTPStatus.NO_CONTENT:
            lines += [f"content-type: {self.content_type}", f"content-length: {len(self.body)}"]
        return "\r\n".join((*lines, "", "")).encode("latin-1") + self.body


async def read_request(reader: asyncio.StreamReader) -> RelayRequest | None:
    """The next request of a connection; None: the rank has closed it.

    Raises:
        MessageError: it is none.
        OSError: the connection broke.
    """
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    except asyncio.LimitOverrunError:
        raise MessageError("the headers are too long") from None
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1.") or not words[1].startswith("/"):
        raise MessageError("that is no HTTP request")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, text = line.partition(":")
        if not colon:
            raise MessageError("that is no HTTP header")
        headers[name.strip().lower()] = text.strip()
    body = await _read_body(reader, headers)
    return RelayRequest(method=words[0], target=words[1], headers=headers, body=body)


async def _read_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    length = headers.get("content-length", "0")
    if "transfer-encoding" in headers or not (length.isascii() and length.isdigit()):
        raise MessageError("a body must have a known length")
    if len(length) > 12 or int(length) > MAX_BODY_BYTES:
        raise MessageError("the body is too large")
    try:
        return await reader.readexactly(int(length))
    except asyncio.IncompleteReadError:
        raise MessageError("the body is cut off") from None


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Status"
