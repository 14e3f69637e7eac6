"""Wire dataclasses to JSON-ready data and back, strictly by their annotations.

What comes in is either exactly what `wire.py` says or a CodecError that names the field.
Unknown fields are ignored, so that an older client can talk to a newer planner.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeGuard, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from flyball_wire.errors import CodecError

T = TypeVar("T")

_PLAIN = frozenset({str, int, bool, types.NoneType})
_TYPE_NAMES: dict[object, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    types.NoneType: "null",
    list: "a list",
    tuple: "a list",
    dict: "an object",
}


def encode(value: object) -> Any:  # noqa: ANN401 - JSON has no narrower type
    """JSON-ready data: dicts, lists, text, finite numbers, booleans and None.

    Raises:
        CodecError: a number is not finite, or a value has no JSON form.
    """
    try:
        return _encode(value)
    except _NoJsonError as error:
        raise CodecError(error.text()) from None


def decode(target: type[T], data: object) -> T:
    """An instance of the wire dataclass `target` from parsed JSON.

    Raises:
        CodecError: the data does not fit; the text starts with the path of the field, such as
            `ranks[2].stage`, or with the type's name when the whole does not fit.
    """
    try:
        return cast("T", _decode(target, data, ""))
    except RecursionError:
        raise CodecError(f"{target.__name__} nests too deeply") from None


def decode_list(target: type[T], data: object) -> tuple[T, ...]:
    """Instances of the wire dataclass `target` from a parsed JSON list.

    Raises:
        CodecError: as for `decode`; paths start with the index, such as `[3].state`.
    """
    if not isinstance(data, list):
        raise CodecError(f"a list of {target.__name__} was expected, not {_describe(data)}")
    items = cast("list[object]", data)
    return tuple(cast("T", _decode(target, item, f"[{i}]")) for i, item in enumerate(items))


class _NoJsonError(Exception):
    """A value has no JSON form; its place is found on the way back from it.

    Args:
        problem: what is wrong.
        whole: what to call it where it is no part of anything.
    """

    def __init__(self, problem: str, whole: str = "the value") -> None:
        super().__init__(problem)
        self._problem, self._whole = problem, whole
        self._path = ""

    def within(self, step: str) -> _NoJsonError:
        """Return the same error as part of a larger value, under this name or `[index]`."""
        is_next_item = not self._path or self._path.startswith("[")
        self._path = step + self._path if is_next_item else f"{step}.{self._path}"
        return self

    def text(self) -> str:
        return f"{self._path or self._whole} {self._problem}"


def _encode(value: object) -> object:
    # A plan has tens of thousands of numbers: no path is made for what is as it should be.
    kind = type(value)
    if kind in _PLAIN or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _NoJsonError(f"must be a finite number, not {value}")
        return value
    if isinstance(value, tuple | list):
        return _encode_items(cast("Sequence[object]", value))
    names = _encoded_fields(cast("Hashable", kind))
    if names is not None:
        return _encode_members((name, getattr(value, name)) for name in names)
    if isinstance(value, Mapping):
        return _encode_members(cast("Mapping[object, object]", value).items())
    raise _NoJsonError(f"has no JSON form ({kind.__name__})")


def _encode_items(items: Sequence[object]) -> list[object]:
    kinds = set(map(type, items))
    if kinds <= _PLAIN or (
        kinds == {float} and all(map(math.isfinite, cast("Sequence[float]", items)))
    ):
        return list(items)
    encoded: list[object] = []
    for index, item in enumerate(items):
        try:
            encoded.append(_encode(item))
        except _NoJsonError as error:
            raise error.within(f"[{index}]") from None
    return encoded


def _encode_members(members: Iterable[tuple[object, object]]) -> dict[str, object]:
    encoded: dict[str, object] = {}
    for name, item in members:
        if not isinstance(name, str):
            raise _NoJsonError(f"has a key that is not text: {name!r}", "the object")
        try:
            encoded[name] = _encode(item)
        except _NoJsonError as error:
            raise error.within(name) from None
    return encoded


@functools.cache
def _encoded_fields(kind: Hashable) -> tuple[str, ...] | None:
    """Names of a dataclass's fields; None for any other type."""
    if not dataclasses.is_dataclass(kind):
        return None
    return tuple(field.name for field in dataclasses.fields(cast("Any", kind)))


def _decode(target: object, data: object, path: str) -> object:
    if target is Any:
        return _any(data, path)
    if dataclasses.is_dataclass(target):
        return _dataclass(cast("type[object]", target), data, path)
    by_members = _BY_ORIGIN.get(get_origin(target))
    if by_members is not None:
        return by_members(get_args(target), data, path)
    return _scalar(target, data, path)


def _dataclass(target: type[object], data: object, path: str) -> object:
    if not isinstance(data, dict):
        where = path or target.__name__
        raise CodecError(f"{where} must be an object, not {_describe(data)}")
    given = cast("dict[object, object]", data)
    values: dict[str, object] = {}
    for name, annotation, required in _fields(cast("Hashable", target)):
        if name in given:
            values[name] = _decode(annotation, given[name], _member(path, name))
        elif required:
            raise CodecError(f"{_member(path, name)} is missing")
    try:
        return target(**values)
    except ValueError as error:
        raise CodecError(f"{path or target.__name__}: {error}") from None


