"""A stream of events as ASGI messages: newest state for slow readers, ended however it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack

import pytest
from starlette.types import Message

from flyball_server.http.events import event_stream
from flyball_server.http.events.event_stream import EventStream, event

NEVER_S = 600.0


class Source:
    """A number that changes."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.over = asyncio.Event()
        self.number = 0
        self.told = -1

    def set(self, number: int) -> None:
        self.number = number
        self.changed.set()

    def news(self) -> bytes:
        if self.number == self.told:
            return b""
        self.told = self.number
        return event("number", b"%d" % self.number)


class Client:
    """The other end of an ASGI call, which can leave or refuse to take anything."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.left = asyncio.Event()
        self.takes = asyncio.Event()
        self.takes.set()

    async def receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        await self.takes.wait()
        self.messages.append(message)

    @property
    def bodies(self) -> list[bytes]:
        return [message.get("body", b"") for message in self.messages[1:]]


Scenario = Callable[[Source, Client, "asyncio.Task[None]"], Awaitable[None]]


def run(
    scenario: Scenario,
    *,
    wait_s: float = NEVER_S,
    heartbeat_s: float = NEVER_S,
    ready: Callable[[], Awaitable[None]] | None = None,
) -> Client:
    """The client after the scenario, and after the stream has ended and freed what it held."""

    async def bounded() -> Client:
        source, client = Source(), Client()
        closed: list[bool] = []
        stack = ExitStack()
        stack.callback(closed.append, True)
        stream = EventStream(
            source, wait_s=wait_s, closing=stack, heartbeat_s=heartbeat_s, ready=ready
        )
        call = asyncio.create_task(stream({"type": "http"}, client.receive, client.send))
        await asyncio.wait_for(scenario(source, client, call), 60)
        await asyncio.wait_for(call, 60)
        assert closed == [True]
        return client

    return asyncio.run(bounded())


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(0.001)


def ended(client: Client) -> bool:
    """Return whether the answer was brought to its end."""
    return client.messages[-1].get("more_body") is False


def test_of_no_time_it_tells_what_there_is_and_ends() -> None:
    async def scenario(source: Source, client: Client, call: asyncio.Task[None]) -> None:
        del source, client
        await call

    client = run(scenario, wait_s=0)
    assert client.messages[0]["status"] == 200
    assert client.bodies == [b"retry: 1000\n\nevent: number\ndata: 0\n\n", b""]
    assert ended(client)


class Beginning:
    """What a stream begins with, which takes its time."""

    def __init__(self) -> None:
        self.is_awaited = False
        self.is_there = asyncio.Event()

    async def ready(self) -> None:
        self.is_awaited = True
        await self.is_there.wait()


def test_nothing_is_sent_before_what_it_begins_with_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However long that takes: the time of the stream begins then."""
    monkeypatch.setattr(event_stream, "_GRACE_S", 0.01)
    beginning = Beginning()

    async def scenario(source: Source, client: Client, call: asyncio.Task[None]) -> None:
        await until(lambda: beginning.is_awaited)
        await asyncio.sleep(0.05)
        assert (call.done(), client.messages) == (False, [])
        source.set(7)
        beginning.is_there.set()
        await call

    client = run(scenario, wait_s=0, ready=beginning.ready)
    assert client.bodies == [b"retry: 1000\n\n" + event("number", b"7"), b""]


def test_a_client_that_leaves_before_it_begins_ends_it() -> None:
    beginning = Beginning()

    async def scenario(source: Source, client: Client, call: asyncio.Task[None]) -> None:
        del source
        await until(lambda: beginning.is_awaited)
        client.left.set()
        await call

    assert run(scenario, wait_s=0, ready=beginning.ready).messages == []


def test_a_slow_reader_gets_what_there_is_when_it_reads() -> None:
    async def scenario(source: Source, client: Client, call: asyncio.Task[None]) -> None:
        del call
        await until(lambda: len(client.bodies) == 1)
        client.takes.clear()
        for number in range(1, 1000):
            source.set(number)
            await asyncio.sleep(0)
        client.takes.set()
        await until(lambda: b"999" in client.bodies[-1])
        source.over.set()
        source.changed.set()

    client = run(scenario)
    # The first, perhaps the one that it was being sent, the newest.
    assert len([body for body in client.bodies if b"number" in body]) <= 3
    assert ended(client)


def test_when_it_is_over_the_last_news_are_told() -> None:
    async def scenario(source: Source, client: Client, call: asyncio.Task[None]) -> None:
        await until(lambda: len(client.bodies) == 1)
        source.over.set()
        source.set(7)
        await call

    client = run(scenario)
    assert client.bodies[1:] == [event("number", b"7"), b""]


def test_a_client_that_leaves_ends_it() -> None:
    async def scenario(source: Source, client: Client, call: asyncio.Task[None]) -> None:
        del source
        await until(lambda: len(client.bodies) == 1)
        client.left.set()
        await call

    run(scenario)


@pytest.mark.parametrize("is_over", [True, False], ids=["shut down", "its time is over"])
def test_a_client_that_takes_nothing_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, is_over: bool
) -> None:
    monkeypatch.setattr(event_stream, "_GRACE_S", 0.01)

    async def scenario(source: Source, client: Client, call: asyncio.Task[None]) -> None:
        await until(lambda: len(client.bodies) == 1)
        client.takes.clear()
        source.set(1)
        if is_over:
            source.over.set()
        await call

    client = run(scenario, wait_s=NEVER_S if is_over else 0.05)
    assert not ended(client)


def test_silence_is_broken_by_a_line_that_says_nothing() -> None:
    async def scenario(source: Source, client: Client, call: asyncio.Task[None]) -> None:
        del call
        await until(lambda: client.bodies.count(b":\n\n") > 2)
        source.over.set()
        source.changed.set()

    run(scenario, heartbeat_s=0.005)


def test_an_event_has_its_id_where_there_is_one() -> None:
    assert event("steps", b"[]", event_id=7) == b"id: 7\nevent: steps\ndata: []\n\n"
    assert event("gone", b"{}") == b"event: gone\ndata: {}\n\n"
