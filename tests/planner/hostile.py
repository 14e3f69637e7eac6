"""A planner that was taken over: raw HTTP on loopback, whatever bytes a test wants as answers."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from tests.planner.patience import PATIENCE_S

HOST = "127.0.0.1"
# Between two pieces of an answer that drips; far below any timeout of a client.
_DRIP_S = 0.02


class Request(NamedTuple):
    """One request, as it came.

    Attributes:
        method: Of its first line.
        target: Path and query of its first line.
        head: All lines before the body.
        body: All of it.
    """

    method: str
    target: str
    head: bytes
    body: bytes


Answer = Callable[["HostilePlanner", Request], Iterable[bytes]]
"""Pieces of the answer to a request."""


class HostilePlanner:
    """Server that sends each client the pieces of an answer, until the client goes or it stops.

    Attributes:
        requests: Requests, in order.
        stopping: Event that ends all answers.
    """

    def __init__(self, answer: Answer) -> None:
        self.requests: list[Request] = []
        self.stopping = threading.Event()
        self._answer = answer
        self._listener = socket.create_server((HOST, 0))
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def url(self) -> str:
        """Return its address."""
        return f"http://{HOST}:{self._listener.getsockname()[1]}"

    def pause(self) -> bool:
        """Wait between two pieces that drip; return whether to go on."""
        return not self.stopping.wait(_DRIP_S)

    def close(self) -> None:
        """End all answers and listen no more."""
        self.stopping.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(PATIENCE_S)
        self._listener.close()
        for thread in self._threads[1:]:
            thread.join(PATIENCE_S)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while not self.stopping.is_set():
                connection, _ = self._listener.accept()
                self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
                self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(0.1)
        with connection, contextlib.suppress(OSError):
            while (request := self._read_request(connection)) is not None:
                self.requests.append(request)
                for piece in self._answer(self, request):
                    self._send(connection, piece)

    def _send(self, connection: socket.socket, piece: bytes) -> None:
        left = memoryview(piece)
        while left:
            if self.stopping.is_set():
                raise ConnectionAbortedError
            with contextlib.suppress(TimeoutError):
                left = left[connection.send(left) :]

    def _read_request(self, connection: socket.socket) -> Request | None:
        """Return the next request; None: there is none."""
        received = b""
        while not self.stopping.is_set():
            with contextlib.suppress(TimeoutError):
                piece = connection.recv(65536)
                if not piece:
                    return None
                received += piece
            head, end, body = received.partition(b"\r\n\r\n")
            if end and len(body) >= _content_length(head):
                method, target, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
                return Request(method, target, head, body)
        return None


@contextmanager
def hostile_planner(answer: Answer) -> Iterator[HostilePlanner]:
    """Serve such answers until the block ends."""
    planner = HostilePlanner(answer)
    try:
        yield planner
    finally:
        planner.close()


def whole(body: object, *, status: str = "200 OK", headers: str = "") -> Iterable[bytes]:
    """Return an honest answer: JSON, or bytes as they are."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(content)}\r\n\r\n"
    return (head.encode() + content,)


_INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
_OK = b"HTTP/1.1 200 OK\r\n"


def _endless(first: bytes, piece: bytes) -> Answer:
    """Return an answer whose pieces come as fast as the client reads them."""

    def answer(planner: HostilePlanner, _request: Request) -> Iterator[bytes]:
        yield first
        while not planner.stopping.is_set():
            yield piece

    return answer


def _dripping(first: bytes, piece: bytes) -> Answer:
    """Return an answer with a piece now and then, so that no read of the client waits for long."""

    def answer(planner: HostilePlanner, _request: Request) -> Iterator[bytes]:
        yield first
        while planner.pause():
            yield piece

    return answer


endless_interim = _endless(b"", 100 * _INTERIM)
endless_head = _endless(_OK, 100 * b"a: b\r\n")
endless_body = _endless(_OK + b"Content-Length: 1000000000000\r\n\r\n", b"[" * 65536)
endless_chunks = _endless(_OK + b"Transfer-Encoding: chunked\r\n\r\n", 1000 * b"1\r\n[\r\n")
dripping_head = _dripping(_OK, b"a: b\r\n")
dripping_body = _dripping(_OK + b"Content-Length: 100000\r\n\r\n", b" ")


def packed_lists(planner: HostilePlanner, request: Request) -> Iterable[bytes]:
    """32 KB of gzip that are 32 MiB of JSON."""
    del planner, request
    body = gzip.compress(b"[" + b"[]," * (32 * 2**20 // 3) + b"[]]")
    return whole(body, headers="Content-Encoding: gzip\r\n")


def twice_packed(planner: HostilePlanner, request: Request) -> Iterable[bytes]:
    """A few KB of gzip in gzip that are 64 MiB."""
    del planner, request
    body = gzip.compress(gzip.compress(bytes(64 * 2**20)))
    return whole(body, headers="Content-Encoding: gzip, gzip\r\n")


def _content_length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0
