from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

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

from flyball_client.api.connection import CAUSES
from flyball_client.api.errors import (
    PlannerBusyError,
    PlannerError,
    PlannerRefusedError,
    PlannerUnavailableError,
)
from flyball_client.api.planner_client import PlannerClient, Retries
from flyball_wire import messages, routes
from flyball_wire.codec import encode
from flyball_wire.measurements import JobStep
from flyball_wire.messages import JobState
from flyball_wire.plan_options import Policy, TargetChange
from flyball_wire.plans.rank_plan import rank_plan
from flyball_wire.read_models import PlanTimeline, TimelineOfPlan

TOKEN = "a-very-secret-token"  # noqa: S105 - nobody asks for it

REGISTRATION = messages.JobRegistration(num_stages=1, num_microbatches=4)
JOB = messages.JobView(
    job_id="a/b c",
    state=JobState.PLANNED,
    registration=REGISTRATION,
    ranks=(),
    newest_version=1,
    active_version=None,
    problem=None,
    created_at="2026-01-01T00:00:00Z",
)
PLAN = messages.PlanView(
    job_id="a/b c", version=1, first_step=None, created_at="now", plan={"a": 1}
)
RANK_PLAN = rank_plan(
    (("forward", 0, 1410, 0),),
    job_id="a/b c",
    version=3,
    stage=0,
    first_step=None,
    predicted_iteration_time_s=2.0,
)
STEP = JobStep(
    step=1,
    num_ranks=1,
    plan_versions=(None,),
    time_s=1.0,
    energy_j=None,
    num_unplanned=0,
    num_overruns=0,
)
HEALTH = messages.Health(status="ok", version="0.1.0")
VERSION = messages.PlanVersion(version=3, first_step=7)
CHANGE = TargetChange(policy=Policy.UNIFORM)
ACKNOWLEDGEMENT = messages.Acknowledgement(version=3, current_step=5)

_PIPELINE = TimelineOfPlan(
    iteration_time_s=1.0, energy_j=90.0, bubble_fraction=0.1, rows=(), critical_path=((0, 1),)
)
TIMELINE = PlanTimeline(
    job_id="a",
    version=1,
    emulated=True,
    is_as_planned=True,
    schedule="1f1b",
    num_microbatches=2,
    plan=_PIPELINE,
    baseline=_PIPELINE,
)

Call = Callable[[PlannerClient], object]
_J = "/api/v1/jobs/a%2Fb%20c"
_ID = "a/b c"

# Call, method and path, body sent, answer; others: those of ranks in test_rank_session.py and
# test_registration.py, those of `flyball top` in test_top_reading.py.
CALLS: list[tuple[Call, str, object, object]] = [
    (lambda c: c.health(), "GET /healthz", None, HEALTH),
    (lambda c: c.get_job(_ID), f"GET {_J}", None, JOB),
    (lambda c: c.list_jobs(), "GET /api/v1/jobs", None, (JOB, JOB)),
    (lambda c: c.put_target(_ID, CHANGE), f"PUT {_J}/target", CHANGE, JOB),
    (
        lambda c: c.get_rank_plan(_ID, 2, after_version=2, wait_s=1.5),
        f"GET {_J}/ranks/2/plan?after_version=2&wait_s=1.5",
        None,
        RANK_PLAN,
    ),
    (
        lambda c: c.acknowledge(_ID, 2, ACKNOWLEDGEMENT),
        f"POST {_J}/ranks/2/acknowledgement?wait_s=0",
        ACKNOWLEDGEMENT,
        VERSION,
    ),
    (
        lambda c: c.get_first_step(_ID, 3, wait_s=60),
        f"GET {_J}/plans/3/first-step?wait_s=60",
        None,
        VERSION,
    ),
    (lambda c: c.list_plans(_ID), f"GET {_J}/plans", None, (PLAN,)),
    (lambda c: c.get_plan(_ID, 1), f"GET {_J}/plans/1", None, PLAN),
    (lambda c: c.get_timeline(_ID), f"GET {_J}/timeline", None, TIMELINE),
    (lambda c: c.list_steps(_ID), f"GET {_J}/steps", None, (STEP,)),
    (lambda c: c.list_steps(_ID, limit=5), f"GET {_J}/steps?limit=5", None, (STEP,)),
]


