"""HTTP transport that bounds a call as a whole: one deadline, and the bytes that it receives."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import httpcore
import httpx

BUDGET = "flyball_budget"
"""Name of the request's extension that holds its CallBudget."""

# Heads are small; httpcore reads up to 64 KiB at once, part of which may be the body's.
MAX_HEAD_BYTES = 128 * 2**10
# A request's body is written in such pieces, each within the call's time.
_WRITTEN_BYTES = 64 * 2**10


class UnusableAnswerError(Exception):
    """A response exceeds a limit, or is encoded."""


class CallBudget:
    """Limits of one call, with its retries: the time, and the bytes of each answer.

    Args:
        max_bytes: Largest size of an answer's body, on the wire and as it is used.
        max_s: Longest time in s, from now to the end of the body.
        now_s: Monotonic clock in s.
    """

    def __init__(
        self, *, max_bytes: int, max_s: float, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.max_bytes = max_bytes
        self._max_s = max_s
        self._now_s = now_s
        self._deadline_s = now_s() + max_s
        self._num_left = MAX_HEAD_BYTES
        self._is_in_head = True

    def begin_head(self) -> None:
        """Start an answer: its head, interim ones (1xx) included, has a limit of its own."""
        self._num_left = MAX_HEAD_BYTES
        self._is_in_head = True

    def begin_body(self) -> None:
        """End the head; chunks' sizes may take as much as the head may."""
        self._num_left += self.max_bytes
        self._is_in_head = False

    def receive(self, num_bytes: int) -> None:
        """Count bytes from the wire.

        Raises:
            UnusableAnswerError: There are too many.
        """
        self._num_left -= num_bytes
        if self._num_left < 0:
            part = f"head is larger than {MAX_HEAD_BYTES}"
            if not self._is_in_head:
                part = f"body is larger than {self.max_bytes}"
            raise UnusableAnswerError(f"its {part} bytes")

    @property
    def left_s(self) -> float:
        """Time left in s; 0 or less: none."""
        return self._deadline_s - self._now_s()

    def check_time(self) -> None:
        """Raise UnusableAnswerError if the time is over."""
        if self.left_s < 0:
            raise UnusableAnswerError(f"its answer is not complete within {self._max_s:g} s")


class BoundedTransport(httpx.BaseTransport):
    """Transport over httpcore, whose reads and writes count against the request's CallBudget.

    httpx's timeouts restart with every byte, and bound neither heads nor their number.

    Args:
        verify: TLS context; False: the address is not https.
    """

    def __init__(self, verify: ssl.SSLContext | bool) -> None:
        self._current = _Current()
        self._pool = httpcore.ConnectionPool(
            ssl_context=verify if isinstance(verify, ssl.SSLContext) else None,
            max_connections=100,
            max_keepalive_connections=20,
            keepalive_expiry=5.0,
            network_backend=_Backend(self._current),
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request, and return its response with the body still to be read."""
        budget = cast("CallBudget | None", request.extensions.get(BUDGET))
        self._current.budget = budget
        if budget is not None:
            budget.begin_head()
        sent = httpcore.Request(
            method=request.method,
            url=httpcore.URL(
                scheme=request.url.raw_scheme,
                host=request.url.raw_host,
                port=request.url.port,
                target=request.url.raw_path,
            ),
            headers=request.headers.raw,
            content=cast("Iterable[bytes]", request.stream),
            extensions=request.extensions,
        )
        with _errors_of_httpx():
            received = self._pool.handle_request(sent)
        if budget is not None:
            budget.begin_body()
        return httpx.Response(
            received.status,
            headers=received.headers,
            stream=_Body(received),
            extensions=_extensions(received),
        )

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()


class _Body(httpx.SyncByteStream):
    """Body of a response of httpcore."""

    def __init__(self, response: httpcore.Response) -> None:
        self._response = response

    def __iter__(self) -> Iterator[bytes]:
        with _errors_of_httpx():
            yield from self._response.iter_stream()

    def close(self) -> None:
        self._response.close()


class _Current(threading.local):
    """Budget of the call that this thread makes; None: it has no limits."""

    budget: CallBudget | None = None

    def timeout_s(self, timeout_s: float | None, error: type[Exception]) -> float | None:
        """Return the timeout of one operation, which ends with the call; raise if it is over."""
        if self.budget is None:
            return timeout_s
        left_s = self.budget.left_s
        if left_s <= 0:
            raise error("the call timed out")
        return left_s if timeout_s is None else min(timeout_s, left_s)


class _Backend(httpcore.NetworkBackend):
    """Network of httpcore, with streams that count."""

    def __init__(self, current: _Current) -> None:
        self._current = current
        self._network = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        timeout_s = self._current.timeout_s(timeout, httpcore.ConnectTimeout)
        opened = self._network.connect_tcp(host, port, timeout_s, local_address, socket_options)
        return _Stream(opened, self._current)

    def sleep(self, seconds: float) -> None:
        self._network.sleep(seconds)


class _Stream(httpcore.NetworkStream):
    """Connection whose every operation counts against the budget of the thread's call."""

    def __init__(self, stream: httpcore.NetworkStream, current: _Current) -> None:
        self._stream = stream
        self._current = current

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        timeout_s = self._current.timeout_s(timeout, httpcore.ReadTimeout)
        received = self._stream.read(max_bytes, timeout_s)
        if self._current.budget is not None:
            self._current.budget.receive(len(received))
        return received

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for begin in range(0, len(buffer), _WRITTEN_BYTES):
            timeout_s = self._current.timeout_s(timeout, httpcore.WriteTimeout)
            self._stream.write(buffer[begin : begin + _WRITTEN_BYTES], timeout_s)

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        timeout_s = self._current.timeout_s(timeout, httpcore.ConnectTimeout)
        return _Stream(
            self._stream.start_tls(ssl_context, server_hostname, timeout_s), self._current
        )

    def get_extra_info(self, info: str) -> Any:  # noqa: ANN401 - as its base
        return self._stream.get_extra_info(info)


def _extensions(response: httpcore.Response) -> dict[str, Any]:
    return cast("dict[str, Any]", cast("Any", response).extensions)


@contextmanager
def _errors_of_httpx() -> Generator[None, None, None]:
    """Raise httpcore's errors as httpx's, which have the same names."""
    try:
        yield
    except UnusableAnswerError:
        raise
    except Exception as error:
        for family in type(error).__mro__:
            kind = getattr(httpx, family.__name__, None)
            if family.__module__.startswith("httpcore") and kind is not None:
                raise kind(str(error)) from error
        raise
