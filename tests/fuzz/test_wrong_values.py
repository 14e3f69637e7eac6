"""Each value of each body in turn of a wrong type: every route refuses it and names the place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

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
NULL = {"type": "null"}
# Fields with a rule that a schema does not have.
VALUES: dict[str, object] = {
    "from_time": "17:00",
    "until_time": "20:00",
    "target": "fastest",
    "timezone": "Europe/Berlin",
    "schedule": "1f1b",
    "profiling_slowdown": 0.1,
    "num_pairs": 2,
    **dict.fromkeys(("stage", "dp_rank", "tp_rank", "cp_rank", "rank"), 0),
}
RIGHT: dict[str, object] = {"integer": 1, "number": 1.5, "boolean": True, "string": "a"}


class Call(NamedTuple):
    """A call with a body, as the description has it."""

    method: str
    path: str
    schema: Schema
    body: Schema


class Bodies:
    """The bodies that an API's description speaks of."""

    def __init__(self, document: Schema) -> None:
        self._document = document

    def calls(self) -> Iterator[Call]:
        """Each call with a JSON body."""
        for template, methods in self._document["paths"].items():
            path = template
            for part, value in PARTS.items():
                path = path.replace(part, value)
            for method, operation in methods.items():
                content = operation.get("requestBody", {}).get("content", {})
                if "application/json" in content:
                    of_json = content["application/json"]
                    body = self._body(of_json["schema"])
                    yield Call(method.upper(), path, of_json["schema"], body)

    def _body(self, schema: Schema, name: str = "") -> Any:  # noqa: ANN401 - JSON
        """A body with every field, null where it may be."""
        schema = self._resolved(schema)
        if NULL in schema.get("anyOf", ()):
            return None
        if name in VALUES:
            return VALUES[name]
        if "anyOf" in schema:
            return self._body(schema["anyOf"][0])
        if schema["type"] == "array":
            items = schema.get("prefixItems") or [schema["items"]]
            return [self._body(item) for item in items]
        if schema["type"] == "object":
            return {field: self._body(part, field) for field, part in schema["properties"].items()}
        return schema.get("enum", [RIGHT[schema["type"]]])[0]

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


BODIES = Bodies(create_app(load_settings(), TemporaryJobStore()).openapi())
by_call = pytest.mark.parametrize("call", [*BODIES.calls()], ids=lambda call: " ".join(call[:2]))


@pytest.fixture(scope="module")
def planner() -> Iterator[LivePlanner]:
    """One planner with a planned job; it has a token, as some of the calls make others."""
    with live_planner(token=TOKEN, max_wait_s=0.0) as live:
        live.http.headers[TOKEN_HEADER] = TOKEN
        live.put_planned_job()
        yield live


def sent(planner: LivePlanner, call: Call, body: str) -> httpx.Response:
    """The answer to a body as it is written."""
    headers = {"Content-Type": "application/json"}
    return planner.http.request(call.method, call.path, content=body, headers=headers)


@by_call
def test_a_value_of_a_wrong_type_is_refused_by_its_place(planner: LivePlanner, call: Call) -> None:
    for place, kind in BODIES.places(call.schema):
        for wrong in WRONG[kind]:
            body = json.dumps(BODIES.with_value(call.schema, place, wrong))
            answer = sent(planner, call, body)
            assert answer.status_code == 422, (place, wrong, answer.text)
            named = [error["loc"] for error in answer.json()["errors"]]
            assert named == [".".join(map(str, place))], (body, answer.text)


# Of each kind that a field may take, and none of which is in any rule.
SENTINELS = (91827364, -91827364, 91827.364, "s91827364", "s9'18\"27364", [91827364], "f:91827364")


def wrong_bodies(body: Any) -> Iterator[Any]:  # noqa: ANN401 - JSON
    """The body with a sentinel in the place of each value, and as the name of a field."""
    yield from SENTINELS
    if isinstance(body, list):
        if not body:
            return
        for wrong in wrong_bodies(body[0]):
            yield [wrong, *body[1:]]
    elif isinstance(body, dict):
        yield {**body, "n91827364": 1}
        for name in body:
            for wrong in wrong_bodies(body[name]):
                yield {**body, name: wrong}


@by_call
def test_no_value_and_no_name_of_a_refused_body_is_echoed(planner: LivePlanner, call: Call) -> None:
    num_refused = 0
    for body in wrong_bodies(call.body):
        answer = sent(planner, call, json.dumps(body))
        assert answer.status_code < 500
        if answer.status_code == 404:  # it says what is not there
            assert answer.json()["detail"] == f"Job job has no plan version {body['version']}"
        elif answer.status_code >= 400:
            num_refused += 1
            for part in ("91827", "918.3", "9.18"):
                assert part not in answer.text, (body, answer.text)
    assert num_refused > 5
