"""Live feeds: one look for all who follow, none for nobody, at once when woken, ended at close."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from functools import partial

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
        self.num_looks = 0
        self.may_look = threading.Event()
        self.may_look.set()

    def look(self) -> str:
        self.num_looks += 1
        seen, error = self.seen, self.error
        assert self.may_look.wait(60)
        if error is not None:
            raise error
        return seen


Scenario = Callable[[Feed[str], JobWaiters, Subject], Awaitable[None]]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two looks next to no time passes, unless a test says otherwise."""
    monkeypatch.setattr(live_feed, "PERIOD_S", 0.01)
    monkeypatch.setattr(live_feed, "LEAST_PAUSE_S", 0.001)


def run(scenario: Scenario) -> Subject:
    async def bounded() -> None:
        waiters = JobWaiters()
        feed = Feed(waiters, lambda _: subject.look)
        try:
            await asyncio.wait_for(scenario(feed, waiters, subject), 60)
        finally:
            waiters.close()
            await feed.stop()
            assert feed.num_followed == 0

    subject = Subject()
    asyncio.run(bounded())
    return subject


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(0.001)


def more_looks(subject: Subject, number: int) -> bool:
    return subject.num_looks > number


async def followed(feed: Feed[str], key: str = "job") -> tuple[Following[str], asyncio.Event]:
    changed = asyncio.Event()
    following = feed.follow(key, changed)
    await following.first()
    changed.clear()
    return following, changed


def test_all_who_follow_the_same_share_its_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_feed, "PERIOD_S", NEVER_S)

    async def scenario(feed: Feed[str], waiters: JobWaiters, subject: Subject) -> None:
        del waiters
        many = [(await followed(feed))[0] for _ in range(50)]
        assert {each.state for each in many} == {"first"}
        assert (subject.num_looks, feed.num_followed) == (1, 1)

    run(scenario)


def test_what_nobody_follows_is_not_looked_at() -> None:
    async def scenario(feed: Feed[str], waiters: JobWaiters, subject: Subject) -> None:
        one, _ = await followed(feed)
        other, _ = await followed(feed)
        one.stop()
        await until(lambda: subject.num_looks > 3)
        other.stop()
        await until(lambda: feed.num_followed == 0)
        num_looks = subject.num_looks
        waiters.notify("job")
        await asyncio.sleep(0.05)
        assert subject.num_looks == num_looks

    run(scenario)


def test_a_change_is_told_to_all_who_follow_and_no_change_to_nobody() -> None:
    async def scenario(feed: Feed[str], waiters: JobWaiters, subject: Subject) -> None:
        del waiters
        both = [await followed(feed) for _ in range(2)]
        num_looks = subject.num_looks
        await until(lambda: subject.num_looks > num_looks + 2)
        assert not any(changed.is_set() for _, changed in both)
        subject.seen = "second"
        for following, changed in both:
            await changed.wait()
            assert following.state == "second"

    run(scenario)


def test_a_wake_from_another_thread_lets_look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_feed, "PERIOD_S", NEVER_S)

    async def scenario(feed: Feed[str], waiters: JobWaiters, subject: Subject) -> None:
        following, changed = await followed(feed)
        subject.seen = "second"
        thread = threading.Thread(target=waiters.notify, args=("job",))
        thread.start()
        await changed.wait()
        thread.join()
        assert following.state == "second"

    run(scenario)


def test_a_change_while_it_is_looked_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_feed, "PERIOD_S", NEVER_S)

    async def scenario(feed: Feed[str], waiters: JobWaiters, subject: Subject) -> None:
        following, changed = await followed(feed)
        subject.may_look.clear()
        waiters.notify("job")
        await until(lambda: subject.num_looks == 2)  # it has seen the first and is not back yet
        subject.seen = "second"
        waiters.notify("job")
        subject.may_look.set()
        await changed.wait()
        assert following.state == "second"

    run(scenario)


def test_one_who_comes_when_all_others_have_gone_sees_what_is_there_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live_feed, "PERIOD_S", NEVER_S)

    async def scenario(feed: Feed[str], waiters: JobWaiters, subject: Subject) -> None:
        del waiters
        before, _ = await followed(feed)
        subject.seen = "second"
        before.stop()
        after, changed = await followed(feed)
        if after.state != "second":  # it still had what was seen for the other
            await changed.wait()
        assert after.state == "second"

    run(scenario)


def test_what_is_not_known_is_refused_and_forgotten() -> None:
    async def scenario(feed: Feed[str], waiters: JobWaiters, subject: Subject) -> None:
        del waiters
        subject.error = UnknownJobError(job_id="job")
        for _ in range(2):
            following = feed.follow("job", asyncio.Event())
            with pytest.raises(UnknownJobError):
                await following.first()
            following.stop()
            await until(lambda: feed.num_followed == 0)
        subject.error = None
        assert (await followed(feed))[0].state == "first"

    run(scenario)


def test_what_is_gone_is_told_and_over() -> None:
    async def scenario(feed: Feed[str], waiters: JobWaiters, subject: Subject) -> None:
        del waiters
        following, changed = await followed(feed)
        assert not following.is_gone
        subject.error = UnknownJobError(job_id="job")
        await changed.wait()
        assert following.is_gone
        assert following.over.is_set()
        await until(lambda: feed.num_followed == 0)

    run(scenario)


