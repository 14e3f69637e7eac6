"""Strict reading of plain data: each function gives what was expected, or says where it is not.

All raise PlanningError, with `where` as its field.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, cast

from flyball_server.planning.errors import PlanningError


def mapping_of(value: object, where: str) -> dict[str, Any]:
    """An object."""
    return cast("dict[str, Any]", typed_of(value, dict, "an object", where))


def list_of(value: object, where: str) -> list[object]:
    """A list."""
    return cast("list[object]", typed_of(value, list, "a list", where))


def text_of(fields: dict[str, Any], where: str) -> str:
    """The text in this field."""
    return cast("str", typed_of(fields.get(where), str, "text", where))


def typed_of(value: object, wanted: type, called: str, where: str) -> object:
    """A value of this type, as it is called to people."""
    if not isinstance(value, wanted):
        raise PlanningError(f"must be {called}", field=where)
    return value


def counts_of(value: object, where: str) -> tuple[int, ...]:
    """A list of counts."""
    return tuple(count_of(item, where) for item in list_of(value, where))


def number_of(value: object, where: str) -> float:
    """A finite number, not negative."""
    return float(
        _checked(value, (int, float), lambda number: number >= 0, "a number, not negative", where)
    )


def positive_of(value: object, where: str) -> float:
    """A finite number above 0."""
    return float(
        _checked(value, (int, float), lambda number: number > 0, "a number above 0", where)
    )


def count_of(value: object, where: str) -> int:
    """A whole number from 0 up."""
    return int(_checked(value, (int,), lambda number: number >= 0, "a count from 0 up", where))


def _checked(
    value: object,
    types: tuple[type, ...],
    accepts: Callable[[float], bool],
    called: str,
    where: str,
) -> float:
    if isinstance(value, bool) or not isinstance(value, types):
        raise PlanningError(f"must be {called}", field=where)
    number = cast("float", value)
    # An int compares exactly with a float; only converting a huge one to float would overflow.
    if not -sys.float_info.max <= number <= sys.float_info.max or not accepts(number):
        raise PlanningError(f"must be {called}", field=where)
    return number
