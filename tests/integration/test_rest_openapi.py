"""The API's description: complete, and changed only on purpose.

A change of the API shows here as a difference from `openapi.json`. When it is meant, renew the
file and read the difference in the commit:

    FLYBALL_RENEW_OPENAPI=1 .venv/bin/pytest tests/integration/test_rest_openapi.py
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute
from pydantic import TypeAdapter
from tests.planner.live import live_planner
from tests.planner.stores import TemporaryJobStore

from flyball_server.app import api_routes, create_app
from flyball_server.http.openapi.examples import PROFILE_CSV, example
from flyball_server.settings import load_settings
from flyball_wire import messages, routes
from flyball_wire.plan_options import TargetChange

SNAPSHOT = Path(__file__).with_name("openapi.json")
RENEW = "FLYBALL_RENEW_OPENAPI"
Operation = tuple[str, str, dict[str, Any]]
OPEN = {routes.HEALTH, routes.READY}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    described: dict[str, Any] = create_app(load_settings(), TemporaryJobStore()).openapi()
    return described


@pytest.fixture(scope="module")
def operations(document: dict[str, Any]) -> tuple[Operation, ...]:
    return tuple(
        (path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    )


def test_the_description_is_the_one_that_was_agreed(document: dict[str, Any]) -> None:
    text = json.dumps(document, indent=1, sort_keys=True, ensure_ascii=True) + "\n"
    if os.environ.get(RENEW):
        SNAPSHOT.write_text(text, encoding="utf-8")
        pytest.fail(
            f"{SNAPSHOT.name} is renewed; read the difference and run again without {RENEW}"
        )
    assert json.loads(text) == json.loads(SNAPSHOT.read_text(encoding="utf-8"))


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
    assert len(operations) == 42
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


WIRE_TYPES = {
    repr(kind): kind
    for route in api_routes()
    if isinstance(route, APIRoute) and route.include_in_schema
    for field in (route.body_field, route.response_field)
    if field is not None
    for kind in [field.field_info.annotation]
}


@pytest.mark.parametrize("kind", WIRE_TYPES.values(), ids=WIRE_TYPES.keys())
def test_every_example_is_valid_by_its_own_type(kind: Any) -> None:  # noqa: ANN401 - a type
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    shown = json.loads(json.dumps(example(kind)))
    assert adapter.dump_python(adapter.validate_python(shown), mode="json") == shown


def test_the_examples_work_one_after_the_other() -> None:
    with live_planner() as planner:
        job = planner.put_job(**example(messages.JobRegistration))
        assert job.status_code == 201
        assert planner.put_profile(PROFILE_CSV).json()["newest_version"] == 1
        path = routes.fill(routes.PROFILE, job_id="job")
        again = planner.http.put(path, json=example(messages.JsonProfile))
        assert (again.status_code, again.json()["newest_version"]) == (200, 1)
        planner.put_ranks()
        rank = routes.fill(routes.RANK, job_id="job", rank=0)
        assert planner.http.put(rank, json=example(messages.RankRegistration)).status_code == 200
        for route, kind in (
            (routes.RANK_ACKNOWLEDGEMENT, messages.Acknowledgement),
            (routes.RANK_MEASUREMENTS, messages.MeasurementBatch),
        ):
            path = routes.fill(route, job_id="job", rank=0)
            assert planner.http.post(path, json=example(kind)).status_code == 200
        path = routes.fill(routes.TARGET, job_id="job")
        change = planner.http.put(path, json=example(TargetChange))
        assert change.json()["newest_version"] == 2