def test_a_look_that_fails_is_told_and_looked_again(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(feed: Feed[str], waiters: JobWaiters, subject: Subject) -> None:
        del waiters
        following, changed = await followed(feed)
        for error in (StoreBusyError(location="here"), ZeroDivisionError("nobody has foreseen it")):
            subject.error = error
            await changed.wait()
            changed.clear()
            assert following.error is error
            assert following.state == "first"
            num_looks = subject.num_looks
            await until(partial(more_looks, subject, num_looks + 2))
            # Who comes now is refused.
            with pytest.raises(type(error)):
                await followed(feed)
        subject.error = None
        await changed.wait()
        assert following.error is None

    run(scenario)
    assert caplog.text.count("live events of job: Database here is busy") == 1
    assert caplog.text.count("live events of job failed") == 1
    assert caplog.text.count("Traceback") == 1


def test_an_error_that_many_are_told_says_no_more_to_the_last_than_to_the_first() -> None:
    async def scenario(feed: Feed[str], waiters: JobWaiters, subject: Subject) -> None:
        del waiters
        subject.error = ZeroDivisionError("nobody has foreseen it")
        lengths = []
        for _ in range(3):
            with pytest.raises(ZeroDivisionError) as refused:
                await feed.follow("job", asyncio.Event()).first()
            lengths.append(len(refused.traceback))
        assert len(set(lengths)) == 1

    run(scenario)


def test_closing_ends_all_at_once_even_while_it_is_looked() -> None:
    async def scenario(feed: Feed[str], waiters: JobWaiters, subject: Subject) -> None:
        following, changed = await followed(feed)
        subject.may_look.clear()
        num_looks = subject.num_looks
        await until(lambda: subject.num_looks > num_looks)
        waiters.close()
        await changed.wait()
        assert following.over.is_set()
        subject.may_look.set()
        await feed.stop()
        late = feed.follow("job", asyncio.Event())
        await late.first()  # it does not wait for ever
        assert late.state is None

    run(scenario)


class NotedPauses:
    """Lengths of the looks of a feed, and the pauses that it makes after them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pauses_s: list[float] = []
        monkeypatch.setattr(live_feed, "PERIOD_S", 1.0)
        monkeypatch.setattr(live_feed, "LEAST_PAUSE_S", 0.1)
        monkeypatch.setattr(live_feed, "_wait", self._note)

    async def _note(self, event: asyncio.Event, longest_s: float) -> None:
        del event
        self.pauses_s.append(longest_s)


@pytest.mark.parametrize(
    ("look_s", "quiet_s", "pauses_s"),
    [
        # Until somebody wakes it, if not at once; a fifth of the time; up to half a minute.
        (0.001, 0.0, [0.1, 0.9]),
        (0.2, 0.0, [0.8, 0.2]),
        (2.0, 0.0, [8.0, -7.0]),
        (7.5, 0.0, [30.0, -29.0]),
        (60.0, 0.0, [30.0, -29.0]),
        # What is large is told less often.
        (0.2, 5.0, [5.0, -4.0]),
        (0.2, 60.0, [30.0, -29.0]),
    ],
)
def test_after_a_long_look_the_pause_is_long(
    monkeypatch: pytest.MonkeyPatch, look_s: float, quiet_s: float, pauses_s: list[float]
) -> None:
    noted = NotedPauses(monkeypatch)

    async def scenario() -> None:
        feed: Feed[str] = Feed(JobWaiters(), lambda _: str, quiet_s=lambda _: quiet_s)
        topic = live_feed._Topic(str)  # a look of any length, without waiting for it
        topic.state = "seen"
        await feed._pause(topic, look_s)

    asyncio.run(scenario())
    assert noted.pauses_s == pytest.approx(pauses_s)


def test_no_more_things_are_looked_at_at_once_than_may_be() -> None:
    subjects = [Subject() for _ in range(3)]

    async def scenario() -> None:
        waiters = JobWaiters()
        feed = Feed(waiters, lambda key: subjects[int(key)].look, looks_at_once=2)
        for subject in subjects:
            subject.may_look.clear()
        following = [feed.follow(str(number), asyncio.Event()) for number in range(3)]
        await until(lambda: [each.num_looks for each in subjects] == [1, 1, 0])
        subjects[0].may_look.set()
        await until(lambda: subjects[2].num_looks == 1)
        for subject in subjects:
            subject.may_look.set()
        for each in following:
            await each.first()
        waiters.close()
        await feed.stop()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_who_follows_is_no_waiting_call() -> None:
    async def scenario(feed: Feed[str], waiters: JobWaiters, subject: Subject) -> None:
        del subject
        await followed(feed)
        assert waiters.num_waiting == 0
        with waiters.holding(), waiters.holding():
            assert waiters.num_waiting == 2
        assert waiters.num_waiting == 0

    run(scenario)


def test_different_things_are_looked_at_apart() -> None:
    async def scenario(feed: Feed[str], waiters: JobWaiters, subject: Subject) -> None:
        del waiters, subject
        await followed(feed, "one")
        await followed(feed, "other")
        assert feed.num_followed == 2

    run(scenario)
