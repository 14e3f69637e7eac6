"""Timelines as they are sent: made once, compressed where that is taken, forgotten in turn."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import pytest
from tests.planner.live import wait_until
from tests.planner.samples import MOMENT, CountingPlanner, Services, job_record, profile

from flyball_server.jobs.errors import TimelineTooLongError, UnknownPlanError
from flyball_server.jobs.plan_timeline import PlanTimeline, get_timeline
from flyball_server.jobs.records import PlanRecord
from flyball_server.jobs.services import JobServices
from flyball_server.planning.planner import PlanRequest, make_plan
from flyball_server.rest.documentation import plain
from flyball_server.rest.plan_view_mapping import timeline_view
from flyball_server.rest.timeline_answers import TimelineAnswers, accepts_gzip, uncompressed

MOST = "flyball_server.jobs.plan_timeline.MAX_INSTRUCTIONS"
GET_TIMELINE = "flyball_server.rest.timeline_answers.get_timeline"


@pytest.fixture
def services() -> JobServices:
    """Job `job` with three versions, all the same plan."""
    found = Services(CountingPlanner()).jobs
    plan = make_plan(PlanRequest(profile=profile(), num_microbatches=2, blocking_power_w=(70.0,)))
    with found.store.writing("job") as writer:
        writer.save_job(job_record())
        writer.save_profile("job", profile())
        for version in (1, 2, 3):
            writer.add_plan(
                PlanRecord(job_id="job", version=version, created_at=MOMENT, solve_s=0.1, plan=plan)
            )
    return found


@pytest.mark.parametrize(
    ("accepted", "takes_it"),
    [
        ("", False),
        ("gzip", True),
        ("GZIP", True),
        ("br, gzip, deflate", True),
        ("x-gzip", True),
        ("*", True),
        ("identity", False),
        ("gzip;q=0", False),
        ("gzip; q=0.000", False),
        ("gzip; q=0.5, identity", True),
        ("*;q=0", False),
        ("gzip;q=0, *", False),
        ("br;q=1.0, *;q=0.1", True),
    ],
)
def test_gzip_is_sent_to_who_takes_it(accepted: str, takes_it: bool) -> None:
    assert accepts_gzip(accepted) is takes_it


def test_what_is_sent_is_the_wire_type_as_json(services: JobServices) -> None:
    sent = TimelineAnswers().get(services, "job", None)
    view = timeline_view(get_timeline(services, "job", None))
    assert json.loads(uncompressed(sent)) == plain(view)


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


def test_of_those_who_ask_at_once_one_makes_it(services: JobServices) -> None:
    answers = TimelineAnswers()
    may_go_on = threading.Event()
    calls: list[int] = []

    def slowly(asked: JobServices, job_id: str, version: int | None) -> PlanTimeline:
        calls.append(version or 0)
        assert may_go_on.wait(60)
        return get_timeline(asked, job_id, version)

    with patch(GET_TIMELINE, slowly), ThreadPoolExecutor(4) as threads:
        same = [threads.submit(answers.get, services, "job", 1) for _ in range(3)]
        other = threads.submit(answers.get, services, "job", 2)
        wait_until(lambda: sorted(calls) == [1, 2])
        may_go_on.set()
        assert len({id(asked.result(60)) for asked in same}) == 1
        assert other.result(60) is answers.known(services, "job", 2)
    assert sorted(calls) == [1, 2]


def test_one_that_fails_leaves_the_turn_to_the_next(services: JobServices) -> None:
    answers = TimelineAnswers()
    with patch(GET_TIMELINE, side_effect=UnknownPlanError(job_id="job", version=1)):
        for _ in range(2):
            with pytest.raises(UnknownPlanError):
                answers.get(services, "job", 1)
    assert answers.get(services, "job", 1)


def test_those_not_asked_for_longest_are_forgotten(services: JobServices) -> None:
    one = len(TimelineAnswers().get(services, "job", 1))
    answers = TimelineAnswers(max_bytes=2 * one + one // 2)
    for version in (1, 2, 1, 3):
        answers.get(services, "job", version)
    known = [answers.known(services, "job", version) is not None for version in (1, 2, 3)]
    assert known == [True, False, True]
    too_small = TimelineAnswers(max_bytes=one // 2)
    assert len(too_small.get(services, "job", 1)) == one
    assert too_small.known(services, "job", 1) is None


def test_a_plan_of_more_instructions_than_are_drawn_is_refused(services: JobServices) -> None:
    """Two microbatches of two stages: eight instructions."""
    said = "has 8 instructions; up to 7 are drawn"
    with patch(MOST, 7), pytest.raises(TimelineTooLongError, match=said):
        TimelineAnswers().get(services, "job", 1)
    with patch(MOST, 8):
        assert TimelineAnswers().get(services, "job", 1)
