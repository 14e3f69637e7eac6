"""A call ends in time and within its bytes, whatever the planner sends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import httpcore
import httpx
import pytest
from tests.planner.hostile import (
    Answer,
    dripping_body,
    dripping_head,
    dripping_interim,
    endless_body,
    endless_chunks,
    endless_head,
    endless_interim,
    hostile_planner,
    packed_lists,
    twice_packed,
    whole,
)

from flyball_client.api.bounded_transport import (
    BoundedTransport,
    CallBudget,
    UnusableAnswerError,
)
from flyball_client.api.connection import whole_answer
from flyball_client.api.errors import PlannerUnavailableError
from flyball_client.api.planner_client import PlannerClient

ENDLESS: dict[Answer, str] = {
    endless_interim: "head is larger than 131072 bytes",
    endless_head: "head is larger than 131072 bytes|did not answer in HTTP",
    endless_body: "body is larger than 100000 bytes",
    endless_chunks: "body is larger than 100000 bytes",
}
DRIPPING = (dripping_head, dripping_interim, dripping_body)
PACKED = (packed_lists, twice_packed)


@pytest.mark.parametrize("answer", ENDLESS)
def test_an_endless_answer_is_given_up_at_its_limit_of_bytes(answer: Answer) -> None:
    with (
        hostile_planner(answer) as planner,
        PlannerClient(planner.url, max_answer_bytes=100_000) as client,
        pytest.raises(PlannerUnavailableError, match=ENDLESS[answer]),
    ):
        client.health()


@pytest.mark.slow
@pytest.mark.parametrize("answer", DRIPPING)
def test_an_answer_that_drips_is_given_up_at_the_calls_deadline(answer: Answer) -> None:
    # The timeout of a read alone never comes: each byte starts it again.
    with (
        hostile_planner(answer) as planner,
        PlannerClient(planner.url, timeout_s=60.0, max_call_s=0.3) as client,
        pytest.raises(PlannerUnavailableError, match=r"in time|within 0\.3 s"),
    ):
        client.health()


@pytest.mark.parametrize("answer", PACKED)
def test_an_encoded_answer_is_refused_unread(answer: Answer) -> None:
    with hostile_planner(answer) as planner, PlannerClient(planner.url) as client:
        with pytest.raises(PlannerUnavailableError, match="body is compressed"):
            client.health()
        assert b"accept-encoding: identity" in planner.requests[0].head.lower()


def test_the_deadline_is_of_all_attempts_together() -> None:
    def cut_off(planner: object, request: object) -> list[bytes]:
        del planner, request
        raise ConnectionAbortedError

    with (
        hostile_planner(cut_off) as planner,
        PlannerClient(planner.url, max_call_s=0.0) as client,
        pytest.raises(PlannerUnavailableError),
    ):
        client.health()
    assert len(planner.requests) <= 1


def test_an_honest_answer_is_read() -> None:
    def honest(planner: object, request: object) -> Iterable[bytes]:
        del planner, request
        return whole({"status": "ok", "version": "1"})

    with hostile_planner(honest) as planner, PlannerClient(planner.url) as client:
        assert client.health().version == client.health().version == "1"


def test_an_answer_of_another_transport_has_the_same_limits() -> None:
    num_sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal num_sent
        while True:
            num_sent += 1
            yield b"x" * 100

    answer = httpx.Response(200, content=endless())
    transport = httpx.MockTransport(lambda _: answer)
    with (
        PlannerClient("http://planner.test", transport=transport, max_answer_bytes=1000) as client,
        pytest.raises(PlannerUnavailableError, match=r"not a planner.* than 1000 bytes"),
    ):
        client.health()
    assert num_sent == 11
    assert answer.is_closed
    moments_s = iter([0.0, 4.0, 8.0, 12.0])
    budget = CallBudget(max_bytes=1000, max_s=10.0, now_s=lambda: next(moments_s))
    with pytest.raises(UnusableAnswerError, match="not complete within 10 s"):
        whole_answer(httpx.Response(200, content=iter([b"{", b" ", b" ", b"}"])), budget)


@pytest.mark.parametrize("name", [n for n in httpcore.__all__ if n.endswith(("Error", "Timeout"))])
def test_every_error_of_httpcore_is_one_of_httpx(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise getattr(httpcore, name)("as a test wants")

    monkeypatch.setattr(httpcore.ConnectionPool, "handle_request", fail)
    with (
        httpx.Client(transport=BoundedTransport(False)) as client,
        pytest.raises(httpx.RequestError) as raised,
    ):
        client.get("http://planner.test")
    assert type(raised.value).__name__ == name
