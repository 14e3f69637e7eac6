"""The overview as its callers see it: joined once for operators, a job's own for its token."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter
from types import SimpleNamespace
from typing import cast

import pytest
from tests.planner.patience import PATIENCE_S, wait_until

from flyball_server.http import overviews
from flyball_server.http.overviews import Overviews, RenderedOverview
from flyball_server.jobs.auth.access import OPERATOR, Access
from flyball_server.views.job_figures import SharedReading

JOBS = tuple((name, json.dumps({"job_id": name}).encode()) for name in ("b", "a@1", "a", "ab"))


@pytest.mark.parametrize(
    ("access", "seen"),
    [
        (OPERATOR, ["b", "a@1", "a", "ab"]),
        (Access(job_id="a"), ["a@1", "a"]),
        (Access(job_id="c"), []),
    ],
)
def test_a_caller_sees_what_is_open_to_it_in_the_same_order(
    access: Access, seen: list[str]
) -> None:
    overview = json.loads(RenderedOverview.of(JOBS).permitted(access))
    assert [job["job_id"] for job in overview["jobs"]] == seen


def test_operators_are_given_the_same_bytes() -> None:
    rendered = RenderedOverview.of(iter(JOBS))
    assert rendered.permitted(OPERATOR) is rendered.permitted(OPERATOR)
    assert rendered.jobs == JOBS


class SlowReading:
    """Figures of which the older are told when newer ones are there already."""

    def __init__(self) -> None:
        self.num_asked = 0
        self.may_tell_older = threading.Event()
        self._newer = (_figures("newer"),)

    def figures(self) -> tuple[SimpleNamespace, ...]:
        self.num_asked += 1
        if self.num_asked > 1:
            return self._newer
        assert self.may_tell_older.wait(PATIENCE_S)
        return (_figures("older"),)


def _figures(job_id: str) -> SimpleNamespace:
    return SimpleNamespace(job=SimpleNamespace(job_id=job_id))


class NotedLock:
    """A lock that notes how often it was wanted."""

    def __init__(self) -> None:
        self.num_wanted = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self.num_wanted += 1
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_older_figures_are_not_rendered_after_newer_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    def rendered(_: object, job_id: str) -> bytes:
        shown.append(job_id)
        return job_id.encode()

    monkeypatch.setattr(overviews, "job_overview", attrgetter("job.job_id"))
    monkeypatch.setattr(overviews, "rendered", rendered)
    reading, lock = SlowReading(), NotedLock()
    looking = Overviews(cast("SharedReading", reading))
    monkeypatch.setattr(looking, "_guard", lock)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(looking.read)
        wait_until(lambda: reading.num_asked == 1)
        second = threads.submit(looking.read)
        wait_until(lambda: second.done() or lock.num_wanted == 2)
        reading.may_tell_older.set()
        seen = [each.result().whole for each in (first, second)]
    assert seen == [b'{"jobs":[older]}', b'{"jobs":[newer]}']
    assert looking.read().whole == seen[1]
    assert shown == ["older", "newer"]
