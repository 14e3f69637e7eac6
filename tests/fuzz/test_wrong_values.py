"""Each value of each body in turn of a wrong type: every route refuses it and names the place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.planner.live import LivePlanner, live_planner
from tests.planner.stores import TemporaryJobStore

from flyball_server.app import create_app
from flyball_server.settings import load_settings
from flyball_wire.messages import TOKEN_HEADER

TOKEN = "a-token-of-this-test"  # noqa: S105 - opens nothing but its planner
PARTS = {"{job_id}": "job", "{rank}": "0", "{version}": "1"}
Schema = dict[str, Any]
Place = tuple[str | int, ...]
# JSON's types one beside the other: `true` is no 1, "1" neither, and 1 is not true.
WRONG: dict[str, tuple[object, ...]] = {
    "integer": (True, "1", 1.5, [1], {}),
    "number": (False, "1.5", [1.5], {}),
    "boolean": (1, 0, "true", []),
    "string": (1, True, [], {}),
}
RIGHT: dict[str, object] = {"integer": 1, "number": 1.5, "boolean": True, "string": "a"}


class Bodies:
    """The bodies that an API's description speaks of."""

    def __init__(self, document: Schema) -> None:
        self._document = document

    def calls(self) -> Iterator[tuple[str, str, Schema]]:
        """Method, path and schema of each call with a JSON body."""
        for template, methods in self._document["paths"].items():
            path = template
            for part, value in PARTS.items():
                path = path.replace(part, value)
            for method, operation in methods.items():
                content = operation.get("requestBody", {}).get("content", {})
                if "application/json" in content:
                    yield method.upper(), path, content["application/json"]["schema"]

    def right(self, schema: Schema) -> object:
        """A value of the right types, the fields that must be given and no others."""
        schema = self._resolved(schema)
        if "anyOf" in schema:
            return self.right(schema["anyOf"][0])
        if schema["type"] == "array":
            return [self.right(item) for item in schema.get("prefixItems", ())]
        if schema["type"] == "object":
            return {
                name: self.right(schema["properties"][name]) for name in schema.get("required", ())
            }
        return RIGHT[schema["type"]]

    def places(self, schema: Schema) -> Iterator[tuple[Place, str]]:
        """Each place where a single value stands, with the type that it has there."""
        schema = self._resolved(schema)
        options = [option for option in schema.get("anyOf", ()) if option.get("type") != "null"]
        if len(options) == 1:
            yield from self.places(options[0])
        elif "prefixItems" in schema:
            for index, item in enumerate(schema["prefixItems"]):
                yield from (((index, *place), kind) for place, kind in self.places(item))
        elif schema.get("type") == "array":
            yield from (((0, *place), kind) for place, kind in self.places(schema["items"]))
        elif schema.get("type") == "object":
            for name, item in schema["properties"].items():
                yield from (((name, *place), kind) for place, kind in self.places(item))
        elif not options:
            yield (), schema["type"]

    def with_value(self, schema: Schema, place: Place, value: object) -> object:
        """A value of the right types but for this one."""
        if not place:
            return value
        schema = self._resolved(schema)
        if "anyOf" in schema:
            option = next(option for option in schema["anyOf"] if option.get("type") != "null")
            return self.with_value(option, place, value)
        key, rest = place[0], place[1:]
        if isinstance(key, int):
            items = schema.get("prefixItems") or [schema["items"]]
            changed = self.with_value(items[key], rest, value)
            return [*map(self.right, items[:key]), changed, *map(self.right, items[key + 1 :])]
        whole = self.right(schema)
        assert isinstance(whole, dict)
        return {**whole, key: self.with_value(schema["properties"][key], rest, value)}

    def _resolved(self, schema: Schema) -> Schema:
        name = schema.get("$ref", "").rpartition("/")[2]
        resolved: Schema = self._document["components"]["schemas"][name] if name else schema
        return resolved


def _bodies() -> Bodies:
    return Bodies(create_app(load_settings(), TemporaryJobStore()).openapi())


BODIES = _bodies()
CALLS = tuple(BODIES.calls())
by_call = pytest.mark.parametrize(
    ("method", "path", "schema"), CALLS, ids=[f"{method} {path}" for method, path, _ in CALLS]
)


@pytest.fixture(scope="module")
def planner() -> Iterator[LivePlanner]:
    """One planner with a planned job; it has a token, as some of the calls make others."""
    with live_planner(token=TOKEN, max_wait_s=0.0) as live:
        live.http.headers[TOKEN_HEADER] = TOKEN
        live.put_planned_job()
        yield live


def sent(planner: LivePlanner, method: str, path: str, body: str) -> httpx.Response:
    """The answer to a body as it is written."""
    headers = {"Content-Type": "application/json"}
    return planner.http.request(method, path, content=body, headers=headers)


@by_call
def test_a_value_of_a_wrong_type_is_refused_by_its_place(
    planner: LivePlanner, method: str, path: str, schema: Schema
) -> None:
    for place, kind in BODIES.places(schema):
        for wrong in WRONG[kind]:
            body = json.dumps(BODIES.with_value(schema, place, wrong))
            answer = sent(planner, method, path, body)
            assert answer.status_code == 422, (place, wrong, answer.text)
            named = [error["loc"] for error in answer.json()["errors"]]
            assert named == [".".join(map(str, place))], (body, answer.text)
