from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import pytest

from flyball_client.api.planner_client import PlannerClient, Retries
from flyball_client.session import job_registrar
from flyball_client.session.job_registrar import JobRegistrar
from flyball_wire.messages import JobRegistration

_TIMEOUT_S = 60.0
_REGISTRATION = JobRegistration(num_stages=4, num_microbatches=8)
_JOB: dict[str, object] = {
    "job_id": "gpt",
    "state": "awaiting-profile",
    "registration": {"num_stages": 4, "num_microbatches": 8},
    "ranks": [],
    "newest_version": None,
    "active_version": None,
    "problem": None,
    "created_at": "2025-01-01T00:00:00Z",
}


_KNOWN = httpx.Response(200, json=_JOB)
_UNKNOWN = httpx.Response(404, json={"detail": "Job gpt is not known here", "errors": []})


class _Planner:
    """Answers from a list, then with the job; `over` is set when the list is used up."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.requests: list[httpx.Request] = []
        self.over = threading.Event()
        self._answers = list(answers)

    @property
    def methods(self) -> list[str]:
        """Of the requests that the list has answered."""
        assert self.over.wait(_TIMEOUT_S)
        return [request.method for request in self.requests]

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if self.over.is_set():
            return _KNOWN
        self.requests.append(request)
        answer = self._answers.pop(0)
        if not self._answers:
            self.over.set()
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_registrar, "_FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(job_registrar, "_CHECK_PERIOD_S", 0.001)


def _client(planner: Callable[[httpx.Request], httpx.Response]) -> PlannerClient:
    return PlannerClient(
        "http://planner",
        transport=httpx.MockTransport(planner),
        retries=Retries(num_attempts=1),
    )


@contextmanager
def _registrar(
    planner: _Planner, registration: JobRegistration = _REGISTRATION
) -> Iterator[JobRegistrar]:
    """A registrar that has come to the end of the planner's list, and is closed at the end."""
    with _client(planner) as client:
        registrar = JobRegistrar(client, job_id="gpt", registration=registration)
        try:
            assert planner.over.wait(_TIMEOUT_S)
            yield registrar
        finally:
            registrar.close(timeout_s=_TIMEOUT_S)
        assert not registrar.is_alive


def test_the_job_is_registered_as_it_is() -> None:
    planner = _Planner(httpx.Response(201, json=_JOB))
    with _registrar(planner):
        (request,) = planner.requests
    assert request.method == "PUT"
    assert request.url.path == "/api/v1/jobs/gpt"
    assert json.loads(request.content)["num_microbatches"] == 8


def test_registering_is_tried_until_the_planner_answers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    away = httpx.ConnectError("nobody there")
    planner = _Planner(away, httpx.Response(503), away, _KNOWN)
    with caplog.at_level(logging.WARNING), _registrar(planner):
        assert planner.methods == ["PUT"] * 4
    assert len(caplog.records) == 1  # said once, not at each attempt


def test_a_job_that_the_planner_has_forgotten_is_registered_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    away = httpx.ConnectError("nobody there")
    planner = _Planner(_KNOWN, _KNOWN, away, _UNKNOWN, away, _KNOWN, _KNOWN)
    with caplog.at_level(logging.WARNING), _registrar(planner):
        assert planner.methods == ["PUT", "GET", "GET", "GET", "PUT", "PUT", "GET"]
    assert caplog.messages[0] == (
        "the planner no longer has job gpt, which is registered again; put its profile again"
    )


@pytest.mark.parametrize(
    ("pause", "answer"),
    [("_CHECK_PERIOD_S", _KNOWN), ("_FIRST_PAUSE_S", httpx.ConnectError("nobody there"))],
)
def test_closing_ends_a_long_pause(
    monkeypatch: pytest.MonkeyPatch, pause: str, answer: httpx.Response | Exception
) -> None:
    monkeypatch.setattr(job_registrar, "_LONGEST_PAUSE_S", 2000.0)
    monkeypatch.setattr(job_registrar, pause, 1000.0)
    planner = _Planner(answer)
    with _registrar(planner):
        pass
    assert planner.methods == ["PUT"]


def test_a_refused_job_is_said_once_and_not_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    no = httpx.Response(422, json={"detail": "it has 2 stages", "errors": []})
    planner = _Planner(no, _UNKNOWN, _UNKNOWN)
    with caplog.at_level(logging.WARNING), _registrar(planner):
        assert planner.methods == ["PUT", "GET", "GET"]
    (record,) = caplog.records
    assert "it has 2 stages" in record.getMessage()


def test_a_job_whose_earlier_ranks_are_not_gone_yet_is_tried_until_they_are(
    caplog: pytest.LogCaptureFixture,
) -> None:
    no = httpx.Response(409, json={"detail": "it stands with another num_stages", "errors": []})
    planner = _Planner(no, no, _KNOWN, _KNOWN)
    with caplog.at_level(logging.WARNING), _registrar(planner):
        assert planner.methods == ["PUT", "PUT", "PUT", "GET"]
    (record,) = caplog.records
    assert "it stands with another num_stages" in record.getMessage()


def test_a_refused_job_that_the_planner_knew_and_forgot_is_registered() -> None:
    no = httpx.Response(422, json={"detail": "target: no plan meets it", "errors": []})
    planner = _Planner(no, _KNOWN, _UNKNOWN, _KNOWN)
    with _registrar(planner):
        assert planner.methods == ["PUT", "GET", "GET", "PUT"]
