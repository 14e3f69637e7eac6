"""Persistent HTTP connection to zeusd, whose failures are raised as GPU errors."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from dataclasses import dataclass
from typing import Any

from flyball_client.gpu._base import GpuError, GpuNotFoundError, GpuPermissionError
from flyball_client.gpu.zeusd.settings import check_token, parse_endpoint
from flyball_profiles.printable_text import printable

# Answers of zeusd have a few hundred bytes; longer ones are not read to the end.
_MAX_ANSWER_BYTES = 1 << 20
_MAX_TEXT_LENGTH = 200

# status -> (error, advice)
_REFUSALS: dict[int, tuple[type[GpuError], str]] = {
    401: (
        GpuPermissionError,
        "set ZEUSD_TOKEN to a token for this zeusd, of scope gpu-control",
    ),
    403: (
        GpuPermissionError,
        "zeusd must run as root with CAP_SYS_ADMIN, and a token must be of scope gpu-control",
    ),
    404: (GpuError, "zeusd 0.4 or later with its API group gpu-control is needed"),
}


@dataclass(frozen=True, kw_only=True)
class ZeusdAnswer:
    """Answer of zeusd, of any status."""

    status: int
    body: bytes

    def json(self) -> Any:  # noqa: ANN401 - typed where it enters our code
        """Return the body as JSON; None: it is not JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


class ZeusdConnection:
    """Persistent connection to zeusd, for one request at a time.

    zeusd closes idle connections after some seconds, so a request that fails on a reused
    connection is sent once more: all requests are idempotent. A signal handler may make a request
    during another request, on a connection of its own. The token appears in no text.

    Args:
        endpoint: Path of zeusd's socket, `/run/zeusd/zeusd.sock`, or `HOST:PORT`.
        token: Token that is sent with every request; None: no token.
        timeout_s: Timeout in s of connecting, sending and receiving.

    Raises:
        ValueError: An argument is invalid.
    """

    def __init__(self, endpoint: str, *, token: str | None = None, timeout_s: float) -> None:
        if not timeout_s > 0:
            raise ValueError(f"timeout_s must be positive, not {timeout_s}")
        parse_endpoint(endpoint)
        if token is not None:
            check_token(token)
        self.endpoint = endpoint
        self.has_token = token is not None
        self._token = token
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._timeout_s = timeout_s
        self._idle: http.client.HTTPConnection | None = None

    def __repr__(self) -> str:
        return f"<ZeusdConnection {self.endpoint}>"

    def order(self, doing: str, path: str) -> None:
        """Send a request that changes something.

        Raises:
            GpuPermissionError: Access was refused; nothing was changed.
            GpuNotFoundError: zeusd cannot be reached.
            GpuError: zeusd failed or exceeded the timeout; the change may have been made.
        """
        answer = self.ask(doing, "POST", path)
        if answer.status != http.client.OK:
            raise self.refusal(doing, answer)

    def ask(self, doing: str, method: str, path: str) -> ZeusdAnswer:
        """Send a request and return the answer, of any status.

        Raises:
            GpuError: The request failed, as for `order`.
        """
        # A signal handler that interrupts this finds no idle connection and opens another.
        connection, self._idle = self._idle or self._new(), None
        try:
            return self._ask(connection, method, path)
        except (OSError, http.client.HTTPException) as error:
            raise self._failure(doing, error) from None
        finally:
            if self._idle is None:
                self._idle = connection
            else:
                connection.close()

    def refusal(self, doing: str, answer: ZeusdAnswer) -> GpuError:
        """Return the error for an answer that is not a success."""
        kind, advice = _REFUSALS.get(answer.status, (GpuError, "see zeusd's log"))
        text = self._text_of(answer) or http.client.responses.get(answer.status, "no text")
        return kind(f"{doing}: zeusd at {self.endpoint} answered {answer.status}: {text}; {advice}")

    def not_zeusd(self, doing: str) -> GpuError:
        """Return the error for an answer that does not follow zeusd's API."""
        return GpuError(
            f"{doing}: the server at {self.endpoint} is not zeusd 0.4 or later;"
            " see ZEUSD_SOCK_PATH and ZEUSD_HOST_PORT"
        )

    def close(self) -> None:
        """Close the connection; a later request opens it again."""
        if self._idle is not None:
            self._idle.close()

    def _ask(self, connection: http.client.HTTPConnection, method: str, path: str) -> ZeusdAnswer:
        was_open = connection.sock is not None
        try:
            return self._exchange(connection, method, path)
        except ConnectionError:
            if not was_open:
                raise
        return self._exchange(connection, method, path)

    def _exchange(
        self, connection: http.client.HTTPConnection, method: str, path: str
    ) -> ZeusdAnswer:
        try:
            connection.request(method, path, headers=self._headers)
            response = connection.getresponse()
            body = response.read(_MAX_ANSWER_BYTES)
            is_whole = response.isclosed()
        except BaseException:
            # Also after a KeyboardInterrupt: a late answer must not reach the next request.
            connection.close()
            raise
        if not is_whole:
            connection.close()
        return ZeusdAnswer(status=response.status, body=body)

    def _new(self) -> http.client.HTTPConnection:
        place = parse_endpoint(self.endpoint)
        if place is None:
            return _UnixConnection(self.endpoint, timeout_s=self._timeout_s)
        host, port = place
        return http.client.HTTPConnection(host, port, timeout=self._timeout_s)

    def _failure(self, doing: str, error: OSError | http.client.HTTPException) -> GpuError:
        where = f"{doing}: zeusd at {self.endpoint}"
        if isinstance(error, TimeoutError):
            return GpuError(f"{where} did not answer within {self._timeout_s:g} s; is it busy?")
        if isinstance(error, PermissionError):
            return GpuPermissionError(
                f"{where} cannot be accessed: {error.strerror}; start zeusd with"
                " --socket-permissions 666, or join the group that owns the socket"
            )
        if isinstance(error, ConnectionRefusedError):
            return _not_there(where, "connection refused")
        if isinstance(error, ConnectionError):
            return GpuError(f"{where} closed the connection without an answer; see its log")
        if isinstance(error, http.client.HTTPException):
            return self.not_zeusd(doing)
        return _not_there(where, error.strerror or str(error))

    def _text_of(self, answer: ZeusdAnswer) -> str:
        document = answer.json()
        text = answer.body.decode("utf-8", "replace")
        with contextlib.suppress(KeyError, TypeError):
            text = str(document["error"])
        with contextlib.suppress(AttributeError, KeyError, TypeError):
            # by the GPU's number
            text = "; ".join(str(error) for error in document["errors"].values())
        if self._token is not None:
            text = text.replace(self._token, "...")
        return printable(" ".join(text.split())[:_MAX_TEXT_LENGTH]).rstrip(".;: ")


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, *, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(self.timeout)
            sock.connect(self._path)
        except BaseException:
            sock.close()
            raise
        self.sock = sock


def _not_there(where: str, why: str) -> GpuNotFoundError:
    return GpuNotFoundError(
        f"{where} cannot be reached: {why}; is zeusd running, and do ZEUSD_SOCK_PATH or"
        " ZEUSD_HOST_PORT name it?"
    )
