"""Requests of `flyball top` to a planner, also while the planner does not answer."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar

import httpx
import pytest
from tests.planner.jobs_to_show import HISTORY, NEW, PLANNED, READING, STEPS, stages_of_step
from tests.planner.pretended_planner import Answers, answer_of, answers_about

from flyball_client.api.errors import (
    PlannerBusyError,
    PlannerError,
    PlannerUnavailableError,
)
from flyball_client.api.planner_client import PlannerClient
from flyball_client.cli.top.reading import KEPT_STEPS, JobReader, Seen, read_again
from flyball_wire import routes
from flyball_wire.codec import encode
from flyball_wire.read_models import Overview, StagesOfStep

JOB = PLANNED.job_id
STAGES = routes.fill(routes.STAGES_OF_STEPS, job_id=JOB)
HISTORIES = routes.fill(routes.HISTORY, job_id=JOB)
OVERVIEW = routes.fill(routes.JOB_OVERVIEW, job_id=JOB)
MOMENT = datetime(2026, 1, 5, 9, 30, tzinfo=UTC)


def client_of(answers: Answers) -> PlannerClient:
    def answer(request: httpx.Request) -> httpx.Response:
        address = request.url.raw_path.decode()
        answers.asked.append(address)
        status, body = answer_of(answers, address)
        return httpx.Response(status, json=encode(body))

    return PlannerClient("http://planner.test", transport=httpx.MockTransport(answer))


def queries(answers: Answers, path: str) -> list[str]:
    """Those of the calls to this path, since the last time that was asked."""
    found = [each.partition("?")[2] for each in answers.asked if each.partition("?")[0] == path]
    answers.asked.clear()
    return found


# ------------------------------------------------------------------ one job


def test_a_reading_is_what_the_planner_has_and_one_that_fails_loses_nothing() -> None:
    answers = answers_about(READING)
    reader = JobReader(client_of(answers), JOB)
    assert reader.read() == READING
    assert queries(answers, STAGES) == [f"after_step=-1&limit={KEPT_STEPS}"]
    answers.status = 500
    with pytest.raises(PlannerUnavailableError):
        reader.read()
    answers.status = 200
    assert reader.read() == READING


@pytest.mark.parametrize(
    ("before", "after", "after_step"),
    [
        (STEPS[:30], STEPS, 29),
        # Step 10 lacks ranks.
        ((*STEPS[:10], stages_of_step(10, num_ranks=2), *STEPS[11:12]), STEPS[:14], 9),
    ],
)
def test_only_new_and_incomplete_steps_are_requested(
    before: tuple[StagesOfStep, ...], after: tuple[StagesOfStep, ...], after_step: int
) -> None:
    answers = answers_about(replace(READING, steps=before))
    reader = JobReader(client_of(answers), JOB)
    assert reader.read().steps == before
    answers.by_path[STAGES] = after
    queries(answers, STAGES)
    assert reader.read().steps == after
    assert queries(answers, STAGES) == [f"after_step={after_step}&limit={KEPT_STEPS}"]


def test_no_more_than_the_newest_steps_are_kept() -> None:
    steps: tuple[StagesOfStep, ...] = tuple(map(stages_of_step, range(KEPT_STEPS + 30)))
    answers = answers_about(replace(READING, steps=steps[:-20]))
    reader = JobReader(client_of(answers), JOB)
    assert [step.step for step in reader.read().steps] == [*range(10, KEPT_STEPS + 10)]
    answers.by_path[STAGES] = steps
    assert [step.step for step in reader.read().steps] == [*range(30, KEPT_STEPS + 30)]


def test_the_history_is_asked_for_when_there_is_another_version() -> None:
    answers = answers_about(READING)
    reader = JobReader(client_of(answers), JOB)
    reader.read()
    assert len(queries(answers, HISTORIES)) == 1
    assert reader.read().history == HISTORY
    assert queries(answers, HISTORIES) == []
    answers.by_path[OVERVIEW] = replace(PLANNED, newest_version=3)
    reader.read()
    assert len(queries(answers, HISTORIES)) == 1


def test_a_job_of_the_same_name_made_anew_is_read_anew() -> None:
    answers = answers_about(READING)
    reader = JobReader(client_of(answers), JOB)
    reader.read()
    answers.by_path |= {
        OVERVIEW: replace(NEW, job_id=JOB, created_at="2026-01-05T10:00:00Z"),
        STAGES: STEPS[:2],
        HISTORIES: (),
    }
    reading = reader.read()
    assert (reading.steps, reading.history) == (STEPS[:2], ())


def test_now_and_then_all_is_read_as_steps_may_have_been_posted_anew() -> None:
    answers = answers_about(READING)
    reader = JobReader(client_of(answers), JOB)
    for _ in range(21):
        reader.read()
    assert queries(answers, STAGES).count(f"after_step=-1&limit={KEPT_STEPS}") == 3


# ------------------------------------------------------------------ again and again

T = TypeVar("T")

FIRST, SECOND = Overview(jobs=()), Overview(jobs=(PLANNED,))


def given(answer: T | PlannerError) -> T:
    if isinstance(answer, PlannerError):
        raise answer
    return answer


def seen_after(*answers: Overview | PlannerError) -> Seen:
    """After a first reading and these answers, each a second later than the one before."""
    seen = Seen(reading=FIRST, read_at=MOMENT)
    for number, answer in enumerate(answers, start=1):
        moment = MOMENT + timedelta(seconds=number)
        seen = read_again(seen, partial(given, answer), partial(given, moment))
    return seen


def test_trouble_is_told_since_it_began_beside_what_was_read_before() -> None:
    away = PlannerUnavailableError("away")
    seen = seen_after(SECOND, away, away, PlannerError("other"))
    assert (seen.reading, seen.read_at) == (SECOND, MOMENT + timedelta(seconds=1))
    assert str(seen.trouble) == "other"
    assert seen.trouble_since == MOMENT + timedelta(seconds=2)


def test_a_planner_that_says_when_to_come_again_is_left_alone_until_then() -> None:
    busy = PlannerBusyError("busy", retry_after_s=3600.0)
    assert seen_after(busy).retry_after_s == 3600.0
    assert seen_after(busy, SECOND).retry_after_s == 0.0
