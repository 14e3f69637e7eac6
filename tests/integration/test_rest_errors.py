"""Every error over HTTP: the right status, one line, the field named, nothing echoed."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import httpx
import pytest
from tests.planner.live import LivePlanner, live_planner
from tests.planner.samples import HEADER, profile_csv, registration
from tests.planner.stores import TemporaryJobStore

from flyball_server.jobs.errors import StoreBusyError
from flyball_server.jobs.store.contract import JobReader
from flyball_server.planning.plan import FrequencyPlan
from flyball_server.planning.planner import PlanRequest
from flyball_wire import routes

JOB = routes.fill(routes.JOB, job_id="job")
PROFILE = routes.fill(routes.PROFILE, job_id="job")
AS_JSON = {"Content-Type": "application/json"}
MAX_BODY_BYTES = 2**20


@pytest.fixture(scope="module")
def planner() -> Iterator[LivePlanner]:
    """One planner with a planned job, which the refused calls of this file leave as it is."""
    with live_planner(max_body_bytes=MAX_BODY_BYTES) as live:
        live.put_planned_job()
        yield live


def problem(answer: httpx.Response, status: int) -> str:
    """The one line of a Problem with this status."""
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert set(body) == {"detail", "errors"}
    assert body["detail"]
    assert "\n" not in body["detail"]
    for error in body["errors"]:
        assert set(error) == {"loc", "type", "msg"}
    detail: str = body["detail"]
    return detail


def with_value(name: str, value: str) -> str:
    """A registration in JSON text with one value as it is written."""
    body = ", ".join(
        f'"{field}": {written}'
        for field, written in {
            "num_stages": "2",
            "num_microbatches": "2",
            "blocking_power_w": "[70]",
            name: value,
        }.items()
    )
    return f"{{{body}}}"


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("num_stages", "0", "num_stages: must be 1 to 4096, not 0"),
        ("num_stages", '"many"', "num_stages: Input should be a valid integer"),
        ("num_stages", "null", "num_stages: Input should be a valid integer"),
        ("num_microbatches", "0", "num_microbatches: must be 1 to 65536, not 0"),
        ("num_microbatches", "-3", "num_microbatches: must be 1 to 65536, not -3"),
        ("num_ranks", "1", "num_ranks: must be 2 to 1048576, not 1"),
        ("schedule", '"solitaire"', "schedule: unknown 'solitaire'; known: gpipe, 1f1b, envpipe"),
        ("policy", '"thrifty"', "policy: Input should be 'baseline', 'uniform', 'envelope' or"),
        ("reconfigure", '"wild"', "reconfigure: Input should be 'default', 'greedy' or 'bal"),
        ("effort", '"High"', "effort: Input should be 'low', 'normal' or 'high'"),
        ("effort", "null", "effort: Input should be 'low', 'normal' or 'high'"),
        ("profiling", '"offline"', "profiling: Input should be 'given' or 'online'"),
        ("checkpoint", '"often"', "checkpoint: Input should be 'except_last', 'always' or"),
        ("blocking_power_w", "[NaN]", "blocking_power_w: must be a finite number"),
        ("blocking_power_w", "[1, 2, 3]", "blocking_power_w: must have 1 or 2 values, not 3"),
        ("blocking_power_w", "null", "blocking_power_w: give it in W, or name a gpu"),
        ("gpu", '"abacus"', "gpu: unknown GPU 'abacus'; known: "),
        ("activation_bytes", "[1, 1]", "free_memory_bytes: give activation_bytes and"),
        ("colour", '"red"', "colour: Unexpected keyword argument"),
    ],
)
def test_a_registration_that_cannot_be_used_names_the_field(
    planner: LivePlanner, name: str, value: str, says: str
) -> None:
    answer = planner.http.put(
        "/api/v1/jobs/other", content=with_value(name, value), headers=AS_JSON
    )
    assert problem(answer, 422).startswith(says)
    assert answer.json()["errors"][0]["loc"].startswith(says.split(":", maxsplit=1)[0])
    assert planner.http.get("/api/v1/jobs/other").status_code == 404


@pytest.mark.parametrize("field", ["policy", "reconfigure", "effort"])
@pytest.mark.parametrize("name", ["heroic", ""])
def test_a_change_to_an_unknown_name_names_the_field_and_changes_nothing(
    planner: LivePlanner, field: str, name: str
) -> None:
    before = planner.http.get(JOB).json()
    answer = planner.http.put(f"{JOB}/target", json={field: name, "target": "least-energy"})
    assert problem(answer, 422).startswith(f"{field}: Input should be '")
    assert [error["loc"] for error in answer.json()["errors"]] == [field]
    assert planner.http.get(JOB).json() == before


def test_several_wrong_fields_are_all_named(planner: LivePlanner) -> None:
    answer = planner.http.put("/api/v1/jobs/other", json={"emulated": "perhaps"})
    assert problem(answer, 422).endswith("(and 2 more)")
    places = {error["loc"] for error in answer.json()["errors"]}
    assert places == {"num_stages", "num_microbatches", "emulated"}


def test_what_was_sent_is_never_echoed(planner: LivePlanner) -> None:
    body = registration(num_stages="my secret", target={"password": "my secret"})
    answer = planner.http.put("/api/v1/jobs/other", json=body)
    problem(answer, 422)
    assert "secret" not in answer.text


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"{bad", 422, "body: "),
        (b"", 422, "body: "),
        (b'{"\\ud800": 1}', 422, ""),
        (b"\xff\xfe\xff", 400, "The body cannot be read as JSON"),
        (b'{"num_stages": ' + b"9" * 5000 + b"}", 400, "The body cannot be read as JSON"),
    ],
)
def test_a_body_that_is_no_json_object_is_a_problem(
    planner: LivePlanner, body: bytes, status: int, says: str
) -> None:
    answer = planner.http.put("/api/v1/jobs/other", content=body, headers=AS_JSON)
    assert problem(answer, status).startswith(says)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "profile: the profile is empty"),
        (HEADER + "0,forward,fast,0.1,30\n", "profile:2: frequency"),
        (HEADER + "0,forward,1410,nan,30\n", "profile:2: time"),
        (profile_csv() + "1,forward,1410,0.1,30\n", "profile:10: "),
        (profile_csv(3), "profile: has 3 stages, but the job has 2"),
    ],
)
def test_a_csv_profile_that_cannot_be_used_names_the_line(
    planner: LivePlanner, text: str, says: str
) -> None:
    answer = planner.put_profile(text)
    assert problem(answer, 422).startswith(says)
    assert answer.json()["errors"][0]["loc"] == answer.json()["detail"].split(": ")[0]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ('{"rows": []}', "profile"),
        ('{"rows": [{"stage": 0}]}', "rows.0.instruction: Field required"),
        ('{"rows": [{"stage": 0, "instruction": "forward", "frequency": 1410, "time": NaN,'
         ' "energy": 3}]}', "profile:1: row 1: time"),
        ('{"rows": [{"stage": 0, "instruction": "forward", "frequency": Infinity, "time": 1,'
         ' "energy": 3}]}', "rows.0.frequency: "),
        ("[", "body: Invalid JSON"),

        ('{"rows": [], "more": 1}', "more: "),
        ("", "body: Invalid JSON"),

    ],
)  # fmt: skip
def test_a_json_profile_that_cannot_be_used_names_the_place(
    planner: LivePlanner, body: str, says: str
) -> None:
    answer = planner.http.put(PROFILE, content=body, headers=AS_JSON)
    assert problem(answer, 422).startswith(says)


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_another_content_type_is_refused(planner: LivePlanner, content_type: str) -> None:
    headers = {"Content-Type": content_type}
    answer = planner.http.put(JOB, content="{}", headers=headers)
    assert problem(answer, 415) == "Send the body with content type application/json"
    answer = planner.http.put(PROFILE, content="{}", headers=headers)
    assert "text/csv or application/json" in problem(answer, 415)


def test_a_body_above_the_limit_is_refused_whether_it_says_so_or_not(
    planner: LivePlanner,
) -> None:
    too_much = b" " * (MAX_BODY_BYTES + 1)
    assert "1048576 bytes" in problem(planner.http.put(JOB, content=too_much), 413)
    chunks = (too_much[start : start + 2**16] for start in range(0, len(too_much), 2**16))
    problem(planner.http.put(JOB, content=chunks), 413)


@pytest.mark.parametrize("job_id", ["a b", "a" * 129, "%0A", "%C3%A4"])
def test_a_job_name_out_of_the_rule_is_refused_everywhere(
    planner: LivePlanner, job_id: str
) -> None:
    for path in (f"/api/v1/jobs/{job_id}", f"/api/v1/jobs/{job_id}/plans"):
        assert problem(planner.http.get(path), 422).startswith("job_id: ")
    answer = planner.http.put(f"/api/v1/jobs/{job_id}", json=registration())
    assert problem(answer, 422).startswith("job_id: ")


@pytest.mark.parametrize(
    ("method", "path", "body", "says"),
    [
        ("GET", "/api/v1/jobs/none", None, "Job none is not known here; register it first"),
        ("GET", "/api/v1/jobs/none/plans", None, "Job none"),
        ("GET", "/api/v1/jobs/none/plans/1", None, "Job none"),
        ("GET", "/api/v1/jobs/none/plans/1/first-step", None, "Job none"),
        ("GET", "/api/v1/jobs/none/steps", None, "Job none"),
        ("GET", "/api/v1/jobs/none/ranks/0/plan", None, "Job none"),
        ("PUT", "/api/v1/jobs/none/target", {"policy": "uniform"}, "Job none"),
        ("GET", "/api/v1/jobs/job/plans/9", None, "Job job has no plan version 9"),
        ("GET", "/api/v1/jobs/job/plans/9/first-step", None, "Job job has no plan version 9"),
        ("GET", "/api/v1/jobs/job/ranks/9/plan", None, "Rank 9 of job job is not known here"),
        (
            "POST",
            "/api/v1/jobs/job/ranks/9/acknowledgement",
            {"version": 1, "current_step": 0},
            "Rank 9 of job job",
        ),
        (
            "POST",
            "/api/v1/jobs/job/ranks/0/acknowledgement",
            {"version": 9, "current_step": 0},
            "Job job has no plan version 9",
        ),
        ("POST", "/api/v1/jobs/job/ranks/9/measurements", {"steps": []}, "Rank 9 of job job"),
        ("GET", "/api/v1/nothing", None, "There is nothing at this address"),
        ("GET", "/api/v1/jobs/", None, "There is nothing at this address"),
    ],
)
def test_what_is_not_there_is_a_404(
    planner: LivePlanner, method: str, path: str, body: dict[str, object] | None, says: str
) -> None:
    assert problem(planner.http.request(method, path, json=body), 404).startswith(says)


def test_another_method_is_a_405(planner: LivePlanner) -> None:
    answer = planner.http.patch(JOB)
    assert "does not take this method" in problem(answer, 405)
    assert answer.headers["Allow"] == "DELETE, GET, PUT"


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/api/v1/jobs/job/plans/0", "version: "),
        ("/api/v1/jobs/job/plans/newest", "version: "),
        (f"/api/v1/jobs/job/plans/{10**30}", "version: "),
        ("/api/v1/jobs/job/ranks/-1/plan", "rank: "),
        (f"/api/v1/jobs/job/ranks/{10**30}/plan", "rank: "),
        ("/api/v1/jobs/job/ranks/0/plan?after_version=-1", "after_version: "),
        (f"/api/v1/jobs/job/ranks/0/plan?after_version={10**30}", "after_version: "),
        ("/api/v1/jobs/job/ranks/0/plan?wait_s=-1", "wait_s: "),
        ("/api/v1/jobs/job/ranks/0/plan?wait_s=nan", "wait_s: "),
        ("/api/v1/jobs/job/plans/1/first-step?wait_s=-1", "wait_s: "),
        ("/api/v1/jobs/job/steps?limit=0", "limit: "),
        ("/api/v1/jobs/job/steps?limit=10001", "limit: "),
    ],
)
def test_a_parameter_out_of_bounds_is_named(planner: LivePlanner, path: str, says: str) -> None:
    assert problem(planner.http.get(path), 422).startswith(says)


def test_a_fault_of_the_planner_itself_is_a_500_that_tells_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(request: PlanRequest) -> FrequencyPlan:
        raise ZeroDivisionError("the secret of the fault")

    with live_planner(planner=broken) as planner:
        planner.put_job()
        answer = planner.put_profile()
        assert "see its log" in problem(answer, 500)
        assert "secret" not in answer.text
        assert answer.headers["Connection"] == "close"
        assert planner.http.get(routes.HEALTH).status_code == 200
    assert "the secret of the fault" in caplog.text


def test_a_store_that_cannot_answer_is_a_503_and_the_log_says_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class BusyStore(TemporaryJobStore):
        @contextmanager
        def reading(self) -> Generator[JobReader]:
            raise StoreBusyError(location="/srv/flyball.sqlite")
            yield

    with live_planner(store=BusyStore()) as planner:
        answer = planner.http.get(routes.JOBS)
        assert "see the planner's log" in problem(answer, 503)
        assert "/srv" not in answer.text
    assert ("flyball_server.http.problem_handlers", logging.ERROR) in [
        record[:2] for record in caplog.record_tuples
    ]
    assert "/srv/flyball.sqlite is busy" in caplog.text
