"""Requests of `flyball top` to a planner, also while the planner does not answer."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar

import httpx
import pytest
from tests.planner.jobs_to_show import PLANNED, READING
from tests.planner.pretended_planner import Answers, answer_of, answers_about

from flyball_client.api.errors import (
    PlannerBusyError,
    PlannerError,
    PlannerUnavailableError,
)
from flyball_client.api.planner_client import PlannerClient
from flyball_client.cli.top.reading import KEPT_STEPS, Seen, read_again, read_job
from flyball_wire import routes
from flyball_wire.codec import encode
from flyball_wire.read_models import Overview

JOB = PLANNED.job_id
STAGES = routes.fill(routes.STAGES_OF_STEPS, job_id=JOB)
MOMENT = datetime(2026, 1, 5, 9, 30, tzinfo=UTC)


def client_of(answers: Answers) -> PlannerClient:
    def answer(request: httpx.Request) -> httpx.Response:
        address = request.url.raw_path.decode()
        answers.asked.append(address)
        status, body = answer_of(answers, address)
        return httpx.Response(status, json=encode(body))

    return PlannerClient("http://planner.test", transport=httpx.MockTransport(answer))


# ------------------------------------------------------------------ one job


def test_a_reading_of_a_job_is_what_the_planner_has() -> None:
    answers = answers_about(READING)
    planner = client_of(answers)
    assert read_job(planner, JOB) == READING
    asked = [each for each in answers.asked if "?" in each]
    assert asked == [f"{STAGES}?after_step=-1&limit={KEPT_STEPS}"]
    answers.status = 500
    with pytest.raises(PlannerUnavailableError):
        read_job(planner, JOB)


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
