"""Errors over HTTP: the status, one line, the field named, nothing echoed."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import httpx
import pytest
from tests.planner.live import LivePlanner, live_planner
from tests.planner.samples import HEADER, profile_csv
from tests.planner.stores import HaltingStore

from flyball_wire import routes

JOB = routes.fill(routes.JOB, job_id="job")
OTHER = routes.fill(routes.JOB, job_id="other")
PROFILE = routes.fill(routes.PROFILE, job_id="job")
AS_JSON = {"Content-Type": "application/json"}
VERSION_9 = {"version": 9, "current_step": 0}
JSON_ROW = (
    '{"rows": [{"stage": 0, "instruction": "forward", "frequency": 1410, "time": NaN,'
    ' "energy": 3}]}'
)


@pytest.fixture(scope="module")
def planner() -> Iterator[LivePlanner]:
    """One planner with a planned job, which the refused calls of this file leave as it is."""
    with live_planner() as live:
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


TIMES = (
    '{"up_p5_s": %s, "up_p50_s": 1, "up_p95_s": 1, "down_p5_s": 0, "down_p50_s": 0,'
    ' "down_p95_s": 0}'
)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("num_stages", "0", "num_stages: must be a whole number from 1 to 4096"),
        ("num_microbatches", "0", "num_microbatches: must be a whole number from 1 to 65536"),
        ("schedule", '"auto"', "schedule: auto is for `flyball plan` and `flyball frontier` only: a"
         " job's order holds from its first step; name the order that its ranks run"),
        ("schedule", '"envpipe"', "extra_forwards: must be given with schedule envpipe, as its"),
        ("extra_forwards", '[0, -1], "schedule": "envpipe"',
         "extra_forwards.1: must be whole numbers, at least 0, one per stage"),
        ("other_orders", '[{"schedule": "1f1b"}]', "other_orders.0.line: Field required"),
        ("policy", '"thrifty"', "policy: must be one of baseline, uniform, envelope, global"),
        ("blocking_power_w", "[NaN]", "blocking_power_w.0: must be a number of W from 0 to 100000"),
        ("blocking_power_w", "null", "blocking_power_w: give it in W, or name a gpu"),
        ("gpu", '"./a100.toml"', "gpu: unknown GPU; known: "),
        ("blocking_power_w", 'null, "gpu": "v100"',
         "blocking_power_w: the table of v100 has none; measure it with flyball profile"
         " blocking-power and give it in W, or have it measured in training with profiling"),
        ("activation_bytes", "[1, 1]", "free_memory_bytes: must be given: activation_"),
        ("reserve", '0.1, "policy": "uniform"', "reserve: is for policy frontier, not uniform"),
        ("transfer_ms", "[1, 1]", "transfer_ms: has 2 values for 2 stages; give one, or one for"),
        ("transitions", '{"secret": 1}', "transitions: there is an unknown field; known: up_p5_s"),
        ("transitions", TIMES % "true", "transitions.up_p5_s: Input should be a valid number"),
        ("transitions", TIMES % 2, "transitions: up_p50_s must be from up_p5_s to 10 s"),
        ("colour", '"red"', "body: there is an unknown field; known: "),
    ],
)  # fmt: skip
def test_a_registration_that_cannot_be_used_names_the_field(
    planner: LivePlanner, name: str, value: str, says: str
) -> None:
    fields = {"num_stages": "2", "num_microbatches": "2", "blocking_power_w": "[70]", name: value}
    body = ", ".join(f'"{field}": {written}' for field, written in fields.items())
    answer = planner.http.put(OTHER, content=f"{{{body}}}", headers=AS_JSON)
    assert problem(answer, 422).startswith(says)
    assert answer.json()["errors"][0]["loc"].startswith(says.split(":", maxsplit=1)[0])
    assert planner.http.get(OTHER).status_code == 404


def test_several_wrong_fields_are_all_named_and_no_value_is_echoed(planner: LivePlanner) -> None:
    body = {"emulated": "my secret", "target": {"password": "my secret"}}
    answer = planner.http.put(OTHER, json=body)
    assert problem(answer, 422).endswith("(and 3 more)")
    places = {error["loc"] for error in answer.json()["errors"]}
    assert places == {"num_stages", "num_microbatches", "emulated", "target"}
    assert "secret" not in answer.text


def test_no_value_of_a_refused_csv_is_echoed() -> None:
    rows = profile_csv().splitlines()
    with live_planner() as planner:  # of its own: some of what is sent is no fault
        planner.put_planned_job()
        for sentinel in ("91827364", "-91827364", "9182.7e364", "'91827364'", "x91827", '"91827"'):
            cells = rows[1].split(",")
            for place in range(len(cells)):
                line = ",".join([*cells[:place], sentinel, *cells[place + 1 :]])
                text = "\n".join([rows[0], line, *rows[2:]])
                answer = planner.put_profile(text)
                assert answer.status_code < 500
                assert answer.status_code == 200 or "91827" not in answer.text, (text, answer.text)
            answer = planner.put_profile("\n".join([f"{rows[0]},{sentinel}", *rows[1:]]))
            assert "91827" not in answer.text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (profile_csv(3), "profile: has 3 stages, but the job has 2"),
        ('{"rows": [{"stage": 0}]}', "rows.0.instruction: Field required"),
        (JSON_ROW, "profile:1: row 1: time"),
        ('{"rows": [], "more": 1}', "body: there is an unknown field; known: rows"),
        ("[", "body: Invalid JSON"),
    ],
)
def test_a_profile_that_cannot_be_used_names_the_place(
    planner: LivePlanner, text: str, says: str
) -> None:
    kind = "text/csv" if text.startswith(HEADER) else "application/json"
    answer = planner.http.put(PROFILE, content=text, headers={"Content-Type": kind})
    assert problem(answer, 422).startswith(says)
    assert answer.json()["errors"][0]["loc"] == answer.json()["detail"].split(": ")[0]


@pytest.mark.parametrize(
    ("call", "body", "says"),
    [
        *((f"GET none{path}", None, "Job none") for path in (
            "", "/plans", "/plans/1", "/plans/1/first-step", "/steps", "/steps/stages",
            "/ranks/0/plan", "/history", "/stragglers", "/timetable", "/events", "/timeline",
            "/report", "/comparison",
        )),
        ("DELETE none/timetable", None, "Job none"),
        ("PUT none/comparison", {"num_pairs": 4}, "Job none"),
        ("DELETE none/comparison", None, "Job none"),
        ("PUT none/target", {"policy": "uniform"}, "Job none"),
        ("GET job/plans/9", None, "Job job has no plan version 9"),
        ("GET job/plans/9/first-step", None, "Job job has no plan version 9"),
        ("GET job/ranks/9/plan", None, "Rank 9 of job job is not known here"),
        ("POST job/ranks/9/acknowledgement", VERSION_9, "Rank 9 of job job"),
        ("POST job/ranks/0/acknowledgement", VERSION_9, "Job job has no plan version 9"),
        ("POST job/ranks/9/measurements", {"steps": []}, "Rank 9 of job job"),
        ("POST job/stragglers", {"rank": 9, "slowdown": 2}, "Rank 9 of job job"),
        ("DELETE job/stragglers/9", None, "Rank 9 of job job"),
        ("GET ../nothing", None, "There is nothing at this address"),
        ("GET ", None, "There is nothing at this address"),
    ],
)  # fmt: skip
def test_what_does_not_exist_is_a_404(
    planner: LivePlanner, call: str, body: dict[str, object] | None, says: str
) -> None:
    method, _, path = call.partition(" ")
    answer = planner.http.request(method, f"{routes.JOBS}/{path}", json=body)
    assert problem(answer, 404).startswith(says)


def test_an_address_typed_into_a_browser_is_answered_with_a_way_to_the_page(
    planner: LivePlanner,
) -> None:
    answer = planner.http.get("/jobs/llm", headers={"Accept": "text/html,*/*;q=0.8"})
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert '<a href="/">All jobs</a>' in answer.text
    assert "llm" not in answer.text


def test_without_a_token_a_browser_is_led_to_the_page_which_asks_for_it() -> None:
    with live_planner(token="secret") as planner:  # noqa: S106 - a test's
        answer = planner.http.get("/jobs/llm", headers={"Accept": "text/html,*/*;q=0.8"})
        assert (answer.status_code, answer.headers["content-type"][:9]) == (401, "text/html")
        assert '<a href="/">All jobs</a>' in answer.text
        assert problem(planner.http.get("/jobs/llm"), 401)


def test_a_parameter_out_of_bounds_is_named(planner: LivePlanner) -> None:
    for path, name in (
        (f"plans/{10**30}", "version"),
        ("ranks/-1/plan", "rank"),
        ("ranks/0/plan?after_version=-1", "after_version"),
        ("ranks/0/plan?wait_s=nan", "wait_s"),
        ("steps?limit=0", "limit"),
        (f"steps/stages?after_step={2**53}", "after_step"),
        ("frontier?points=1", "points"),
        ("timeline?version=x", "version"),
    ):
        assert problem(planner.http.get(f"{JOB}/{path}"), 422).startswith(f"{name}: ")


def test_a_store_that_cannot_answer_is_a_503_and_the_log_says_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR, "flyball_server.http.problem_handlers")
    store = HaltingStore()
    with live_planner(store=store, reconcilers=()) as planner:
        store.fails = True
        answer = planner.http.get(routes.JOBS)
        assert "see the planner's log" in problem(answer, 503)
        assert "here" not in answer.text
    assert "a test's" in caplog.text
