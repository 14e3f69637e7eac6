"""Live events: feeds with one look for all followers, streams, and waits that end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager

import pytest
from starlette.types import Message

from flyball_server.http.events import event_stream
from flyball_server.http.events.event_stream import EventStream, event
from flyball_server.jobs.errors import StoreBusyError, UnknownJobError
from flyball_server.jobs.waiters import JobWaiters
from flyball_server.views import live_feed
from flyball_server.views.live_feed import Feed, Following

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


# ------------------------------------------------------------------ live feed


class Subject:
    """Something that can be looked at, and what is to be seen of it."""

    def __init__(self) -> None:
        self.seen = "first"
        self.error: Exception | None = None
        self.num_reads = 0
        self.may_read = threading.Event()
        self.may_read.set()

    def read(self) -> str:
        self.num_reads += 1
        seen, error = self.seen, self.error
        assert self.may_read.wait(60)
        if error is not None:
            raise error
        return seen


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two looks next to no time passes, unless a test says otherwise."""
    monkeypatch.setattr(live_feed, "PERIOD_S", 0.01)
    monkeypatch.setattr(live_feed, "LEAST_PAUSE_S", 0.001)


@pytest.fixture
def never_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks come after notices alone."""
    monkeypatch.setattr(live_feed, "PERIOD_S", NEVER_S)


@pytest.fixture
def subject() -> Subject:
    return Subject()


@pytest.fixture
def waiters() -> JobWaiters:
    return JobWaiters()


@pytest.fixture
async def feed(waiters: JobWaiters, subject: Subject) -> AsyncIterator[Feed[str]]:
    made = Feed(waiters, lambda _: subject.read)
    yield made
    waiters.close()
    await made.stop()
    assert made.num_followed == 0


async def followed(feed: Feed[str], key: str = "job") -> tuple[Following[str], asyncio.Event]:
    changed = asyncio.Event()
    following = feed.follow(key, changed)
    await following.first()
    changed.clear()
    return following, changed


async def test_all_who_follow_share_looks_and_what_nobody_follows_is_not_looked_at(
    feed: Feed[str], waiters: JobWaiters, subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_feed, "PERIOD_S", NEVER_S)
    first, *others = [(await followed(feed))[0] for _ in range(50)]
    assert {each.state for each in (first, *others)} == {"first"}
    assert (subject.num_reads, feed.num_followed) == (1, 1)
    for each in others:
        each.stop()
    waiters.notify("job")
    await until(lambda: subject.num_reads == 2)
    first.stop()
    await until(lambda: feed.num_followed == 0)
    waiters.notify("job")
    await asyncio.sleep(0.03)
    assert subject.num_reads == 2


async def test_changes_reach_all_who_follow(feed: Feed[str], subject: Subject) -> None:
    both = [await followed(feed) for _ in range(2)]
    num_reads = subject.num_reads
    await until(lambda: subject.num_reads > num_reads + 2)
    assert not any(changed.is_set() for _, changed in both)
    subject.seen = "second"
    for following, changed in both:
        await changed.wait()
        assert following.state == "second"


@pytest.mark.usefixtures("never_by_itself")
async def test_a_change_while_it_is_looked_is_not_missed(
    feed: Feed[str], waiters: JobWaiters, subject: Subject
) -> None:
    following, changed = await followed(feed)
    subject.may_read.clear()
    await asyncio.to_thread(waiters.notify, "job")
    await until(lambda: subject.num_reads == 2)  # it has seen the first and is not back yet
    subject.seen = "second"
    waiters.notify("job")
    subject.may_read.set()
    await changed.wait()
    assert following.state == "second"


@pytest.mark.usefixtures("never_by_itself")
async def test_one_who_comes_when_all_others_have_gone_sees_what_is_there_now(
    feed: Feed[str], subject: Subject
) -> None:
    before, _ = await followed(feed)
    subject.seen = "second"
    before.stop()
    after, changed = await followed(feed)
    if after.state != "second":  # it still had what was seen for the other
        await changed.wait()
    assert after.state == "second"


async def test_what_is_unknown_or_gone_is_told_and_forgotten(
    feed: Feed[str], subject: Subject
) -> None:
    subject.error = UnknownJobError(job_id="job")
    for _ in range(2):
        unknown = feed.follow("job", asyncio.Event())
        with pytest.raises(UnknownJobError):
            await unknown.first()
        unknown.stop()
        await until(lambda: feed.num_followed == 0)
    subject.error = None
    following, changed = await followed(feed)
    assert (following.state, following.is_gone) == ("first", False)
    subject.error = UnknownJobError(job_id="job")
    await changed.wait()
    assert following.is_gone
    assert following.over.is_set()
    await until(lambda: feed.num_followed == 0)


async def test_a_look_that_fails_is_told_and_looked_again(
    caplog: pytest.LogCaptureFixture, feed: Feed[str], subject: Subject
) -> None:
    following, changed = await followed(feed)
    for error in (StoreBusyError(location="here"), ZeroDivisionError("nobody has foreseen it")):
        subject.error = error
        await changed.wait()
        changed.clear()
        assert following.error is error
        assert following.state == "first"
        # Who comes now is refused, with a traceback that does not grow.
        lengths = set()
        for num_reads in range(subject.num_reads, subject.num_reads + 3):
            await until(lambda num_reads=num_reads: subject.num_reads > num_reads)  # type: ignore[misc]
            with pytest.raises(type(error)) as refused:
                await feed.follow("job", asyncio.Event()).first()
            lengths.add(len(refused.traceback))
        assert len(lengths) == 1
    subject.error = None
    await changed.wait()
    assert following.error is None
    assert caplog.text.count("live events of job: Database here is busy") == 1
    assert caplog.text.count("live events of job failed") == 1
    assert caplog.text.count("Traceback") == 1


async def test_closing_ends_all_at_once_even_while_it_is_looked(
    feed: Feed[str], waiters: JobWaiters, subject: Subject
) -> None:
    following, changed = await followed(feed)
    subject.may_read.clear()
    num_reads = subject.num_reads
    await until(lambda: subject.num_reads > num_reads)
    waiters.close()
    await changed.wait()
    assert following.over.is_set()
    subject.may_read.set()
    await feed.stop()
    late = feed.follow("job", asyncio.Event())
    await late.first()  # it does not wait for ever
    assert late.state is None


async def test_no_more_things_are_looked_at_at_once_than_may_be(waiters: JobWaiters) -> None:
    subjects = [Subject() for _ in range(3)]
    feed = Feed(waiters, lambda key: subjects[int(key)].read, num_concurrent_reads=2)
    for subject in subjects:
        subject.may_read.clear()
    following = [feed.follow(str(number), asyncio.Event()) for number in range(3)]
    await until(lambda: [each.num_reads for each in subjects] == [1, 1, 0])
    subjects[0].may_read.set()
    await until(lambda: subjects[2].num_reads == 1)
    for subject in subjects:
        subject.may_read.set()
    for each in following:
        await each.first()
    waiters.close()
    await feed.stop()


# ------------------------------------------------------------------ waiters


LONG_S = 600.0


class Value:
    """Something to wait for."""

    def __init__(self) -> None:
        self.value: str | None = None
        self.num_probes = 0

    async def probe(self) -> str | None:
        self.num_probes += 1
        return self.value


async def waiting(waiters: JobWaiters, number: int) -> None:
    while waiters.num_waiting != number:
        await asyncio.sleep(0)


@pytest.fixture
def value() -> Value:
    return Value()


async def test_a_change_of_another_job_wakes_nobody_and_a_wake_without_news_waits_on(
    waiters: JobWaiters, value: Value
) -> None:
    poll, cancelled = (
        asyncio.create_task(waiters.until("job", value.probe, wait_s=LONG_S)) for _ in range(2)
    )
    await waiting(waiters, 2)
    cancelled.cancel()
    await asyncio.wait({cancelled})
    assert waiters.num_waiting == 1
    waiters.notify("other")
    await asyncio.sleep(0)
    assert value.num_probes == 2
    waiters.notify("job")
    while value.num_probes < 3:
        await asyncio.sleep(0)
    assert not poll.done()
    value.value = "late"
    waiters.notify_all()
    assert await poll == "late"


async def test_a_change_during_the_probe_is_seen(waiters: JobWaiters, value: Value) -> None:
    async def probe() -> str | None:
        seen = await value.probe()
        if value.num_probes == 1:
            value.value = "meanwhile"
            waiters.notify("job")
        return seen

    assert await waiters.until("job", probe, wait_s=LONG_S) == "meanwhile"


async def test_closing_releases_all_until_opened_again(waiters: JobWaiters, value: Value) -> None:
    poll = asyncio.create_task(waiters.until("job", value.probe, wait_s=LONG_S))
    await waiting(waiters, 1)
    waiters.close()
    assert await poll is None
    assert await waiters.until("job", value.probe, wait_s=LONG_S) is None
    waiters.open()
    poll = asyncio.create_task(waiters.until("job", value.probe, wait_s=LONG_S))
    await waiting(waiters, 1)
    value.value = "again"
    waiters.notify("job")
    assert await poll == "again"


@pytest.mark.parametrize("num_turns", range(6))
async def test_a_poll_that_is_cancelled_just_after_a_notification_ends(
    waiters: JobWaiters, value: Value, num_turns: int
) -> None:
    """Its caller has gone: nobody is left for the answer to a further wait."""
    poll = asyncio.create_task(waiters.until("job", value.probe, wait_s=LONG_S))
    await waiting(waiters, 1)
    waiters.notify("job")
    for _ in range(num_turns):
        await asyncio.sleep(0)
    poll.cancel()
    await asyncio.wait({poll})
    assert poll.cancelled()
    assert waiters.num_waiting == 0
