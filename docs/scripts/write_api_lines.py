"""Write tests/integration/api.txt: a line for each route, parameter, body, answer and field.

Usage: python -m docs.scripts.write_api_lines

A test compares the file with the API, so that a change of the API is read as changed lines:

    GET /api/v1/jobs/{job_id}/steps query limit = integer default=100 maximum=10000 minimum=1
    JobStep.time_s = number required

Descriptions are left out; every other key of a schema is in its line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docs.scripts.openapi_document import openapi_document, schemas

LINES = Path(__file__).resolve().parents[2] / "tests/integration/api.txt"
_LEFT_OUT = {"title", "description", "examples", "properties", "required"}

Schema = dict[str, Any]


def main() -> None:
    """Write the file."""
    LINES.write_text(api_lines(), encoding="utf-8")


def api_lines() -> str:
    """Return the text of the file."""
    lines = [
        line
        for path, methods in openapi_document()["paths"].items()
        for method, operation in methods.items()
        for line in _call(f"{method.upper()} {path}", operation)
    ]
    for name, schema in schemas().items():
        lines += _fields(name, schema)
    return "\n".join([*sorted(lines), ""])


def _call(call: str, operation: dict[str, Any]) -> Iterator[str]:
    token = "needs a token" if operation.get("security") else "needs no token"
    errors = [status for status in operation["responses"] if status >= "400"]
    yield f"{call} = {operation['operationId']}, {token}, errors {' '.join(errors)}"
    for each in operation.get("parameters", ()):
        place = f"{call} {each['in']} {each['name']}"
        yield from _fields(place, each["schema"], is_required=each["required"])
    if "requestBody" in operation:
        yield from _contents(f"{call} body", operation["requestBody"])
    for status, answer in operation["responses"].items():
        if status < "400":
            yield from _contents(f"{call} {status}", answer)


def _contents(place: str, described: dict[str, Any]) -> Iterator[str]:
    if "content" not in described:
        yield f"{place} = nothing"
    for kind, part in described.get("content", {}).items():
        yield from _fields(f"{place} {kind}", part.get("schema", {}))


def _fields(place: str, schema: Schema, *, is_required: bool = False) -> Iterator[str]:
    """Yield a line for a schema, and one for each of its properties."""
    yield f"{place} = {_words(schema)}{' required' if is_required else ''}"
    required = schema.get("required", ())
    for name, part in schema.get("properties", {}).items():
        yield from _fields(f"{place}.{name}", part, is_required=name in required)


def _words(schema: Schema) -> str:
    """Return a schema in words: types and references first, bounds and the rest behind."""
    rest = {name: value for name, value in schema.items() if name not in _LEFT_OUT}
    words: list[str] = []
    if "$ref" in rest:
        words.append(rest.pop("$ref").rpartition("/")[2])
    if "type" in rest:
        words.append(rest.pop("type"))
    if "anyOf" in rest:
        words.append(" | ".join(map(_words, rest.pop("anyOf"))))
    if "prefixItems" in rest:
        words.append(f"[{', '.join(map(_words, rest.pop('prefixItems')))}]")
    if "items" in rest:
        items = _words(rest.pop("items"))
        words.append(f"of ({items})" if " " in items else f"of {items}")
    words += [f"{name}={json.dumps(value, sort_keys=True)}" for name, value in rest.items()]
    return " ".join(words) or "anything"


if __name__ == "__main__":
    main()
