"""The reactor: every job that was noticed is looked at, and nothing ends it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.planner.samples import CountingPlanner, Services, job_record

from flyball_server.jobs.errors import MissingProfileError
from flyball_server.jobs.reactions._base import Reaction
from flyball_server.jobs.reactor import Reactor
from flyball_server.jobs.services import JobServices

WAIT_S = 10.0


class Looking:
    """A reaction that tells when it was called, and may fail first."""

    def __init__(self, *failures: Exception, again_s: float | None = None) -> None:
        self.looked: list[str] = []
        self.threads: set[str] = set()
        self._failures = list(failures)
        self._again_s = again_s
        self._changed = threading.Condition()

    def __call__(self, services: JobServices, job_id: str) -> float | None:
        with self._changed:
            self.looked.append(job_id)
            self.threads.add(threading.current_thread().name)
            self._changed.notify_all()
        if self._failures:
            raise self._failures.pop(0)
        return self._again_s

    def wait_for(self, num_looks: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.looked) >= num_looks, WAIT_S)


@contextmanager
def running(*reactions: Reaction, job_ids: tuple[str, ...] = ()) -> Iterator[Reactor]:
    services = Services(CountingPlanner()).jobs
    with services.store.writing("job") as writer:
        for job_id in job_ids:
            writer.save_job(job_record(job_id))
    reactor = Reactor(reactions)
    reactor.start(services)
    try:
        yield reactor
    finally:
        reactor.stop()


def test_every_job_is_looked_at_once_when_the_planner_starts() -> None:
    looking = Looking()
    with running(looking, job_ids=("a", "b")):
        looking.wait_for(2)
    assert sorted(looking.looked) == ["a", "b"]
    assert looking.threads == {"flyball-reactor"}


def test_a_job_is_looked_at_after_a_notice_and_many_notices_are_one_look() -> None:
    looking = Looking()
    with running(looking) as reactor:
        for _ in range(1000):
            reactor.notice("job")
        looking.wait_for(1)
    # Some of the thousand may have come after the first look.
    assert 1 <= len(looking.looked) <= 2


def test_a_job_is_looked_at_again_when_the_reaction_asks_for_it() -> None:
    looking = Looking(again_s=0.0)
    with running(looking, job_ids=("job",)):
        looking.wait_for(3)


@pytest.mark.parametrize("failure", [MissingProfileError(job_id="job"), ZeroDivisionError("no")])
def test_a_reaction_that_fails_is_told_and_stops_no_other(
    failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    failing, other = Looking(failure), Looking()
    with running(failing, other, job_ids=("job",)) as reactor:
        other.wait_for(1)
        reactor.notice("job")
        failing.wait_for(2)
        other.wait_for(2)
    assert "job job: " in caplog.text


def test_stopping_ends_the_thread_and_may_come_before_starting() -> None:
    Reactor(()).stop()
    with running(Looking()):
        pass
    assert "flyball-reactor" not in {thread.name for thread in threading.enumerate()}


def test_a_reaction_that_asks_for_a_look_in_centuries_ends_nothing() -> None:
    looking = Looking(again_s=3e11)
    with running(looking, job_ids=("job",)) as reactor:
        looking.wait_for(1)
        reactor.notice("job")
        looking.wait_for(2)
