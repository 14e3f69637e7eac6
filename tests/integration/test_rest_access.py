"""Access over HTTP: what each token opens, and what every answer carries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from tests.fuzz.raw_call import answers, call, send
from tests.planner.live import NO_AUTHORITIES, LivePlanner, live_planner
from tests.planner.samples import job_record, registration

from flyball_server.http.middleware.token_access import DOCS, OPENAPI
from flyball_server.http.problem_handlers import API_HEADERS
from flyball_server.http.zeus.messages import REGISTER_JOB, SCHEDULE
from flyball_server.jobs.auth.access import create_token
from flyball_server.jobs.lifecycle.heartbeats import Heartbeats
from flyball_server.planning.planner import PlanRequest
from flyball_wire import routes
from flyball_wire.messages import ACCESS_HEADER, READ_ONLY, TOKEN_HEADER
from flyball_wire.plans.plan import Plan

JOB = routes.fill(routes.JOB, job_id="job")
OTHER = routes.fill(routes.JOB, job_id="other")


@contextmanager
def as_bearer(planner: LivePlanner, token: str | None) -> Iterator[httpx.Client]:
    """A client that sends this token, or none."""
    headers = {} if token is None else {TOKEN_HEADER: token}
    with httpx.Client(
        base_url=planner.http.base_url, headers=headers, timeout=30, verify=NO_AUTHORITIES
    ) as http:
        yield http


@pytest.fixture(scope="module")
def planner() -> Iterator[LivePlanner]:
    with live_planner() as live:
        yield live


@pytest.fixture(scope="module")
def operators(planner: LivePlanner) -> str:
    return create_token(planner.state.services.store, job_id=None)[1]


@pytest.fixture(scope="module")
def jobs(planner: LivePlanner, operators: str) -> str:
    """The token of `job`, in a planner that has another job too."""
    token = create_token(planner.state.services.store, job_id="job")[1]
    planner.state.gate.forget()
    with as_bearer(planner, operators) as http:
        for path in (JOB, OTHER):
            http.put(path, json=registration()).raise_for_status()
    return token


def detail(answer: httpx.Response, status: int) -> str:
    """The one line of an error."""
    assert answer.status_code == status, answer.text
    text = answer.json()["detail"]
    assert isinstance(text, str)
    assert "\n" not in text
    return text


def test_a_token_opens_only_its_job(planner: LivePlanner, jobs: str) -> None:
    with as_bearer(planner, jobs) as http:
        assert http.get(JOB).status_code == 200
        assert http.put(JOB, json=registration()).status_code == 200
        assert http.get(f"{JOB}/steps").status_code == 200
        for path in (OTHER, f"{OTHER}/steps", f"{JOB}.1", f"{JOB}s", f"{routes.JOBS}/"):
            assert "permits job job only" in detail(http.get(path), 403), path
        assert detail(http.put(OTHER, json=registration()), 403)
        assert "job@1 is not known" in detail(http.get(f"{JOB}@1"), 404)
        assert "permits job job only" in detail(http.get(f"{OTHER}@1"), 403)
        for path in (routes.TOKENS, "/api/v1/nothing", "/nothing", "/dashboard/nothing"):
            assert detail(http.get(path), 403), path


@pytest.fixture(scope="module")
def reader(planner: LivePlanner, jobs: str) -> str:
    """A read-only token, in a planner that has the jobs `job` and `other`."""
    assert jobs
    token = create_token(planner.state.services.store, job_id=None, is_read_only=True)[1]
    planner.state.gate.forget()
    return token


def test_a_read_only_token_reads_everything(planner: LivePlanner, reader: str) -> None:
    with as_bearer(planner, reader) as http:
        for path in (JOB, OTHER, f"{OTHER}/steps", f"{JOB}/report", routes.METRICS, routes.TOKENS):
            answer = http.get(path)
            assert answer.status_code == 200, path
            assert answer.headers[ACCESS_HEADER] == READ_ONLY
        assert {each["job_id"] for each in http.get(routes.JOBS).json()} == {"job", "other"}
        assert len(http.get(routes.OVERVIEW).json()["jobs"]) == 2
        for path in (routes.EVENTS, routes.fill(routes.JOB_EVENTS, job_id="other")):
            assert "event: overview" in http.get(path, params={"wait_s": 0}).text, path
    with as_bearer(planner, reader.replace("fb_", "fb_0", 1)) as http:
        assert ACCESS_HEADER not in http.get(JOB).headers


def test_a_read_only_token_changes_nothing(
    planner: LivePlanner, operators: str, reader: str
) -> None:
    changes = [
        (method.upper(), path)
        for path, calls in planner.http.get(OPENAPI).json()["paths"].items()
        for method in calls
        if method != "get"
    ]
    assert len(changes) > 15
    parts = {"job_id": "job", "rank": 0, "token_id": reader.split("_")[1]}
    zeus = [("POST", REGISTER_JOB), ("GET", SCHEDULE)]
    with as_bearer(planner, operators) as known, as_bearer(planner, reader) as http:
        before = known.get(routes.JOBS).text
        for method, path in (*changes, *zeus, ("PATCH", JOB)):
            answer = http.request(method, path.format_map(parts), json=registration())
            assert "This token is read-only" in detail(answer, 403), (method, path)
        assert known.get(routes.JOBS).text == before


def test_who_polls_a_ranks_plan_with_a_read_only_token_is_not_the_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    beats: list[tuple[str, tuple[int, ...]]] = []
    monkeypatch.setattr(Heartbeats, "note", lambda _, job_id, ranks: beats.append((job_id, ranks)))
    with live_planner(token="t") as planner:  # noqa: S106 - a test's
        planner.http.headers[TOKEN_HEADER] = "t"
        planner.put_planned_job()
        made = planner.http.post(routes.TOKENS, json={"read_only": True}).json()
        rank_plan = routes.fill(routes.RANK_PLAN, job_id="job", rank=1)
        with as_bearer(planner, made["token"]) as http:
            beats.clear()
            assert http.get(rank_plan).status_code == 200
            assert beats == []
        assert planner.http.get(rank_plan).status_code == 200
        assert beats == [("job", (1,))]


def test_no_other_way_of_writing_an_address_opens_another_job(
    planner: LivePlanner, jobs: str
) -> None:
    # As they are: httpx would tidy the path.
    url = planner.http.base_url
    for path in (
        "/api/v1/jobs/job/../other",
        "/api/v1/jobs/job%2F..%2Fother",
        "/api/v1/jobs//other",
        "/api/v1/jobs/other/job",
        "/api/v1/jobs/JOB",
        "//api/v1/jobs/other",
    ):
        sent = call("GET", path, None, f"{TOKEN_HEADER}: {jobs}")
        (answer,) = answers(send((url.host, url.port or 0), sent))
        assert answer.status in {403, 404}
        assert b'"other"' not in answer.body


def test_a_jobs_token_lists_that_job_and_its_earlier_runs_only() -> None:
    with live_planner(token="t") as planner:  # noqa: S106 - a test's
        store = planner.state.services.store
        token = create_token(store, job_id="job", has_operator=True)[1]
        for job_id in ("job", "job@1", "job.1", "other@1"):
            with store.writing(job_id) as writer:
                writer.save_job(job_record(job_id=job_id))

        def listed(http: httpx.Client) -> list[list[str]]:
            jobs = (http.get(routes.JOBS).json(), http.get(routes.OVERVIEW).json()["jobs"])
            return [sorted(job["job_id"] for job in each) for each in jobs]

        assert planner.http.get(routes.OVERVIEW).status_code == 401
        with as_bearer(planner, token) as http:
            assert listed(http) == [["job", "job@1"]] * 2
            for path in (routes.JOB, routes.JOB_OVERVIEW):
                assert http.get(routes.fill(path, job_id="job@1")).status_code == 200
            other = routes.fill(routes.JOB_OVERVIEW, job_id="other@1")
            assert http.get(other).status_code == 403
        with as_bearer(planner, "t") as http:
            assert listed(http) == [["job", "job.1", "job@1", "other@1"]] * 2


def test_without_a_token_or_with_a_wrong_one_it_is_a_401(planner: LivePlanner, jobs: str) -> None:
    _, public, secret = jobs.split("_", 2)
    other = "fb_0123456789abcdef_"
    wrong = (None, "", other + "A" * 43, other + secret, "x" * 5000)
    near = (jobs[:-1], jobs + "A", jobs.upper(), jobs.replace("fb_", "fb_0", 1), public)
    for token in (*wrong, *near):
        with as_bearer(planner, token) as http:
            for path in (JOB, routes.JOBS, routes.TOKENS, "/nothing"):
                answer = http.get(path)
                assert TOKEN_HEADER in detail(answer, 401)
                assert answer.headers["WWW-Authenticate"] == "Bearer"
            assert http.get(routes.HEALTH).status_code == 200
            assert http.get(DOCS).status_code == 200
    # The token may come as a bearer's.
    with as_bearer(planner, None) as http:
        for value, status in (
            (f"Bearer {jobs}", 200),
            (f"bearer {jobs}", 200),
            (jobs, 401),
            (f"Basic {jobs}", 401),
            ("Bearer", 401),
        ):
            assert http.get(JOB, headers={"Authorization": value}).status_code == status
        both = {"Authorization": f"Bearer {jobs}", TOKEN_HEADER: "wrong"}
        assert http.get(JOB, headers=both).status_code == 401


def test_tokens_are_made_listed_and_revoked_over_rest(planner: LivePlanner, operators: str) -> None:
    with as_bearer(planner, operators) as http:
        answer = http.post(routes.TOKENS, json={"job_id": "night", "note": "runs"})
        assert answer.status_code == 201
        made = answer.json()
        token = made.pop("token")
        assert token.startswith(f"fb_{made['token_id']}_")
        listed = http.get(routes.TOKENS)
        assert made in listed.json()
        assert token not in listed.text
        with as_bearer(planner, token) as nights:
            path = routes.fill(routes.JOB, job_id="night")
            assert nights.put(path, json=registration()).status_code == 201
            one = routes.fill(routes.TOKEN, token_id=made["token_id"])
            assert detail(nights.delete(one), 403)
            assert http.delete(one).status_code == 204
            # Here at once: this planner was told.
            assert detail(nights.get(path), 401)
        assert made["token_id"] in detail(http.delete(one), 404)
        # A token is for one job or an operator's, and that is said.
        for body in ({}, {"job_id": "job", "operator": True}, {"job_id": "a/b"}, {"note": "x\n"}):
            assert detail(http.post(routes.TOKENS, json=body), 422)


OWN_HOSTS = (
    "localhost", "LocalHost.:80", "127.0.0.1", "127.9.9.9:7787", "[::1]:7787", "[0:0:0:0:0:0:0:1]",
    "[::ffff:127.0.0.1]", "planner.example.org", "PLANNER.example.org.:443", "[fd00:0::7]:1",
)  # fmt: skip
FOREIGN_HOSTS = (
    "evil.example", "evil.example:7787", "127.0.0.1.evil.example", "localhost.evil.example", "",
    "sub.planner.example.org", "192.0.2.1", "[fd00::8]", "::1", "[::1", "localhost:x",
    "localhost@x", "127.1", "0x7f.0.0.1", "local\xe4host",
)  # fmt: skip


def test_without_tokens_a_foreign_name_of_the_planner_opens_nothing() -> None:
    """A page at such a name is of the planner's own origin to its browser."""

    def status(host: str, method: str = "GET", path: str = routes.JOBS) -> int:
        headers = {b"Host": host.encode("latin-1"), b"Sec-Fetch-Site": b"same-origin"}
        body = registration() if method == "PUT" else None
        answer = live.http.request(method, path, headers=headers, json=body)
        if answer.status_code == 403:
            assert "FLYBALL_ALLOWED_HOSTS" in detail(answer, 403)
        return answer.status_code

    hosts = ("planner.example.org", "fd00::7")
    with live_planner(allowed_hosts=hosts, metrics_open=True) as live:
        assert {host: status(host) for host in OWN_HOSTS} == dict.fromkeys(OWN_HOSTS, 200)
        found = {host: status(host) for host in FOREIGN_HOSTS}
        assert found == dict.fromkeys(FOREIGN_HOSTS, 403)
        assert status("evil.example", "PUT", JOB) == 403
        assert status("evil.example", "DELETE", JOB) == 403
        assert status("localhost", "PUT", JOB) == 201
        # Probes name a pod's address, or anything.
        for path in (routes.HEALTH, routes.READY):
            assert status("10.1.2.3:7787", "GET", path) == 200
        assert status("evil.example", "GET", routes.METRICS) == 403
        # A balancer may send any name to a planner with tokens: what is let in there has one.
        _, token = create_token(live.state.services.store, job_id=None)
        live.state.gate.forget()
        assert status("evil.example") == 401
        live.http.headers[TOKEN_HEADER] = token
        assert status("balancer.example") == 200
        del live.http.headers[TOKEN_HEADER]
        assert status("evil.example", "GET", routes.METRICS) == 403
        assert status("localhost", "GET", routes.METRICS) == 200


