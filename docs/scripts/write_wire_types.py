"""Write the dashboard's wire_types.d.ts: types of the API's answers that the page reads.

Usage: python -m docs.scripts.write_wire_types

The types come from the API's OpenAPI document. Written are those that a script of the page
imports, and those that they contain.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docs.scripts.openapi_document import schemas

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "server/flyball_server/dashboard/scripts"
WIRE_TYPES = SCRIPTS / "wire_types.d.ts"
HEAD = """\
// The API's answers that the page reads (docs/rest.md), for `make check-dashboard`.
// Written by docs/scripts/write_wire_types.py from the API's OpenAPI document: do not edit.
"""
_IMPORTED = re.compile(r'@import \{([^}]*)\} from "\./wire_types\.js"')
_PLAIN = {
    "string": "string",
    "number": "number",
    "integer": "number",
    "boolean": "boolean",
    "null": "null",
}

Schema = dict[str, Any]


def main() -> None:
    """Write the file."""
    WIRE_TYPES.write_text(wire_types(), encoding="utf-8")


def wire_types() -> str:
    """Return the text of wire_types.d.ts."""
    names = _contained(_imported(), schemas())
    return "\n".join([HEAD, *(_declaration(name, schemas()[name]) for name in names)])


def _imported() -> set[str]:
    """Return the names of the types that the page's scripts import."""
    texts = (script.read_text(encoding="utf-8") for script in sorted(SCRIPTS.glob("*.js")))
    lists = (names for text in texts for names in _IMPORTED.findall(text))
    return {name for names in lists for name in re.findall(r"(\w+)(?: as \w+)?", names)}


def _contained(names: set[str], schemas: dict[str, Schema]) -> list[str]:
    """Return the names with those of the types that they contain, sorted."""
    found: set[str] = set()
    waiting = set(names)
    while waiting:
        name = waiting.pop()
        found.add(name)
        waiting |= set(_references(schemas[name])) - found
    return sorted(found)


def _references(schema: object) -> Iterator[str]:
    """Yield the name of each type that a schema refers to."""
    if isinstance(schema, dict):
        if "$ref" in schema:
            yield _name(schema)
        for part in schema.values():
            yield from _references(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from _references(part)


def _declaration(name: str, schema: Schema) -> str:
    if "enum" in schema:
        return f"export type {name} = {_type(schema)};\n"
    # An answer has every field, also those that have a default.
    fields = [f"  {key}: {_type(field)};" for key, field in schema["properties"].items()]
    return "\n".join([f"export interface {name} {{", *fields, "}\n"])


def _type(schema: Schema) -> str:
    """Return a schema as TypeScript writes it."""
    if "$ref" in schema:
        return _name(schema)
    if "enum" in schema:
        return " | ".join(json.dumps(value) for value in schema["enum"])
    if "anyOf" in schema:
        return " | ".join(_type(option) for option in schema["anyOf"])
    if "prefixItems" in schema:
        return f"[{', '.join(_type(item) for item in schema['prefixItems'])}]"
    if schema["type"] == "array":
        item = _type(schema["items"])
        return f"({item})[]" if " " in item and not item.startswith("[") else f"{item}[]"
    return _PLAIN[schema["type"]]


def _name(schema: Schema) -> str:
    return str(schema["$ref"]).rpartition("/")[2]


if __name__ == "__main__":
    main()
