"""A rank tells with what it posts in which run of its job the planner knows it."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from typing import Any, cast

import httpx
import pytest
from tests.planner.patience import PATIENCE_S, wait_until
from tests.planner.samples import rank_registration

from flyball_client.api.planner_client import PlannerClient, Retries
from flyball_client.session.measurement_outbox import MeasurementOutbox
from flyball_client.session.plan_cursor import CompiledPlan
from flyball_client.session.planner_link import LinkTimes, PlannerLink
from flyball_client.session.planner_reachability import Backoff, PlannerReachability
from flyball_wire.codec import decode
from flyball_wire.messages import RankPlan, RankRegistration, StepMeasurement

REGISTRATION = rank_registration(0)
PLAN = {
    "job_id": "job",
    "version": 1,
    "stage": 0,
    "first_step": None,
    "instructions": [],
    "predicted_iteration_time_s": 1.0,
}


class OneRankPlanner:
    """Answers one rank and notes what it sends; `told`: more that it answers a registration."""

    def __init__(self, **told: object) -> None:
        self._told = told
        self.sent: dict[str, Any] = {}
        self.query: dict[str, str] = {}

    def __call__(self, request: httpx.Request) -> httpx.Response:
        what = request.url.path.rpartition("/")[2]
        body = request.read()
        self.sent[what] = json.loads(body) if body else None
        if what == "departure":
            self.query = dict(request.url.params)
            return httpx.Response(204)
        if what == "plan":
            is_new = request.url.params["after_version"] == "0"
            return httpx.Response(200, json=PLAN) if is_new else httpx.Response(204)
        if what == "acknowledgement":
            return httpx.Response(200, json={"version": 1, "first_step": 5})
        if what == "measurements":
            return httpx.Response(200, json={"stored": 1, "next_post_s": 1.0})
        known = {"rank": 0, "acknowledged_version": None, "current_step": None}
        return httpx.Response(200, json={**REGISTRATION, **known, **self._told})


def client(planner: Callable[[httpx.Request], httpx.Response]) -> PlannerClient:
    transport = httpx.MockTransport(planner)
    return PlannerClient(
        "http://planner.test", transport=transport, retries=Retries(num_attempts=1)
    )


def run(planner: OneRankPlanner) -> None:
    """A rank that registers, runs a plan, posts a step and leaves."""
    active = threading.Event()
    link = PlannerLink(
        client(planner),
        job_id="job",
        rank=0,
        rank_name="rank 0",
        registration=decode(RankRegistration, REGISTRATION),
        times=LinkTimes(poll_wait_s=0.01, gather_s=0.01, flush_timeout_s=PATIENCE_S),
        current_step=lambda: 3,
        # Its version is all that the link looks at.
        compile_plan=lambda plan: cast("CompiledPlan", _Compiled(plan)),
        activate=lambda plan, first_step: active.set(),
    )
    link.start()
    assert active.wait(PATIENCE_S)
    link.put(StepMeasurement(step=3, plan_version=1, time_s=1.0, energy_j=2.0))
    wait_until(lambda: "measurements" in planner.sent)
    link.stop()


class _Compiled:
    def __init__(self, plan: RankPlan) -> None:
        self.version = plan.version


def test_what_the_registration_was_answered_goes_with_all_that_is_posted() -> None:
    planner = OneRankPlanner(run_id="65f1c0")
    run(planner)
    assert planner.sent["acknowledgement"]["run_id"] == "65f1c0"
    assert planner.sent["measurements"]["run_id"] == "65f1c0"
    assert planner.query == {"run_id": "65f1c0"}


def test_a_process_that_a_new_run_has_left_behind_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    num_posts: list[int] = []

    def refuse(request: httpx.Request) -> httpx.Response:
        del request
        num_posts.append(1)
        return httpx.Response(409, json={"detail": "registered for another start"})

    may_post = threading.Event()
    may_post.set()
    outbox = MeasurementOutbox(
        planner=client(refuse),
        job_id="job",
        rank=0,
        may_post=may_post,
        run_id=lambda: "old",
        reachability=PlannerReachability("rank 0"),
        backoff=Backoff(first_s=0.001, longest_s=0.002),
        period_s=0.001,
    )
    outbox.start()
    for step in range(3):
        outbox.put(StepMeasurement(step=step, plan_version=None, time_s=1.0, energy_j=None))
        wait_until(lambda num=step: len(num_posts) > num)  # type: ignore[misc]
    outbox.stop(PATIENCE_S)
    assert outbox.num_dropped == 3
    dropped = [line for line in caplog.records if "dropped" in line.getMessage()]
    assert [line.levelno for line in dropped] == [logging.WARNING, logging.DEBUG, logging.DEBUG]
