"""The API's description: complete, and changed only on purpose."""

from __future__ import annotations

from typing import Any

import pytest
from docs.scripts.openapi_document import openapi_document
from docs.scripts.write_api_lines import LINES, api_lines
from tests.planner.live import live_planner

from flyball_server.http.openapi.documentation import EXAMPLES
from flyball_server.http.routes.profiles import PROFILE_CSV
from flyball_wire import messages, routes
from flyball_wire.closed_loop import Timetable

Operation = tuple[str, str, dict[str, Any]]
OPEN = {routes.HEALTH, routes.READY}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return openapi_document()


@pytest.fixture(scope="module")
def operations(document: dict[str, Any]) -> tuple[Operation, ...]:
    return tuple(
        (path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    )


def test_the_description_is_the_one_that_was_agreed() -> None:
    again = "where the API was changed on purpose: python -m docs.scripts.write_api_lines"
    assert api_lines() == LINES.read_text(encoding="utf-8"), again


@pytest.mark.parametrize(
    "line",
    [
        "GET /api/v1/jobs/{job_id}/steps query limit = integer default=100 maximum=10000 minimum=1",
        "GET /api/v1/jobs/{job_id}/steps 200 application/json = array of JobStep",
        "PUT /api/v1/jobs/{job_id}/profile body text/csv = string",
        "ComparisonRequest.num_pairs = integer required",
        "JobRegistration.order = array of (array of (array of (string | integer))) | null",
        'BaselineOrigin = string enum=["none", "interleaved", "apart", "itself"]',
    ],
)
def test_its_text_has_a_line_for_each_parameter_body_answer_and_field(line: str) -> None:
    assert line in api_lines().splitlines()


def test_every_route_of_the_wire_is_served_and_no_other(document: dict[str, Any]) -> None:
    templates = {
        value
        for name, value in vars(routes).items()
        if name.isupper() and isinstance(value, str) and value.startswith("/")
    }
    assert set(document["paths"]) == templates


def test_every_operation_parameter_and_error_is_described(
    document: dict[str, Any], operations: tuple[Operation, ...]
) -> None:
    assert len(operations) == 43
    scheme = document["components"]["securitySchemes"]["token"]
    assert (scheme["in"], scheme["name"]) == ("header", messages.TOKEN_HEADER)
    for path, method, operation in operations:
        for field in ("summary", "description", "tags"):
            assert operation[field], (method, path)
        for parameter in operation.get("parameters", ()):
            assert parameter["description"], (method, path, parameter["name"])
        # All but the health routes ask for the token.
        assert operation.get("security", []) == ([] if path in OPEN else [{"token": []}])
        errors = {status for status in operation["responses"] if status >= "400"}
        if path not in OPEN:
            assert {"401", "422", "503"} <= errors, (method, path)
        if "requestBody" in operation:
            assert {"413", "415"} <= errors, (method, path)
        for status in errors:
            schema = operation["responses"][status]["content"]["application/json"]["schema"]
            assert schema == {"$ref": "#/components/schemas/Problem"}
    names = [operation["operationId"] for _, _, operation in operations]
    assert len(set(names)) == len(names)


def test_the_examples_work_one_after_the_other() -> None:
    with live_planner() as planner:
        job = routes.fill(routes.JOB, job_id="job")
        put = planner.http.put(job, json=EXAMPLES[messages.JobRegistration])
        assert put.status_code == 201
        assert planner.put_profile(PROFILE_CSV).json()["newest_version"] == 1
        timetable = routes.fill(routes.TIMETABLE, job_id="job")
        assert planner.http.put(timetable, json=EXAMPLES[Timetable]).status_code == 200
