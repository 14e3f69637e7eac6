from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import httpx
import pytest

from flyball_client.api.errors import PlannerRefusedError, PlannerUnavailableError
from flyball_client.api.planner_client import PlannerClient, Retries
from flyball_client.helper import job_agent
from flyball_client.helper.planner_calls import Backoff, PlannerReachability
from flyball_client.helper.rank_agent import LinkTimes
from flyball_client.session.registration import JobRegistrar
from flyball_wire.codec import decode
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
_AWAY = httpx.ConnectError("nobody there")
_UNKNOWN = httpx.Response(404, json={"detail": "Job gpt is not known here", "errors": []})


def _refused(status: int) -> httpx.Response:
    return httpx.Response(status, json={"detail": "it has 2 stages", "errors": []})


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
    monkeypatch.setattr(job_agent, "_FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(job_agent, "_CHECK_PERIOD_S", 0.001)


@contextmanager
def _registrar(planner: _Planner) -> Iterator[None]:
    """A registrar that has come to the end of the planner's list, and is closed at the end."""
    transport, once = httpx.MockTransport(planner), Retries(num_attempts=1)
    with PlannerClient("http://planner", transport=transport, retries=once) as client:
        registrar = JobRegistrar(client, job_id="gpt", registration=_REGISTRATION, start_id="a1")
        try:
            assert planner.over.wait(_TIMEOUT_S)
            yield
        finally:
            registrar.close(timeout_s=_TIMEOUT_S)
        assert "flyball-job-registrar" not in {each.name for each in threading.enumerate()}


@pytest.mark.parametrize(
    ("pause", "answer"),
    [("_CHECK_PERIOD_S", httpx.Response(201, json=_JOB)), ("_FIRST_PAUSE_S", _AWAY)],
)
def test_the_job_is_registered_as_it_is_and_closing_ends_a_long_pause(
    monkeypatch: pytest.MonkeyPatch, pause: str, answer: httpx.Response | Exception
) -> None:
    monkeypatch.setattr(job_agent, "_LONGEST_PAUSE_S", 2000.0)
    monkeypatch.setattr(job_agent, pause, 1000.0)
    planner = _Planner(answer)
    with _registrar(planner):
        (request,) = planner.requests
    assert (request.method, request.url.path) == ("PUT", "/api/v1/jobs/gpt")
    sent = decode(JobRegistration, json.loads(request.content))
    assert sent == replace(_REGISTRATION, start_id="a1", host=socket.gethostname())


@pytest.mark.parametrize(
    ("answers", "methods", "logged"),
    [
        ([_AWAY, httpx.Response(503), _AWAY, _KNOWN], "PUT PUT PUT PUT", ["cannot be reached"]),
        (
            [_KNOWN, _KNOWN, _AWAY, _UNKNOWN, _AWAY, _KNOWN, _KNOWN],
            "PUT GET GET GET PUT PUT GET",
            [
                "no longer has job gpt, which is registered again; put its profile again",
                "cannot be reached",
            ],
        ),
        ([_refused(422), _UNKNOWN, _UNKNOWN], "PUT GET GET", ["it has 2 stages"]),
        # Ranks of an earlier run are still there.
        ([_refused(409), _refused(409), _KNOWN, _KNOWN], "PUT PUT PUT GET", ["it has 2 stages"]),
        (
            [_refused(422), _KNOWN, _UNKNOWN, _KNOWN],
            "PUT GET GET PUT",
            ["it has 2 stages", "no longer has job gpt"],
        ),
    ],
    ids=["away", "forgotten", "refused", "still running", "refused and forgotten"],
)
def test_a_job_is_registered_until_the_planner_has_it_and_each_problem_is_logged_once(
    caplog: pytest.LogCaptureFixture,
    answers: list[httpx.Response | Exception],
    methods: str,
    logged: list[str],
) -> None:
    planner = _Planner(*answers)
    with caplog.at_level(logging.WARNING), _registrar(planner):
        assert planner.methods == methods.split()
    for text, message in zip(logged, caplog.messages, strict=True):
        assert text in message


def test_another_number_of_microbatches_is_registered_and_an_order_of_its_own_has_only_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(job_agent, "_CHECK_PERIOD_S", 1000.0)
    created, number = httpx.Response(201, json=_JOB), _REGISTRATION.num_microbatches + 1
    planner = _Planner(created, created)
    transport, once = httpx.MockTransport(planner), Retries(num_attempts=1)
    with PlannerClient("http://planner", transport=transport, retries=once) as client:
        registrar = JobRegistrar(client, job_id="gpt", registration=_REGISTRATION)
        registrar.take_microbatches(number - 1)
        registrar.take_microbatches(number)
        assert planner.over.wait(_TIMEOUT_S)
        registrar.close(timeout_s=_TIMEOUT_S)
    sent = [decode(JobRegistration, json.loads(each.content)) for each in planner.requests]
    assert [each.num_microbatches for each in sent] == [number - 1, number]
    order = ((("forward", 0), ("backward", 0)),)
    one = JobRegistration(num_stages=1, num_microbatches=1, schedule="explicit", order=order)
    with PlannerClient("http://planner", transport=httpx.MockTransport(lambda _: _KNOWN)) as client:
        registrar = JobRegistrar(client, job_id="gpt", registration=one)
        registrar._change(2)
        registrar.close()
    assert "job gpt: steps of 2 microbatches run without a plan: its order is" in caplog.text


# ------------------------------------------------------------------ a lost planner

AWAY = PlannerUnavailableError("nobody there")


def test_pauses_double_up_to_the_longest_and_start_again() -> None:
    backoff = Backoff(first_s=1.0, longest_s=3.0)
    for longest_s in (1.0, 2.0, 3.0, 3.0):
        assert longest_s / 2 <= backoff.next_pause_s() <= longest_s
    backoff.reset()
    assert backoff.next_pause_s() <= 1.0
    with pytest.raises(ValueError, match="backoff must be 0 < first_s <= longest_s"):
        Backoff(first_s=2.0, longest_s=1.0)
    with pytest.raises(ValueError, match="backoff must be 0 < first_s <= longest_s"):
        LinkTimes(first_retry_s=0.0)


def refused(status: int) -> PlannerRefusedError:
    return PlannerRefusedError(f"refused ({status})", status=status)


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        *(
            (
                [("lost", "plans", e) for e in (AWAY, AWAY, no, no, AWAY, no)],
                2 * [(logging.WARNING, "nobody there"), (level, str(no))],
            )
            for no, level in ((refused(404), logging.INFO), (refused(422), logging.WARNING))
        ),
        # A refusal for another reason is logged too.
        (
            [("lost", "plans", refused(status)) for status in (404, 404, 401, 401)],
            [(logging.INFO, "refused (404)"), (logging.WARNING, "refused (401)")],
        ),
        # A rank that the planner has forgotten.
        (
            [("back", "plans"), ("lost", "plans", refused(404))],
            [(logging.WARNING, "refused (404)")],
        ),
        # One thread is refused, and another one is not.
        (
            5 * [("lost", "plans", refused(422)), ("back", "measurements")] + [("back", "plans")],
            [(logging.WARNING, "refused (422)"), (logging.WARNING, "planner back")],
        ),
        (
            [
                *(("lost", "plans", AWAY), ("lost", "measurements", AWAY)),
                *(("back", "measurements"), ("back", "plans")),
            ],
            [(logging.WARNING, "nobody there"), (logging.WARNING, "planner back")],
        ),
    ],
)
def test_a_lost_planner_and_its_return_are_logged_once_for_all_threads(
    caplog: pytest.LogCaptureFixture,
    calls: list[tuple[str, ...]],
    said: list[tuple[int, str]],
) -> None:
    caplog.set_level(logging.INFO, logger="flyball_client")
    reachability = PlannerReachability("rank 3")
    for name, *arguments in calls:
        getattr(reachability, name)(*arguments)
    logged = [(record.levelno, record.message.rpartition(": ")[2]) for record in caplog.records]
    assert logged == said


def test_a_registration_that_stays_refused_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    reachability = PlannerReachability("job job rank 3")
    taken = PlannerRefusedError("Ranks 0 and 3 both claim stage 0", status=409)
    with caplog.at_level(logging.INFO):
        for _ in range(20):
            reachability.lost("registration", taken)
    assert [(record.levelname, "both claim" in record.message) for record in caplog.records] == [
        ("INFO", True),  # as long as another rank may still register the job
        ("WARNING", True),
    ]
