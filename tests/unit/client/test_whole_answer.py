"""An answer that is too large, or never ends, is given up; any other is read whole."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import httpx
import pytest

from flyball_client.api.connection import EndlessAnswerError, whole_answer
from flyball_client.api.errors import PlannerUnavailableError
from flyball_client.api.planner_client import PlannerClient
from flyball_wire.codec import decode
from flyball_wire.errors import CodecError
from flyball_wire.messages import PlanView

REQUEST = httpx.Request("GET", "http://planner.test/")


def answer(*pieces: bytes, **headers: str) -> httpx.Response:
    """One whose body comes in pieces."""
    return httpx.Response(200, headers=headers, content=iter(pieces), request=REQUEST)


def test_an_answer_is_read_whole_and_its_headers_kept() -> None:
    whole = whole_answer(answer(b"abc", b"", b"def", answer="yes"), max_bytes=6)
    assert (whole.content, whole.headers["answer"], whole.status_code) == (b"abcdef", "yes", 200)
    bomb = answer(gzip.compress(b"a" * 1001), **{"content-encoding": "gzip"})
    with pytest.raises(EndlessAnswerError, match="larger than 1000 bytes"):
        whole_answer(bomb, max_bytes=1000)


def test_an_endless_answer_is_given_up_at_the_limit() -> None:
    num_sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal num_sent
        while True:
            num_sent += 1
            yield b"x" * 100

    response = httpx.Response(200, content=endless(), request=REQUEST)
    with pytest.raises(EndlessAnswerError, match="larger than 1000 bytes"):
        whole_answer(response, max_bytes=1000)
    assert num_sent == 11
    assert response.is_closed


def test_an_answer_that_drips_is_given_up_in_finite_time() -> None:
    moments_s = iter([0.0, 4.0, 8.0, 12.0])
    with pytest.raises(EndlessAnswerError, match="not complete within 10 s"):
        whole_answer(answer(b"{", b" ", b" ", b"}"), max_s=10.0, now_s=lambda: next(moments_s))


def test_for_the_client_such_an_answer_is_no_planners(monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(response: httpx.Response) -> httpx.Response:
        return whole_answer(response, max_bytes=10)

    monkeypatch.setattr("flyball_client.api.connection.whole_answer", cut)
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=b" " * 11))
    with (
        PlannerClient("http://planner.test", transport=transport) as client,
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
