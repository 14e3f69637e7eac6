"""A call ends within its bytes, whatever the planner sends; in time: test_helper_process.py."""

from __future__ import annotations

import time

import httpx
import pytest
from tests.planner.hostile import (
    Answer,
    endless_body,
    endless_chunks,
    endless_head,
    hostile_planner,
    packed_lists,
    twice_packed,
)

from flyball_client.api.errors import PlannerRefusedError, PlannerUnavailableError
from flyball_client.api.planner_client import PlannerClient
from flyball_wire import routes

ENDLESS: dict[Answer, str] = {
    endless_head: "did not answer in HTTP",
    endless_body: "body is larger than 10000 bytes",
    endless_chunks: "body is larger than 10000 bytes",
}
PACKED = (packed_lists, twice_packed)


@pytest.mark.parametrize("answer", ENDLESS)
def test_an_endless_answer_is_given_up_at_its_limit_of_bytes(answer: Answer) -> None:
    with (
        hostile_planner(answer) as planner,
        PlannerClient(planner.url, max_answer_bytes=10_000) as client,
        pytest.raises(PlannerUnavailableError, match=ENDLESS[answer]),
    ):
        client.health()


@pytest.mark.parametrize("answer", PACKED)
def test_an_encoded_answer_is_refused_unread(answer: Answer) -> None:
    with hostile_planner(answer) as planner, PlannerClient(planner.url) as client:
        with pytest.raises(PlannerUnavailableError, match="body is compressed"):
            client.health()
        assert b"accept-encoding: identity" in planner.requests[0].head.lower()


@pytest.mark.parametrize(("attempt_s", "num_attempts"), [(2.0, 3), (3.0, 2), (5.1, 1)])
def test_a_call_that_took_its_timeout_is_not_retried(
    monkeypatch: pytest.MonkeyPatch, attempt_s: float, num_attempts: int
) -> None:
    requests: list[httpx.Request] = []

    def fail(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        raise httpx.ConnectTimeout("")

    monkeypatch.setattr(time, "monotonic", lambda: attempt_s * len(requests))
    with (
        PlannerClient(
            "http://planner.test",
            transport=httpx.MockTransport(fail),
            timeout_s=5.0,
            sleep=lambda _: None,
        ) as client,
        pytest.raises(PlannerUnavailableError),
    ):
        client.health()
    assert len(requests) == num_attempts


def test_of_an_answer_that_is_not_read_its_status_counts() -> None:
    with hostile_planner(endless_body) as planner, PlannerClient(planner.url) as client:
        assert client.send("GET", routes.HEALTH, is_body_read=False).status_code == 200
    answer = httpx.Response(404, json={"detail": "no such job", "errors": []})
    transport = httpx.MockTransport(lambda _: answer)
    with (
        PlannerClient("http://planner.test", transport=transport) as client,
        pytest.raises(PlannerRefusedError, match="no such job"),
    ):
        client.send("GET", routes.HEALTH, is_body_read=False)
