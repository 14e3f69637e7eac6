"""A rank's connections to its relay: HTTP over a Unix socket, one connection for each thread."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# A relay that lives takes a connection at once; this is for one that hangs with a full queue.
_CONNECT_S = 0.5


class RelayGoneError(Exception):
    """There is no relay, or it broke the call off."""


class RelayHangsError(Exception):
    """There is a relay and it did not answer in time."""


@dataclass(frozen=True, kw_only=True)
class RelayedAnswer:
    """The planner's answer, by the relay."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class RelayConnections:
    """Connections to one relay; each is kept open for the next call of its thread.

    Args:
        path: of the relay's socket.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._guard = threading.Lock()
        self._open: dict[int, _UnixConnection] = {}
        self._is_closed = False

    def call(
        self,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        answer_s: float,
    ) -> RelayedAnswer:
        """The answer to a call; `answer_s`: after how long without a byte of it the relay hangs.

        Raises:
            RelayGoneError, RelayHangsError: there is none.
        """
        thread = threading.get_ident()
        with self._guard:
            connection = self._open.pop(thread, None)
        if connection is None:
            connection = _UnixConnection(self._path)
        try:
            connection.wait_at_most(answer_s)
            connection.request(method, target, body=body or None, headers=dict(headers or {}))
            response = connection.getresponse()
            answer = RelayedAnswer(
                status=response.status, headers=dict(response.getheaders()), body=response.read()
            )
        except TimeoutError:
            connection.close()
            raise RelayHangsError(f"no answer within {answer_s:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise RelayGoneError(f"{type(error).__name__}") from None
        except BaseException:
            connection.close()
            raise
        with self._guard:
            if self._is_closed:
                connection.close()
            else:
                self._open[thread] = connection
        return answer

    def close(self) -> None:
        """Give up the connections that no call is using."""
        with self._guard:
            self._is_closed = True
            unused = list(self._open.values())
            self._open.clear()
        for connection in unused:
            connection.close()


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("relay")
        self._path = path
        self.is_connected = False

    def connect(self) -> None:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.settimeout(_CONNECT_S)
            made.connect(str(self._path))
        except BaseException:
            made.close()
            raise
        self.sock = made
        self.is_connected = True

    def close(self) -> None:
        self.is_connected = False
        super().close()

    def wait_at_most(self, answer_s: float) -> None:
        """Connect where that is not done, and bound all further waiting."""
        if not self.is_connected:
            self.connect()
        self.sock.settimeout(answer_s)