def test_without_an_operators_token_none_is_made_over_rest() -> None:
    with live_planner() as planner:
        for token in (None, "fb_0123456789abcdef_" + "A" * 43):
            with as_bearer(planner, token) as http:
                answer = http.post(routes.TOKENS, json={"operator": True})
                assert "flyball token create --operator" in detail(answer, 403)
                one = routes.fill(routes.TOKEN, token_id="0123456789abcdef")  # noqa: S106 - its public part
                assert detail(http.delete(one), 403)
                assert http.get(routes.TOKENS).json() == []


def test_what_a_page_of_another_site_may_post_is_no_change(
    planner: LivePlanner, operators: str
) -> None:
    """These are sent without asking whether the planner lets that site in."""
    paths = planner.app.openapi()["paths"]
    posted = [path for path, methods in paths.items() if "post" in methods]
    assert len(posted) >= 5
    parts = {"job_id": "job", "rank": "0", "version": "1"}
    with as_bearer(planner, operators) as http:
        http.headers["Origin"] = "http://evil.example"
        for path in posted:
            for kind in (None, "text/plain", "multipart/form-data; boundary=x"):
                headers = {} if kind is None else {"Content-Type": kind}
                answer = http.post(path.format_map(parts), content=b"{}", headers=headers)
                assert "application/json" in detail(answer, 415), path
                answer = http.post(path.format_map(parts), headers=headers)
                assert answer.status_code == 415, path


