"""A false zeusd: a real HTTP server on a Unix socket or TCP, over the false NVML's GPUs."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import TracebackType

from tests.false_nvml.library import FalseNvml
from tests.false_zeusd.answers import Answer, Discovery, ZeusdAnswers


class FalseZeusd:
    """Serves in threads of its own from its making until `close`.

    Args:
        nvml: whose GPUs it sets; it has the right to, whatever faults are switched on there.
        place: the path of its socket, or None for a free TCP port of 127.0.0.1.
        gpus: the GPUs of `nvml` in its own order; None: all in NVML's.
        token: what a request must bring; None: nothing.
        discovery: what it tells of its GPUs.
        api_groups: what it serves.

    Attributes:
        endpoint: where it is, as the client wants it.

    Those that may be changed at any time:

    Attributes:
        before_answer: is called in the connection's thread when an order has been carried out.
        closes: its connection after each answer, without having said so.
        num_hang_ups: requests to come that are carried out, but get no answer: the connection
            ends.
        answers_with: status and body of every answer to come, but those to `GET /discover`;
            nothing is carried out.
        says: bytes to send instead of any answer.
    """

    def __init__(
        self,
        nvml: FalseNvml,
        place: Path | None = None,
        *,
        gpus: Sequence[int] | None = None,
        token: str | None = None,
        discovery: Discovery = "addresses",
        api_groups: Sequence[str] = ("gpu-control", "gpu-read"),
    ) -> None:
        self.before_answer: Callable[[], None] = _do_nothing
        self.closes = False
        self.num_hang_ups = 0
        self.answers_with: Answer | None = None
        self.says: bytes | None = None
        self.requests: list[str] = []
        """`METHOD /path?query` of every request that arrived."""
        self.num_connections = 0
        """Number of connections that clients have opened."""
        self.open_connections: set[socket.socket] = set()
        self.failures: list[Exception] = []
        self.answers = ZeusdAnswers(
            nvml=nvml,
            gpus=range(nvml.num_gpus) if gpus is None else gpus,
            token=token,
            discovery=discovery,
            api_groups=api_groups,
        )
        self._place = place
        handler = type("Handler", (_Connection,), {"zeusd": self})
        self._server: socketserver.BaseServer
        if place is None:
            self._server = tcp = socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler)
            self.endpoint = f"127.0.0.1:{tcp.server_address[1]}"
        else:
            self._server = socketserver.ThreadingUnixStreamServer(str(place), handler)
            self.endpoint = str(place)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def __enter__(self) -> FalseZeusd:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def orders(self) -> list[str]:
        """The requests that arrived and were not for reading."""
        return [request for request in self.requests if request.startswith("POST ")]

    def close(self) -> None:
        """Stop, once or again: open connections end, and the socket's file is gone."""
        self._server.shutdown()
        self._thread.join()
        for connection in list(self.open_connections):
            with contextlib.suppress(OSError):  # the other side was faster
                connection.shutdown(socket.SHUT_RDWR)
        self._server.server_close()  # waits for the connections' threads
        if self._place is not None:
            self._place.unlink(missing_ok=True)
        assert self.failures == []


def _do_nothing() -> None:
    pass


class _Connection(BaseHTTPRequestHandler):
    """One connection: its requests, one after the other."""

    protocol_version = "HTTP/1.1"
    timeout = 30.0  # of a quiet connection, s: a test that fails must not hang
    zeusd: FalseZeusd

    def setup(self) -> None:
        """A connection was made."""
        super().setup()
        self.zeusd.num_connections += 1
        self.zeusd.open_connections.add(self.connection)

    def handle(self) -> None:
        """Serve its requests; that the other side has gone is no fault."""
        try:
            super().handle()
        except ConnectionError:
            pass
        except Exception as error:
            self.zeusd.failures.append(error)

    def finish(self) -> None:
        """The connection is about to be closed."""
        self.zeusd.open_connections.discard(self.connection)
        super().finish()

    def do_GET(self) -> None:
        """Read."""
        self._answer()

    def do_POST(self) -> None:
        """Order; there is no body."""
        assert self.headers["Content-Length"] == "0"
        self._answer()

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - its name there
        """Say nothing."""

    def _answer(self) -> None:
        zeusd = self.zeusd
        zeusd.requests.append(f"{self.command} {self.path}")
        if zeusd.answers_with is not None and self.path != "/discover":
            status, body = zeusd.answers_with
        else:
            status, body = zeusd.answers.of(self.command, self.path, self.headers["Authorization"])
        # In one piece, or TCP would wait for an acknowledgement in between.
        answer = f"HTTP/1.1 {status} \r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
        if self.command == "POST":
            zeusd.before_answer()
        self.close_connection = zeusd.closes
        if zeusd.num_hang_ups > 0:
            zeusd.num_hang_ups -= 1
            self.close_connection = True
        elif zeusd.says is not None:
            self.wfile.write(zeusd.says)
            self.close_connection = True
        else:
            self.wfile.write(answer)
