"""Bytes that no client of ours sends: each is answered or hung up on, and the planner goes on."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.fuzz.raw_call import PATIENCE_S, Answer, answers, call, json_call, send
from tests.planner.live import ServeProcess, serve_environment, serve_process
from tests.planner.samples import registration

JOB = "/api/v1/jobs/job"
PROFILE = f"{JOB}/profile"
STEPS = f"{JOB}/ranks/0/measurements"
REGISTRATION = json.dumps(registration())
MAX_BODY_BYTES = 2**20
CHUNKED, CHUNK_BYTES = "Transfer-Encoding: chunked", MAX_BODY_BYTES + 1
# A body may be parsed into some thirty times its size; a library or two may be loaded late.
MAX_GROWTH_MIB = 160
SAID_BY_UVICORN = b"Invalid HTTP request received."


@dataclass(frozen=True, kw_only=True)
class Planner:
    """A planner in a process of its own."""

    serving: ServeProcess

    @property
    def address(self) -> tuple[str, int]:
        url = self.serving.http.base_url
        assert url.port is not None
        return url.host, url.port

    @property
    def most_memory_mib(self) -> int:
        """The most that the process has ever held."""
        status = Path(f"/proc/{self.serving.process.pid}/status").read_text(encoding="ascii")
        line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) // 1024

    def answered(self, sent: bytes, *, ends: bool = False) -> list[Answer]:
        """Return what comes back; the planner is up afterwards."""
        found = answers(send(self.address, sent, ends=ends))
        assert self.serving.http.get("/healthz").status_code == 200
        return found

    def one(self, sent: bytes) -> Answer:
        """The one answer to a call."""
        (answer,) = self.answered(sent)
        return answer


@pytest.fixture(scope="module")
def planner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planner]:
    """One planner for all calls of this file: none is an error of its own, or makes it grow."""
    environment = serve_environment(
        FLYBALL_MAX_BODY_BYTES=str(MAX_BODY_BYTES), FLYBALL_BODY_TIMEOUT_S="1"
    )
    database = tmp_path_factory.mktemp("raw") / "planner.sqlite"
    with serve_process(database, environment=environment) as serving:
        serving.put_job().raise_for_status()
        serving.put_ranks(1)
        planner = Planner(serving=serving)
        before_mib = planner.most_memory_mib
        yield planner
        grown_mib = planner.most_memory_mib - before_mib
        _, log = serving.end(signal.SIGTERM)
    assert "ERROR" not in log, log
    assert "Traceback" not in log, log
    assert grown_mib < MAX_GROWTH_MIB, f"{grown_mib} MiB more than at first"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (json_call("PUT", JOB, "{}", "Content-Length: 1000000000"), 413),
        (json_call("PUT", JOB, " " * (MAX_BODY_BYTES + 1)), 413),
        (json_call("PUT", JOB, "", "Content-Length: 9999999", "Expect: 100-continue"), 413),
        (json_call("PUT", JOB, f"{CHUNK_BYTES:x}\r\n" + " " * CHUNK_BYTES, CHUNKED), 413),
        (json_call("PUT", JOB, REGISTRATION, "Content-Length: 10"), 422),
        (json_call("PUT", JOB, "{}", "Content-Length: 2", "Content-Length: 2"), 422),
        (json_call("PUT", JOB, "{}", "Content-Length: 9"), 408),
    ],
)  # fmt: skip
def test_a_body_that_is_not_as_long_as_it_says_is_a_problem(
    planner: Planner, sent: bytes, status: int
) -> None:
    answer = planner.one(sent)
    assert answer.status == status
    assert answer.problem


def test_a_body_that_comes_drop_by_drop_is_not_waited_for(planner: Planner) -> None:
    head = json_call("PUT", JOB, "", f"Content-Length: {len(REGISTRATION)}")
    with socket.create_connection(planner.address, timeout=PATIENCE_S) as connection:
        connection.sendall(head)
        connection.settimeout(0.2)
        received = b""
        for letter in REGISTRATION.encode():
            try:
                connection.sendall(bytes([letter]))
                received += connection.recv(2**16)
            except TimeoutError:
                continue
            except ConnectionError:
                break
            break
    assert received.startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /heal",
        json_call("PUT", JOB, REGISTRATION[:20], f"Content-Length: {len(REGISTRATION)}"),
        json_call("PUT", JOB, "fffffffffff\r\n{}", CHUNKED),
        json_call("PUT", JOB, "2;" + "a" * 100_000 + "\r\n{}", CHUNKED),
    ],
)
def test_a_call_that_breaks_off_is_dropped_and_changes_nothing(
    planner: Planner, sent: bytes
) -> None:
    before = planner.serving.http.get(JOB).json()
    assert planner.answered(sent, ends=True) == []
    assert planner.serving.http.get(JOB).json() == before


@pytest.mark.parametrize(
    "sent",
    [
        json_call("PUT", JOB, "{}", "Content-Length: -5"),
        json_call("PUT", JOB, "{}", "Content-Length: 1" + "0" * 30),
        json_call("PUT", JOB, "{}", "Content-Length: 2", "Content-Length: 3"),
        json_call("PUT", JOB, "zz\r\n{}\r\n0\r\n\r\n", CHUNKED),
        json_call("PUT", JOB, "{}", "Transfer-Encoding: gzip, chunked"),
        call("GET", "/healthz", None, *(f"X-{i}: {'a' * 1000}" for i in range(200))),
        call("GET", "/healthz", None, "X: " + "a" * 200_000),
        call("GET", "/healthz", None, "X: a\0b"),
        call("GET", "/healthz", None, "Host: other"),
        call("G\x01T", "/healthz"),
        b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n",
        bytes.fromhex("16030100c8010000c40303") + bytes(200),
        bytes(range(256)) * 10,
    ],
)
def test_what_is_not_http_is_a_400_before_any_of_our_code(planner: Planner, sent: bytes) -> None:
    answer = planner.one(sent)
    assert (answer.status, answer.body) == (400, SAID_BY_UVICORN)


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ("[" * 100_000, 400, "The body cannot be read as JSON"),
        ('{"num_stages": ' + "[" * 100_000 + "]" * 100_000 + "}", 400, "The body cannot be read"),
        ('{"num_stages": ' + '{"a":' * 900 + "1" + "}" * 901, 422, "num_stages: "),
        ('{"num_stages": ' + "9" * 100_000 + "}", 400, "The body cannot be read as JSON"),
        ('{"num_stages": NaN, "num_microbatches": 2}', 422, "num_stages: "),
        (REGISTRATION.replace("70.0", "1e999"), 422, "blocking_power_w.0: must be a number of W"),
        (REGISTRATION.replace("70.0", "9" * 100_000 + ".0"), 422, "blocking_power_w.0: must be"),
        (REGISTRATION.replace("70.0", "NaN"), 422, "blocking_power_w.0: must be a number of W"),
        (REGISTRATION.replace('"1f1b"', '"\\ud800"'), 422, "schedule: "),
        (REGISTRATION.replace('"schedule"', '"\\ud800"'), 422, "body: "),
        (REGISTRATION.replace('"schedule"', '"\\u0000\\n"'), 422, ""),
        (REGISTRATION[:-1] + ', "num_stages": 2}', 422, "body: has a field twice in one object"),
        (REGISTRATION.replace("[70.0]", '{"a": 1, "a": 1}'), 422, "body: has a field twice in one"),
        (b"\xff" + REGISTRATION.encode(), 400, "The body cannot be read as JSON"),
    ],
)
def test_json_that_cannot_be_used_is_a_problem(
    planner: Planner, body: str | bytes, status: int, says: str
) -> None:
    answer = planner.one(json_call("PUT", "/api/v1/jobs/other", body))
    assert answer.problem["detail"].startswith(says)
    assert answer.status == status


@pytest.mark.parametrize(
    ("method", "path", "body", "place"),
    [
        ("PUT", JOB, "{" + ",".join(f'"{i}": 1' for i in range(90_000)) + "}", "body"),
        ("PUT", JOB, REGISTRATION.replace("70.0", "true," * 200_000 + "1"), "blocking_power_w.0"),
        ("PUT", PROFILE, '{"rows": [' + "0," * 500_000 + "0]}", "rows.0"),
        ("POST", STEPS, '{"steps": [{' + ",".join(f'"{i}":1' for i in range(90_000)) + "}]}",
         "steps.0"),
    ],
)  # fmt: skip
def test_a_body_full_of_faults_is_one_fault(
    planner: Planner, method: str, path: str, body: str, place: str
) -> None:
    answer = planner.one(json_call(method, path, body))
    assert answer.status == 422
    assert [error["loc"] for error in answer.problem["errors"]] == [place]


@pytest.mark.parametrize(
    ("path", "headers", "says"),
    [
        (JOB, ("Content-Type: application/json, text/csv",), "application/json"),
        (JOB, ("Content-Type: text/csv",), "application/json"),
        (JOB, ("Content-Type: application/json", "Content-Encoding: gzip"), "content encoding"),
        (PROFILE, ("Content-Type: text/csv", "Content-Encoding: br"), "content encoding"),
        (PROFILE, ("Content-Type: application/xml",), "text/csv or application/json"),
    ],
)
def test_a_body_of_another_kind_or_compressed_is_a_415(
    planner: Planner, path: str, headers: tuple[str, ...], says: str
) -> None:
    answer = planner.one(call("PUT", path, b"{}", *headers))
    assert answer.status == 415
    assert says in answer.problem["detail"]


@pytest.mark.parametrize("method", ["CONNECT", "OPTIONS", "PROPFIND", "get", "A" * 1000])
def test_an_unusual_method_is_a_405_that_names_the_usual_ones(
    planner: Planner, method: str
) -> None:
    answer = planner.one(call(method, PROFILE))
    assert answer.status == 405
    assert answer.headers["allow"] == "GET, PUT"
    assert answer.problem


@pytest.mark.parametrize(
    ("path", "status"),
    [
        *((path, 404) for path in (
            "*", "http://other/healthz", "//healthz", "/healthz/", "/./healthz", "/api/../healthz",
            "/healthz#x", "/" + "a" * 10_000, "/%00", "/%", "/%zz", f"{JOB}/../../../etc/passwd",
            "/api/v1/jobs/a%2Fb", "/api/v1/jobs/a%2F..",
        )),
        *((path, 422) for path in (
            "/api/v1/jobs/%2e%2e", "/api/v1/jobs/..", "/api/v1/jobs/.", "/api/v1/jobs/%c0%af",
            "/api/v1/jobs/%ff", "/api/v1/jobs/job%0d%0aX:1", "/api/v1/jobs/job;a=b",
            f"{JOB}/ranks/1_0/plan", f"{JOB}/ranks/+0/plan", f"{JOB}/ranks/%200/plan",
            f"{JOB}/ranks/0.0/plan", f"{JOB}/ranks/%D9%A0/plan", f"{JOB}/ranks/{'9' * 5000}/plan",
            f"{JOB}/plans/1e0", f"{JOB}/ranks/0/plan?wait_s=0&wait_s=x",
            f"{JOB}/ranks/0/plan?after_version=%00",
        )),
        (f"{JOB}/ranks/%30/plan", 204),
        ("/he%61lthz?" + "a" * 10_000, 200),
    ],
)  # fmt: skip
def test_an_odd_address_is_what_it_says_and_nothing_else(
    planner: Planner, path: str, status: int
) -> None:
    answer = planner.one(call("GET", path))
    assert answer.status == status
    if status >= 400:
        assert answer.problem


def test_older_http_and_calls_in_a_row_are_served(planner: Planner) -> None:
    assert planner.one(b"GET /healthz HTTP/1.0\r\n\r\n").status == 200
    kept = call("GET", "/healthz").replace(b"Connection: close\r\n", b"")
    assert [answer.status for answer in planner.answered(kept * 20 + call("GET", JOB))] == (
        [200] * 21
    )


def test_what_follows_a_body_that_was_too_long_is_never_taken_for_a_call(
    planner: Planner,
) -> None:
    smuggled = b" " * MAX_BODY_BYTES + b"PUT /api/v1/jobs/smuggled HTTP/1.1\r\n\r\n"
    assert planner.one(json_call("PUT", JOB, smuggled)).status == 413
    assert planner.serving.http.get("/api/v1/jobs/smuggled").status_code == 404


@pytest.mark.parametrize("path", ["/healthz", JOB, "/api/v1/nothing"])
def test_a_call_with_two_declared_ends_is_refused_and_its_connection_closed(
    planner: Planner, path: str
) -> None:
    """By its length it ends behind `0`, by its encoding before: the rest would be a call."""
    smuggled = "PUT /api/v1/jobs/smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"
    both = ("Transfer-Encoding: chunked", f"Content-Length: {len(smuggled) + 5}")
    sent = json_call("PUT", path, f"0\r\n\r\n{smuggled}", *both)
    kept = sent.replace(b"Connection: close\r\n", b"")
    assert kept != sent
    (answer,) = planner.answered(kept)
    assert answer.status == 400
    assert "either Content-Length or Transfer-Encoding" in answer.problem["detail"]
    assert answer.headers["connection"] == "close"
