"""Timelines as they are sent: made once, compressed where that is taken, forgotten in turn."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from unittest.mock import patch

import pytest
from tests.planner.samples import MOMENT, CountingPlanner, Services, job_record, profile

from flyball_server.http.timeline_answers import TimelineAnswers, accepts_gzip, uncompressed
from flyball_server.jobs.errors import TimelineTooLongError, UnknownPlanError
from flyball_server.jobs.records import PlanRecord
from flyball_server.jobs.services import JobServices
from flyball_server.planning.planner import PlanRequest, make_plan
from flyball_server.views.plan_timeline import TimelineKey, get_timeline
from flyball_wire.plan_options import PlanOptions
from flyball_wire.read_models import PlanTimeline

MOST = "flyball_server.views.plan_timeline.MAX_INSTRUCTIONS"
GET_TIMELINE = "flyball_server.http.timeline_answers.get_timeline"


@pytest.fixture
def services() -> JobServices:
    """Job `job` with three versions, all the same plan."""
    found = Services(CountingPlanner()).jobs
    plan = make_plan(
        PlanRequest(
            profile=profile(), num_microbatches=2, options=PlanOptions(blocking_power_w=(70.0,))
        )
    ).plan
    with found.store.writing("job") as writer:
        writer.save_job(job_record())
        writer.save_profile("job", profile())
        for version in (1, 2, 3):
            writer.add_plan(
                PlanRecord(job_id="job", version=version, created_at=MOMENT, solve_s=0.1, plan=plan)
            )
    return found


def test_gzip_is_sent_to_who_takes_it() -> None:
    for accepted in ("gzip", "br, gzip, deflate", "*", "gzip; q=0.5, identity"):
        assert accepts_gzip(accepted), accepted
    for accepted in ("", "gzip;q=0", "gzip;q=0, *"):
        assert not accepts_gzip(accepted), accepted


def test_it_is_made_once_until_something_that_it_is_made_of_changes(services: JobServices) -> None:
    answers = TimelineAnswers()
    with patch(GET_TIMELINE, wraps=get_timeline) as made:
        first = answers.get(services, "job", 3)
        assert answers.known(services, "job", 3) is first
        assert answers.known(services, "job", None) is first  # the newest
        assert answers.get(services, "job", None) is first
        assert made.call_count == 1
        with services.store.writing("job") as writer:
            writer.save_job(job_record(inputs_revision=1))
        assert answers.known(services, "job", 3) is None
        answers.get(services, "job", 3)
        with services.store.writing("job") as writer:
            writer.delete_job("job")
            writer.save_job(job_record(inputs_revision=1, seconds_later=1.0))
        with pytest.raises(UnknownPlanError):
            answers.get(services, "job", 3)
        assert made.call_count == 2


class SlowMaking:
    """Makes timelines when it may, and notes which."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.made: list[int] = []

    def __call__(
        self, services: JobServices, job_id: str, version: int | None
    ) -> tuple[TimelineKey, PlanTimeline]:
        self.made.append(version or 0)
        assert self.may_go_on.wait(60)
        return get_timeline(services, job_id, version)


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(0.001)


@pytest.mark.anyio
async def test_callers_at_once_share_one_making(services: JobServices) -> None:
    making, answers = SlowMaking(), TimelineAnswers()
    with patch(GET_TIMELINE, making):
        gone, *same = [asyncio.create_task(answers.ask(services, "job", 1)) for _ in range(9)]
        await until(lambda: making.made == [1])
        # Two are made at once: the second thread is free.
        other = asyncio.create_task(answers.ask(services, "job", 2))
        await until(lambda: making.made == [1, 2])
        gone.cancel()
        await asyncio.wait({gone})
        making.may_go_on.set()
        assert len({id(await asked) for asked in same}) == 1
        assert json.loads(uncompressed(await same[0]))["version"] == 1
        assert await other is answers.known(services, "job", 2)
        assert await answers.ask(services, "job", 2) is await other
    assert making.made == [1, 2]


@pytest.mark.anyio
async def test_a_failure_is_shared_and_not_kept(services: JobServices) -> None:
    may_fail, answers = threading.Event(), TimelineAnswers()

    def fail(*_: object) -> None:
        assert may_fail.wait(60)
        raise UnknownPlanError(job_id="job", version=1)

    with (
        patch(GET_TIMELINE, side_effect=fail) as made,
        patch.object(asyncio, "shield", wraps=asyncio.shield) as waiting,
    ):
        several = [asyncio.create_task(answers.ask(services, "job", 1)) for _ in range(3)]
        await until(lambda: waiting.call_count == 3)
        may_fail.set()
        outcomes = await asyncio.gather(*several, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [UnknownPlanError] * 3
    assert made.call_count == 1
    assert await answers.ask(services, "job", 1)


def test_those_not_asked_for_longest_are_forgotten(services: JobServices) -> None:
    one = len(TimelineAnswers().get(services, "job", 1))
    answers = TimelineAnswers(max_bytes=2 * one + one // 2)
    for version in (1, 2, 1, 3):
        answers.get(services, "job", version)
    known = [answers.known(services, "job", version) is not None for version in (1, 2, 3)]
    assert known == [True, False, True]
    too_small = TimelineAnswers(max_bytes=one // 2)
    assert len(too_small.get(services, "job", 1)) == one
    too_small.get(services, "job", 2)
    known = [too_small.known(services, "job", version) is not None for version in (1, 2)]
    assert known == [False, True]


def test_a_plan_of_more_instructions_than_are_drawn_is_refused(services: JobServices) -> None:
    """Two microbatches of two stages: eight instructions."""
    said = "has 8 instructions; up to 7 are drawn"
    with patch(MOST, 7), pytest.raises(TimelineTooLongError, match=said):
        TimelineAnswers().get(services, "job", 1)
    with patch(MOST, 8):
        assert TimelineAnswers().get(services, "job", 1)
