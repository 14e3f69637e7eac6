"""Live feeds: one look for all who follow, none for nobody, at once when woken, ended at close."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable

import pytest

from flyball_server.jobs.errors import StoreBusyError, UnknownJobError
from flyball_server.jobs.waiters import JobWaiters
from flyball_server.views import live_feed
from flyball_server.views.live_feed import Feed, Following

NEVER_S = 600.0


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


pytestmark = pytest.mark.anyio


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


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(0.001)


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