class Answers:
    """Answers given in turn, the last one for ever, and what was asked."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self._answers = list(answers)
        self.requests: list[httpx.Request] = []
        self.pauses_s: list[float] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def client(self, *, token: str | None = TOKEN, num_attempts: int = 3) -> PlannerClient:
        return PlannerClient(
            "http://user:password@planner.test:7787",
            token=token,
            transport=httpx.MockTransport(self),
            retries=Retries(num_attempts=num_attempts, first_pause_s=0.1),
            sleep=self.pauses_s.append,
        )


def as_json(answer: object) -> httpx.Response:
    return httpx.Response(200, json=encode(answer))


@pytest.mark.parametrize(("call", "line", "body", "answer"), CALLS, ids=[c[1] for c in CALLS])
def test_each_call_asks_its_route_and_gives_its_type(
    call: Call, line: str, body: object, answer: object
) -> None:
    answers = Answers(as_json(answer))
    with answers.client() as client:
        assert call(client) == answer
    (request,) = answers.requests
    assert f"{request.method} {request.url.raw_path.decode()}" == line
    assert request.headers[messages.TOKEN_HEADER] == TOKEN
    sent: Any = json.loads(request.content) if request.content else None
    assert sent == encode(body)
    with pytest.raises(PlannerUnavailableError, match="closed"):
        call(client)


def test_a_profile_as_csv_is_sent_as_it_is() -> None:
    answers = Answers(as_json(JOB))
    text = "stage,instruction,frequency,time,energy\n0,forward,1410,0.1,20\n"
    answers.client().put_profile_csv("gpt", text)
    (request,) = answers.requests
    assert request.headers["Content-Type"].startswith("text/csv")
    assert request.content.decode() == text


def test_a_long_poll_waits_longer_than_the_planner_does_and_is_none_without_a_plan() -> None:
    answers = Answers(httpx.Response(204))
    assert answers.client().get_rank_plan("gpt", 0, wait_s=30) is None
    timeout = answers.requests[0].extensions["timeout"]
    assert timeout["read"] > 30
    assert timeout["connect"] == 5.0
    with pytest.raises(ValueError, match="wait_s must be from 0 to 60, not 61"):
        answers.client().get_rank_plan("gpt", 0, wait_s=61)


PASSING: list[httpx.Response | Exception] = [
    httpx.ConnectError("refused"),
    httpx.ConnectTimeout("slow"),
    httpx.ReadError("reset"),
    httpx.RemoteProtocolError("closed without an answer"),
    *map(httpx.Response, (502, 503, 504)),
    *(
        httpx.Response(503, headers={"Retry-After": text})
        for text in ("", "soon", "-1", "1.5", "Wed, 21 Oct 2026 07:28:00 GMT")
    ),
]


@pytest.mark.parametrize(("seconds", "waited_s"), [("7", 7), ("3600", 60)])
def test_a_busy_planner_names_the_time_of_the_next_call(seconds: str, waited_s: float) -> None:
    answers = Answers(httpx.Response(503, headers={"Retry-After": seconds}), as_json(HEALTH))
    with pytest.raises(PlannerBusyError) as caught:
        answers.client().health()
    assert caught.value.retry_after_s == waited_s
    assert answers.pauses_s == []


@pytest.mark.parametrize("failure", PASSING, ids=str)
def test_a_passing_failure_is_retried_after_growing_pauses_up_to_the_last_attempt(
    failure: httpx.Response | Exception,
) -> None:
    answers = Answers(failure, failure, as_json(HEALTH))
    assert answers.client().health() == HEALTH
    assert answers.pauses_s == [0.1, 0.2]
    answers = Answers(failure)
    with pytest.raises(PlannerUnavailableError):
        answers.client(token=None).health()
    assert len(answers.requests) == 3
    assert messages.TOKEN_HEADER not in answers.requests[0].headers


@pytest.mark.parametrize(
    "failure",
    [
        httpx.ReadTimeout("slow"),
        httpx.Response(500),
        httpx.Response(404, content=b"<html>"),
        httpx.Response(200, content=b"<html>"),
        httpx.Response(308, headers={"Location": "http://elsewhere.test/"}),
    ],
    ids=str,
)
def test_what_does_not_pass_is_tried_once(failure: httpx.Response | Exception) -> None:
    answers = Answers(failure)
    client = answers.client()
    with pytest.raises(PlannerError):
        client.health()
    (request,) = answers.requests
    assert set(request.extensions["timeout"].values()) == {5.0}
    assert repr(client) == "PlannerClient('http://planner.test:7787')"


def test_a_refusal_carries_its_status_and_its_reasons_in_one_line() -> None:
    problem = messages.Problem(
        detail="the job cannot be\nregistered",
        errors=(
            {"loc": "num_stages", "type": "int", "msg": "at least 1"},
            {"loc": "num_ranks", "type": "int", "msg": "at least 2"},
        ),
    )
    answers = Answers(httpx.Response(422, json=encode(problem)))
    with pytest.raises(PlannerRefusedError) as caught:
        answers.client().put_job("gpt", REGISTRATION)
    assert caught.value.status == 422
    assert str(caught.value) == (
        "the planner at http://planner.test:7787 refused (422): the job cannot be registered;"
        " num_stages: at least 1; num_ranks: at least 2"
    )


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"null",
        b'{"status": 1, "version": "0"}',
        b"\xff\xfe",
        b'{"status": NaN, "version": "0"}',
        b"[" * 100_000,
    ],
)
def test_a_nonsense_body_means_that_no_planner_is_there(body: bytes) -> None:
    answers = Answers(httpx.Response(200, content=body))
    with pytest.raises(PlannerUnavailableError, match="is not a planner"):
        answers.client().health()


def test_every_error_of_httpx_is_in_the_table() -> None:
    def family(root: type[Exception]) -> set[type[Exception]]:
        return {root}.union(*(family(child) for child in root.__subclasses__()))

    groups = {httpx.TransportError, httpx.TimeoutException, httpx.NetworkError, httpx.ProtocolError}
    public = {error for error in family(httpx.RequestError) if error.__module__ == "httpx"}
    assert public - groups - set(CAUSES) == set()


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_token_is_sent_without_the_end_of_its_line(end: str) -> None:
    answers = Answers(as_json(HEALTH))
    answers.client(token=TOKEN + end).health()
    assert answers.requests[-1].headers[messages.TOKEN_HEADER] == TOKEN


def test_tls_keys_that_cannot_be_logged_cost_no_planner(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SSLKEYLOGFILE", "/no/such/folder/keys")
    with PlannerClient("https://planner.test") as client:
        assert client.base_url == "https://planner.test"
    (line,) = caplog.messages
    assert line.startswith("SSLKEYLOGFILE: ")
    assert "TLS keys are not logged" in line


@pytest.mark.parametrize("error", [cause for cause in CAUSES if cause is not httpx.InvalidURL])
def test_every_error_of_httpx_becomes_ours_without_the_token(error: type[Exception]) -> None:
    answers = Answers(error(f"bad {TOKEN}"))
    with pytest.raises(PlannerUnavailableError) as caught:
        answers.client(num_attempts=1).health()
    assert str(caught.value).startswith("the planner at http://planner.test:7787 ")
    assert TOKEN not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("open_client", "text"),
    [
        *(
            (partial(PlannerClient, "http://planner.test", token=token), "printable ASCII text w")
            for token in ("with\nnewline", "umlaut-\u00e4", "spa ce", "end ")
        ),
        *(
            (partial(PlannerClient, url), "must be like http://HOST:PORT")
            for url in ("planner.test:7787", "ftp://planner.test", "http://", "http://host:port")
        ),
        *(
            (partial(PlannerClient, "http://planner.test", timeout_s=s), "timeout_s must be pos")
            for s in (0.0, -1.0, float("nan"))
        ),
        (partial(Retries, num_attempts=0), "num_attempts must be at least 1, not 0"),
        (partial(Retries, first_pause_s=-1.0), "first_pause_s must not be negative"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused_without_showing_a_token(
    open_client: Callable[[], object], text: str
) -> None:
    with pytest.raises(ValueError, match=text) as caught:
        open_client()
    assert not any(token in str(caught.value) for token in ("newline", "umlaut", "spa ce"))


# ------------------------------------------------------------------ limits of bytes and time

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