@functools.cache
def _fields(target: Hashable) -> tuple[tuple[str, object, bool], ...]:
    # dataclasses.fields leaves ClassVars (__pydantic_config__) out by itself.
    hints = get_type_hints(cast("type[object]", target))
    return tuple(
        (
            field.name,
            hints[field.name],
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
        )
        for field in dataclasses.fields(cast("Any", target))
    )


def _union(members: tuple[Any, ...], data: object, path: str) -> object:
    if data is None and types.NoneType in members:
        return None
    others = [member for member in members if member is not types.NoneType]
    if len(others) == 1:
        return _decode(others[0], data, path)
    for member in others:
        try:
            return _decode(member, data, path)
        except CodecError:
            continue
    names = " or ".join(_TYPE_NAMES.get(member, str(member)) for member in others)
    raise CodecError(f"{path} must be {names}, not {_describe(data)}")


def _tuple(members: tuple[Any, ...], data: object, path: str) -> tuple[object, ...]:
    if not isinstance(data, list | tuple):
        raise CodecError(f"{path} must be a list, not {_describe(data)}")
    items = cast("list[object]", data)
    if len(members) == 2 and members[1] is Ellipsis:
        taken = _taken(members[0], items)
        if taken is not None:
            return taken
        kinds = (members[0],) * len(items)
    elif len(members) == len(items):
        kinds = members
    else:
        raise CodecError(f"{path} must have {len(members)} items, not {len(items)}")
    pairs = zip(kinds, items, strict=True)
    return tuple(_decode(kind, item, f"{path}[{i}]") for i, (kind, item) in enumerate(pairs))


def _taken(kind: object, items: Sequence[object]) -> tuple[object, ...] | None:
    """Return the items if all are valid; None: decode them one by one.

    A plan has tens of thousands of numbers: no path is made for them, nor a call.
    """
    plain = _plain_types(kind)
    if plain is not None:
        return tuple(items) if plain.issuperset(map(type, items)) else None
    if kind is float:
        is_good = set(map(type, items)) == {float} and all(
            map(math.isfinite, cast("Sequence[float]", items))
        )
        return tuple(items) if is_good else None
    within = get_args(kind) if get_origin(kind) is tuple else ()
    plain = _plain_types(within[0]) if len(within) == 2 and within[1] is Ellipsis else None
    if plain is None or set(map(type, items)) != {list}:
        return None
    lists = cast("Sequence[list[object]]", items)
    are_good = all(plain.issuperset(map(type, item)) for item in lists)
    return tuple(map(tuple, lists)) if are_good else None


@functools.cache
def _plain_types(target: Hashable) -> frozenset[object] | None:
    """Return the types of values that are used as they are, if `target` allows no others."""
    is_union = get_origin(target) in {Union, types.UnionType}
    members = get_args(target) if is_union else (target,)
    return frozenset(members) if _PLAIN.issuperset(members) else None


def _dict(members: tuple[Any, ...], data: object, path: str) -> dict[str, object]:
    if not isinstance(data, dict):
        raise CodecError(f"{path} must be an object, not {_describe(data)}")
    entries = cast("dict[object, object]", data)
    member = members[-1]
    return {
        _key(key, path): _decode(member, item, _member(path, key)) for key, item in entries.items()
    }


def _scalar(target: object, data: object, path: str) -> object:
    # bool is an int to Python and a different thing to a planner.
    if target is float and isinstance(data, int | float) and not isinstance(data, bool):
        return _finite(data, path)
    if _is_enum(target):
        return _member_of(target, data, path)
    if type(data) is not target:
        raise CodecError(f"{path} must be {_TYPE_NAMES.get(target, target)}, not {_describe(data)}")
    return data


def _is_enum(target: object) -> TypeGuard[type[StrEnum]]:
    return isinstance(target, type) and issubclass(target, StrEnum)


def _member_of(target: type[StrEnum], data: object, path: str) -> StrEnum:
    try:
        return target(cast("str", data))
    except ValueError:
        raise CodecError(f"{path} must be one of {', '.join(target)}") from None


_BY_ORIGIN: dict[object, Callable[[tuple[Any, ...], object, str], object]] = {
    Union: _union,
    types.UnionType: _union,
    tuple: _tuple,
    dict: _dict,
}


def _any(data: object, path: str) -> object:
    if isinstance(data, dict):
        return _dict((Any,), cast("dict[object, object]", data), path)
    if isinstance(data, list):
        items = cast("list[object]", data)
        return [_any(item, f"{path}[{i}]") for i, item in enumerate(items)]
    return _finite(data, path) if isinstance(data, float) else data


def _finite(number: float, path: str) -> float:
    try:
        as_float = float(number)
    except OverflowError:
        raise CodecError(f"{path} is too large a number") from None
    if not math.isfinite(as_float):
        raise CodecError(f"{path or 'the value'} must be a finite number, not {as_float}")
    return as_float


def _key(key: object, path: str) -> str:
    if not isinstance(key, str):
        raise CodecError(f"{path or 'the object'} has a key that is not text: {key!r}")
    return key


def _member(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)


def _describe(data: object) -> str:
    return _TYPE_NAMES.get(type(data), type(data).__name__)
