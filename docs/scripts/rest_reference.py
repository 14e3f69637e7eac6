"""The parts of docs/rest.md that come from the API's OpenAPI document."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import cache
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

from docs.scripts.openapi_document import openapi_document, schemas
from docs.scripts.tables import attributes_of, code, inherited_attributes, listed, summary_of, table

import flyball_wire

# Of all calls, as the page's introduction says.
_COMMON_ERRORS = {"400", "401", "403", "408", "413", "415", "503"}
# A larger limit is that of JSON's integers.
_LARGEST_TOLD = 2**31

Schema = dict[str, Any]


def rest_part(what: str) -> str:
    """Return the calls of a tag (`calls TAG`), the `types` or the `names`."""
    if what == "types":
        return _types()
    return _names() if what == "names" else _calls(what.removeprefix("calls "))


def _calls(tag: str) -> str:
    rows = [
        (code(f"{method.upper()} {path}"), _meaning(operation), _answers(operation))
        for path, methods in sorted(openapi_document()["paths"].items())
        for method, operation in sorted(methods.items())
        if tag in operation["tags"]
    ]
    return table(("call", "meaning", "answer"), rows)


def _meaning(operation: dict[str, Any]) -> str:
    sentences = [operation["description"]]
    if body := operation.get("requestBody"):
        sentences.append(f"Body: {_body(body['content'])}.")
    sentences += [
        f"{code(each['name'])}: {_parameter(each)}"
        for each in operation.get("parameters", ())
        if each["in"] != "path" and each["name"] != "wait_s"
    ]
    if any(each["name"] == "wait_s" for each in operation.get("parameters", ())):
        sentences.append("Takes `wait_s`.")
    return " ".join(sentences)


def _parameter(parameter: dict[str, Any]) -> str:
    schema = parameter["schema"]
    limits = [
        f"{name} {schema[key]}"
        for key, name in (("minimum", "at least"), ("maximum", "at most"))
        if key in schema and schema[key] < _LARGEST_TOLD
    ]
    default = [f"default {schema['default']}"] if "default" in schema else []
    notes = ", ".join([*limits, *default])
    text = parameter["description"].rstrip(".")
    return f"{text} ({notes})." if notes else f"{text}."


def _body(content: dict[str, Any]) -> str:
    return listed([_content(name, part["schema"]) for name, part in content.items()])


def _content(content_type: str, schema: Schema) -> str:
    if content_type != "application/json":
        return code(content_type)
    keys = schema.get("properties")
    return f"JSON with {listed(list(map(code, keys)), 'and')}" if keys else _type(schema)


def _answers(operation: dict[str, Any]) -> str:
    good = [
        f"{status} {_answer(answer)}".strip()
        for status, answer in sorted(operation["responses"].items())
        if status < "300"
    ]
    errors = [
        status
        for status in sorted(operation["responses"])
        if status >= "400" and status not in _COMMON_ERRORS
    ]
    return "; ".join([", ".join(good), *([", ".join(errors)] if errors else [])])


def _answer(answer: dict[str, Any]) -> str:
    for content_type, part in answer.get("content", {}).items():
        return _type(part["schema"]) if content_type == "application/json" else content_type
    return ""


def _types() -> str:
    return "\n\n".join(
        f"### {name}\n\n{_text_of(name, schema)}\n\n{_fields(name, schema)}"
        for name, schema in schemas().items()
        if "enum" not in schema
    )


def _text_of(name: str, schema: Schema) -> str:
    return summary_of(schema.get("description", "")) or f"{name}."


def _fields(name: str, schema: Schema) -> str:
    texts = attributes_of(schema.get("description", ""))
    if (described := _wire_types().get(name)) is not None:
        texts = inherited_attributes(described) | texts
    required = schema.get("required", [])
    rows = [
        (
            code(field),
            _type(part),
            "required" if field in required else _default(part),
            texts.get(field, "").rstrip("."),
        )
        for field, part in schema["properties"].items()
    ]
    return table(("field", "type", "default", "meaning"), rows)


@cache
def _wire_types() -> dict[str, type]:
    """Return the wire's dataclasses by name."""
    modules = [
        import_module(found.name)
        for found in walk_packages(flyball_wire.__path__, f"{flyball_wire.__name__}.")
    ]
    return {
        name: item
        for module in modules
        for name, item in vars(module).items()
        if isinstance(item, type) and is_dataclass(item)
    }


def _default(part: Schema) -> str:
    return code(json.dumps(part.get("default")))


def _names() -> str:
    rows = [
        (
            name,
            listed([code(value) for value in schema["enum"]], "and"),
            summary_of(schema.get("description", "")),
        )
        for name, schema in schemas().items()
        if "enum" in schema
    ]
    return table(("name", "values", "meaning"), rows)


def _type(schema: Schema) -> str:
    """Return a schema in words."""
    return " or ".join(_alternatives(schema))


def _alternatives(schema: Schema) -> Iterator[str]:
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        place = "names" if "enum" in schemas()[name] else name.lower()
        yield f"[{name}](#{place})"
    elif "anyOf" in schema:
        for option in schema["anyOf"]:
            yield from _alternatives(option)
    elif "enum" in schema:
        yield listed([code(value) for value in schema["enum"]])
    elif "prefixItems" in schema:
        yield f"list of {', '.join(_type(item) for item in schema['prefixItems'])}"
    elif schema.get("type") == "array":
        yield f"list of {_type(schema['items'])}" if schema.get("items") else "list"
    else:
        yield str(schema.get("type", "anything"))
