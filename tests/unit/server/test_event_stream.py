"""A stream of events as ASGI messages: newest state for slow readers, ended however it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager

import pytest
from starlette.types import Message

from flyball_server.http.events import event_stream
from flyball_server.http.events.event_stream import EventStream, event

pytestmark = pytest.mark.anyio

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


@asynccontextmanager
async def streaming(
    *,
    wait_s: float = NEVER_S,
    heartbeat_s: float = NEVER_S,
    ready: Callable[[], Awaitable[None]] | None = None,
) -> AsyncIterator[tuple[Source, Client, asyncio.Task[None]]]:
    """A stream that ends, and frees what it held, behind the block."""
    source, client = Source(), Client()
    closed: list[bool] = []
    stack = ExitStack()
    stack.callback(closed.append, True)
    stream = EventStream(source, wait_s=wait_s, closing=stack, heartbeat_s=heartbeat_s, ready=ready)
    call = asyncio.create_task(stream({"type": "http"}, client.receive, client.send))
    yield source, client, call
    await asyncio.wait_for(call, 60)
    assert closed == [True]


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(0.001)


def ended(client: Client) -> bool:
    """Return whether the answer was brought to its end."""
    return client.messages[-1].get("more_body") is False


@pytest.mark.parametrize("client_leaves", [False, True])
async def test_nothing_is_sent_before_the_beginning(
    monkeypatch: pytest.MonkeyPatch, *, client_leaves: bool
) -> None:
    """However long that takes: the time of the stream begins then."""
    monkeypatch.setattr(event_stream, "_GRACE_S", 0.01)
    is_awaited, is_there = asyncio.Event(), asyncio.Event()

    async def ready() -> None:
        is_awaited.set()
        await is_there.wait()

    async with streaming(wait_s=0, ready=ready) as (source, client, call):
        await is_awaited.wait()
        await asyncio.sleep(0.03)
        assert (call.done(), client.messages) == (False, [])
        if client_leaves:
            client.left.set()
        else:
            source.set(7)
            is_there.set()
    first = [b"retry: 1000\n\n" + event("number", b"7"), b""]
    assert client.bodies == ([] if client_leaves else first)


async def test_a_client_that_leaves_later_ends_the_stream() -> None:
    async with streaming() as (_, client, _):
        await until(lambda: len(client.bodies) == 1)
        client.left.set()


async def test_a_slow_reader_gets_the_newest_state_when_it_reads() -> None:
    async with streaming() as (source, client, _):
        await until(lambda: len(client.bodies) == 1)
        client.takes.clear()
        for number in range(1, 1000):
            source.set(number)
            await asyncio.sleep(0)
        client.takes.set()
        await until(lambda: b"999" in client.bodies[-1])
        source.over.set()
        source.set(7)
    # The first, perhaps the one that it was being sent, the newest, and the last news at its end.
    assert len([body for body in client.bodies if b"number" in body]) <= 4
    assert client.bodies[-2:] == [event("number", b"7"), b""]
    assert ended(client)


@pytest.mark.parametrize("is_over", [True, False], ids=["shut down", "its time is over"])
async def test_a_stuck_client_is_cut_off(monkeypatch: pytest.MonkeyPatch, is_over: bool) -> None:
    monkeypatch.setattr(event_stream, "_GRACE_S", 0.01)
    async with streaming(wait_s=NEVER_S if is_over else 0.05) as (source, client, _):
        await until(lambda: len(client.bodies) == 1)
        client.takes.clear()
        source.set(1)
        if is_over:
            source.over.set()
    assert not ended(client)


async def test_a_heartbeat_breaks_the_silence() -> None:
    async with streaming(heartbeat_s=0.005) as (source, client, _):
        await until(lambda: client.bodies.count(b":\n\n") > 2)
        source.over.set()
        source.changed.set()