def test_a_page_of_another_site_can_change_nothing() -> None:
    with live_planner() as planner:
        sites = {"cross-site": 403, "same-site": 403, "same-origin": 201, "none": 200}
        for site, status in sites.items():
            headers = {"Sec-Fetch-Site": site}
            answer = planner.http.put(JOB, json=registration(), headers=headers)
            assert answer.status_code == status, site
            assert planner.http.get(routes.JOBS, headers=headers).status_code == 200


def test_every_answer_carries_the_headers_that_browsers_heed() -> None:
    def broken(request: PlanRequest) -> Plan:
        raise ZeroDivisionError

    with live_planner(token="t", planner=broken) as planner:  # noqa: S106 - a test's
        refused = planner.http.get(JOB)
        planner.http.headers[TOKEN_HEADER] = "t"
        made = planner.put_job()
        answers_by_status = {
            200: planner.http.get(routes.HEALTH),
            201: made,
            401: refused,
            404: planner.http.get(OTHER),
            405: planner.http.post(JOB),
            422: planner.http.put(JOB, json={}),
            500: planner.put_profile(),
        }
    for status, answer in answers_by_status.items():
        assert answer.status_code == status
        for name, value in API_HEADERS.items():
            assert answer.headers[name] == value, (status, name)
        assert "Strict-Transport-Security" not in answer.headers
