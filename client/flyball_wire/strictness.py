"""Strict reading of client messages: no conversions, no unknown fields.

Left alone, pydantic reads `true` as 1 and `"3"` as 3, so that a mistake would pass for a number,
and it keeps an error of a kilobyte for each of a million wrong values. Only the planner has
pydantic; nothing here imports it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, ClassVar, Protocol, cast

Schema = dict[str, Any]
"""A pydantic core schema: what is checked, as nested dicts and lists."""

_SCALARS = frozenset({"bool", "float", "int", "str"})
# Values and types of the author's, not schemas.
_NO_SCHEMAS = frozenset({"cls", "config", "default", "metadata", "serialization"})


class SchemaHandler(Protocol):
    """Handler that pydantic passes to a type that describes its own schema."""

    @property
    def field_name(self) -> str | None:
        """Name of the field that has the type; None: it is no field's."""
        ...

    def __call__(self, source: object, /) -> Schema:
        """Return the schema that the type has by itself."""
        ...

    def resolve_ref_schema(self, maybe_ref: Schema, /) -> Schema:
        """Return the schema that a reference points to, or the schema itself."""
        ...


class Sent:
    """Base of the types that clients send.

    A value must be of its field's JSON type: text is no number and neither is `true`. A whole
    number is a number too. Unknown fields are refused and not named, and of a list the first
    wrong value is the only value that is named.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: SchemaHandler) -> Schema:
        """Return the schema that pydantic makes of the fields, made strict."""
        return _strict_schema(cls, source, handler)


class StrictFields:
    """Annotation of a field whose type is a dataclass and no `Sent`: it is read as strictly."""

    def __get_pydantic_core_schema__(self, source: type[object], handler: SchemaHandler) -> Schema:
        """Return the schema that pydantic makes of the type's fields, made strict."""
        return _strict_schema(source, source, handler)


def _strict_schema(of_type: type[object], source: object, handler: SchemaHandler) -> Schema:
    schema = handler(source)
    _make_strict(handler.resolve_ref_schema(schema))
    known = [field.name for field in fields(cast("Any", of_type))]

    def checked(given: object) -> object:
        # pydantic itself would echo the name of an unknown field.
        if _is_object(given) and not cast("Schema", given).keys() <= set(known):
            raise ValueError(f"there is an unknown field; known: {', '.join(known)}")
        return given

    check = {"type": "no-info", "function": checked}
    return {"type": "function-before", "function": check, "schema": schema}


def _is_object(given: object) -> bool:
    return isinstance(given, dict)


def _make_strict(node: object) -> None:
    """Make a schema strict about single values, and make its lists stop at the first error."""
    if isinstance(node, list | tuple):
        for item in cast("Sequence[object]", node):
            _make_strict(item)
    elif isinstance(node, dict):
        schema = cast("Schema", node)
        if schema.get("type") in _SCALARS:
            schema["strict"] = True
        if schema.get("type") == "tuple":
            schema["fail_fast"] = True
        for name, item in schema.items():
            if name not in _NO_SCHEMAS:
                _make_strict(item)
