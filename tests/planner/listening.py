"""A client of live events: reads a stream in a thread and keeps what it was told."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from tests.planner.patience import PATIENCE_S, wait_until


@dataclass(frozen=True, kw_only=True)
class Told:
    """One event."""

    name: str
    data: Any
    event_id: str | None


def parse_events(text: str) -> tuple[Told, ...]:
    """The events of a stream's text, which ends with a whole one; comments and `retry` are none."""
    assert text.endswith("\n\n"), text[-200:]
    blocks = [dict(_fields(block)) for block in text.split("\n\n")]
    return tuple(
        Told(name=block["event"], data=json.loads(block["data"]), event_id=block.get("id"))
        for block in blocks
        if "event" in block
    )


def _fields(block: str) -> Iterator[tuple[str, str]]:
    for line in filter(None, block.split("\n")):
        name, _, value = line.partition(":")
        yield name, value.removeprefix(" ")


@dataclass
class Listener:
    """Events received so far.

    Attributes:
        is_over: whether the stream has ended, as it should.
        failure: how it broke off instead.
    """

    headers: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    is_over: bool = False
    failure: Exception | None = None

    @property
    def events(self) -> tuple[Told, ...]:
        """All whole events so far, in their order."""
        return parse_events(self.text[: self.text.rfind("\n\n") + 2] or "\n\n")

    def named(self, name: str) -> list[Any]:
        """The data of all events of a name."""
        return [told.data for told in self.events if told.name == name]

    def wait_for(self, name: str, is_so: Callable[[Any], bool] = lambda _: True) -> Any:  # noqa: ANN401 - JSON
        """The data of the first event of a name of which this is so."""
        wait_until(lambda: self._is_done() or any(map(is_so, self.named(name))))
        return next(data for data in self.named(name) if is_so(data))

    def read(self, response: httpx.Response) -> None:
        """Read on until the stream ends."""
        try:
            for part in response.iter_text():
                self.text += part
            self.is_over = True
        except (httpx.HTTPError, httpx.StreamError) as error:
            self.failure = error

    def _is_done(self) -> bool:
        return self.is_over or self.failure is not None


@contextmanager
def listening(
    http: httpx.Client, path: str, *, headers: Mapping[str, str] | None = None, **query: str | int
) -> Iterator[Listener]:
    """Follow a stream until the block ends; the connection is then closed."""
    listener = Listener()
    with (
        httpx.Client(base_url=http.base_url, headers=http.headers, timeout=PATIENCE_S) as own,
        own.stream("GET", path, params=query, headers=headers) as response,
    ):
        response.raise_for_status()
        listener.headers = response.headers
        thread = threading.Thread(target=listener.read, args=(response,))
        thread.start()
        try:
            yield listener
        finally:
            _cut(response)
            thread.join(PATIENCE_S)
    assert not thread.is_alive()


def _cut(response: httpx.Response) -> None:
    """Break the connection off under the thread that reads it."""
    stream = response.extensions["network_stream"]
    connection = stream.get_extra_info("socket")
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it has ended already
