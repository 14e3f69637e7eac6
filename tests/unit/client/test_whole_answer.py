"""An answer that is too large, or never ends, is given up; any other is read whole."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from flyball_client.api.bounded_transport import CallBudget, UnusableAnswerError
from flyball_client.api.connection import whole_answer
from flyball_client.api.errors import PlannerUnavailableError
from flyball_client.api.planner_client import PlannerClient
from flyball_wire.codec import decode
from flyball_wire.errors import CodecError
from flyball_wire.messages import PlanView

REQUEST = httpx.Request("GET", "http://planner.test/")


def answer(*pieces: bytes, **headers: str) -> httpx.Response:
    """One whose body comes in pieces."""
    return httpx.Response(200, headers=headers, content=iter(pieces), request=REQUEST)


def budget(*, max_bytes: int) -> CallBudget:
    return CallBudget(max_bytes=max_bytes, max_s=60.0)


def test_an_answer_is_read_whole_and_its_headers_kept() -> None:
    whole = whole_answer(answer(b"abc", b"", b"def", answer="yes"), budget(max_bytes=6))
    assert (whole.content, whole.headers["answer"], whole.status_code) == (b"abcdef", "yes", 200)


def test_an_endless_answer_is_given_up_at_the_limit() -> None:
    num_sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal num_sent
        while True:
            num_sent += 1
            yield b"x" * 100

    response = httpx.Response(200, content=endless(), request=REQUEST)
    with pytest.raises(UnusableAnswerError, match="larger than 1000 bytes"):
        whole_answer(response, budget(max_bytes=1000))
    assert num_sent == 11
    assert response.is_closed


def test_an_answer_that_drips_is_given_up_in_finite_time() -> None:
    moments_s = iter([0.0, 4.0, 8.0, 12.0])
    limits = CallBudget(max_bytes=1000, max_s=10.0, now_s=lambda: next(moments_s))
    with pytest.raises(UnusableAnswerError, match="not complete within 10 s"):
        whole_answer(answer(b"{", b" ", b" ", b"}"), limits)


def test_for_the_client_such_an_answer_is_no_planners() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=b" " * 11))
    with (
        PlannerClient("http://planner.test", transport=transport, max_answer_bytes=10) as client,
        pytest.raises(PlannerUnavailableError, match="is not a planner"),
    ):
        client.health()


def test_an_answer_that_nests_deeper_than_python_is_no_planners() -> None:
    plan: dict[str, object] = {}
    for _ in range(5000):
        plan = {"a": plan}
    values = {"job_id": "job", "version": 1, "first_step": None, "created_at": "", "plan": plan}
    with pytest.raises(CodecError, match="PlanView nests too deeply"):
        decode(PlanView, values)
