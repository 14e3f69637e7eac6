"""Options that are declared once: bounds, unit, meaning, and where each may be given.

The command line, DeepSpeed's block, `attach`, the bodies of REST and the reference pages are made
from the declarations, and all of them read values with `Option.read`, `read_item` or `read_text`:
a bad value has the same message everywhere.
"""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from enum import StrEnum
from numbers import Integral, Real
from types import MappingProxyType
from typing import Annotated, Any, cast, get_args, get_origin, get_type_hints

from flyball_pipeline.errors import PipelineError
from flyball_wire.strictness import Schema, SchemaHandler

# Whole numbers above this lose digits in JSON readers.
MAX_COUNT = 2**53 - 1
MAX_TEXT_CHARACTERS = 256
_SHOWN_CHARACTERS = 60
# Context of pydantic that reads what was checked before it was stored.
STORED: Schema = {"is_stored": True}
_UNITS = MappingProxyType(
    {"ms": "ms", "s": "seconds", "w": "W", "bytes": "bytes", "percent": "percent"}
)
_YES_OR_NO = MappingProxyType({"1": True, "true": True, "0": False, "false": False})


class OptionError(PipelineError):
    """An option that cannot be used; `field` names it, and `message` reads on from the name."""


class NumValues(StrEnum):
    """Numbers of values that an option takes, in the words of its messages."""

    ONE = ""
    ONE_OR_PER_STAGE = "one per stage"
    ONE_OR_PER_PAIR = "one for each pair of neighbours"
    EACH_STAGE = "each stage"


@dataclass(frozen=True)
class Option:
    """Declaration of an option, in the `Annotated` type of a dataclass's field.

    reserve: Annotated[float | None, Option("share by which ...", bounds=(0, 0.5))] = None
    """

    #: Meaning: a noun phrase without a full stop; empty where it is shown nowhere.
    text: str = ""
    _: KW_ONLY
    #: Sentences behind the meaning, without the last full stop.
    more: str = ""
    #: Lowest and highest value; None: no highest value.
    bounds: tuple[float, float | None] = (0, None)
    #: True: the lowest value itself is too low.
    is_above: bool = False
    is_share: bool = False
    #: Valid values of a text, in words, with `check`.
    form: str = ""
    #: Return whether a text is valid, or raise an OptionError with a message of its own.
    check: Callable[[str], bool] | None = None
    choices: tuple[str, ...] = ()
    example: str = ""
    num_values: NumValues = NumValues.ONE
    #: Policies and schedules that use the option; empty: all.
    policies: tuple[str, ...] = ()
    schedules: tuple[str, ...] = ()
    #: True: a job may keep the option under another policy, where it has no effect.
    may_idle: bool = False
    #: Meaning of null; `offline`: default of the offline commands where that differs.
    if_null: str = ""
    offline: str = ""
    #: Heading in the help of the offline commands; empty: not one of their usual arguments.
    group: str = ""
    #: True: of a single plan, and no argument of `flyball frontier`.
    is_of_a_plan: bool = False
    flag: str = ""
    #: Help of the command line where `text` does not fit it.
    flag_help: str = ""
    #: Word that stands for null on the command line.
    null_word: str = ""
    #: True: known to the framework, so that `attach` and DeepSpeed's block do not take it.
    is_frameworks: bool = False
    #: Keyword of `attach` and key in DeepSpeed's block where it is not the name.
    key: str = ""
    #: Name and default of the field, and type of one value, from the dataclass.
    name: str = ""
    default: object = None
    kind: type[object] = str

    @property
    def option_string(self) -> str:
        """Name on the command line."""
        return self.flag or f"--{self.name.replace('_', '-')}"

    @property
    def metavar(self) -> str:
        """Placeholder of the value in the help."""
        if self.names:
            return "{" + ",".join(self.names) + "}"
        shown = "N" if self.kind is int else self.unit.upper()
        if self.kind is str:
            shown = self.name.upper() if self.form else "NAME"
        return f"{shown},{shown}" if self.num_values == NumValues.EACH_STAGE else shown

    @property
    def keyword(self) -> str:
        """Keyword of `attach` and key in DeepSpeed's block."""
        return self.key or self.name

    @property
    def is_readable(self) -> bool:
        """True for single values and lists of them, not for nested lists and objects."""
        return self.kind in {bool, int, float, str} or issubclass(self.kind, StrEnum)

    @property
    def has_list(self) -> bool:
        """True if the value is a tuple."""
        return self.num_values != NumValues.ONE

    @property
    def unit(self) -> str:
        """Unit of a number, by the end of its name; `share` for a fraction."""
        return "share" if self.is_share else _UNITS.get(self.name.rpartition("_")[2], "")

    @property
    def limits(self) -> str:
        """Bounds of a number in words; empty: it is none."""
        if self.kind not in {int, float}:
            return ""
        least, most = (None if end is None else _bound(end) for end in self.bounds)
        if self.is_above:
            return f"above {least}" + ("" if most is None else f" and at most {most}")
        return f"at least {least}" if most is None else f"{least} to {most}"

    def used_by(self, mark: str = "") -> str:
        """Return the policies or schedules that use the option, in words; empty: all."""
        noun, nouns, names = "policy", "policies", self.policies
        if self.schedules:
            noun, nouns, names = "schedule", "schedules", self.schedules
        listed = ", ".join(f"{mark}{name}{mark}" for name in names)
        return f"{noun if len(names) == 1 else nouns} {listed}" if names else ""

    @property
    def must_be(self) -> str:
        """Valid values, in the words of every message."""
        if self.names:
            return f"one of {', '.join(self.names)}"
        if self.kind is bool:
            return "true or false"
        if self.kind is str:
            return self.form or f"printable text of at most {MAX_TEXT_CHARACTERS} characters"
        each = self.num_values == NumValues.EACH_STAGE
        noun = "share" if self.unit == "share" else "number"
        noun = f"whole {noun}" if self.kind is int else noun
        words = f"{noun}s" if each else f"a {noun}"
        if self.unit not in {"", "share"}:
            words += f" of {self.unit}"
        if self.limits:
            before = " from " if self.limits[0].isdigit() else " " if self.is_above else ", "
            words += before + self.limits
        if each:
            words += ", one per stage"
        elif self.has_list:
            words += f", or {self.num_values}"
        return f"{words} ({self.example})" if self.example else words

    @property
    def names(self) -> tuple[str, ...]:
        """Names that it takes; empty: no names."""
        return tuple(map(str, self.kind)) if issubclass(self.kind, StrEnum) else self.choices

    @property
    def description(self) -> str:
        """Meaning in REST's pages: bounds, null, and the policies that use it."""
        parts = [self.text, *([self.limits] if self.limits else [])]
        null = [f"null: {self.if_null}"] if self.if_null else []
        sentences = ["; ".join([", ".join(parts), *null]), *([self.more] if self.more else [])]
        if self.used_by():
            sentences.append(f"For {self.used_by('`')} only")
        return ". ".join(sentences) + "."

    def help(self, note: str | None = None) -> str:
        """Return the help of the command line.

        Args:
            note: what stands behind the meaning; None: the default of the offline commands.
        """
        default = self.offline or self.if_null or (self.kind is not bool and self.default)
        words = f"(default: {default})" if note is None and default else note or ""
        if self.flag_help:
            text = self.flag_help
        else:
            text = ", ".join([self.text, *([self.limits] if self.limits else [])])
            text = ". ".join([text, *([self.more] if self.more else [])])
        only = [self.used_by()] if self.used_by() else []
        return f"{': '.join([*only, text])} {words}".replace("`", "").strip()

    # -------------------------------------------------------------- values

    def read(self, given: object) -> Any:  # noqa: ANN401 - of the field's type
        """Return the value of JSON, or of Python, where numpy's numbers and arrays will do.

        Raises:
            OptionError: it is not one.
        """
        plain = _plain(given)
        if not self.has_list:
            return self.read_item(plain)
        values = cast("list[object]", plain) if isinstance(plain, list) else [plain]
        return tuple(self.read_item(value) for value in self.read_list(values))

    def read_text(self, text: str) -> Any:  # noqa: ANN401 - of the field's type
        """Return the value that a text has: of the command line, or a variable.

        Raises:
            OptionError: it has none.
        """
        if self.kind is bool:
            return self.read_item(_YES_OR_NO.get(text.lower(), text))
        if self.kind not in {int, float}:
            return self.read_item(text)
        if not self.has_list:
            return self.read_item(_number_in(text))
        return self.read([_number_in(part) for part in text.split(",")])

    def read_setting(self, given: object) -> Any:  # noqa: ANN401 - of the field's type
        """Return the value of a config, where a text has it as on the command line.

        Raises:
            OptionError: it is not one.
        """
        return self.read_text(given) if isinstance(given, str) else self.read(given)

    def read_item(self, given: object) -> Any:  # noqa: ANN401 - of the field's type
        """Return one value of JSON.

        Raises:
            OptionError: it is not one.
        """
        if self.kind in {int, float}:
            return self._number(given)
        is_valid = isinstance(given, bool if self.kind is bool else str)
        if self.names:
            is_valid = isinstance(given, str) and given in self.names
        elif isinstance(given, str):
            is_valid = is_valid and bool(given.strip()) and given.isprintable()
            is_valid = is_valid and len(given) <= MAX_TEXT_CHARACTERS
            is_valid = is_valid and (self.check is None or self.check(given))
        if not is_valid:
            raise self.refusal(given)
        return self.kind(cast("str", given)) if issubclass(self.kind, StrEnum) else given

    def read_list(self, given: object) -> Sequence[object]:
        """Return a list of JSON as it is; its items are read one by one.

        Raises:
            OptionError: it is no list, or an empty one.
        """
        items = _items(given)
        if not items:
            raise self.refusal(given)
        return items

    def _number(self, given: object) -> float:
        if isinstance(given, bool) or not isinstance(given, int | float):
            raise self.refusal(given)
        is_whole = isinstance(given, int) or given.is_integer()
        least, most = self.bounds
        if most is None:
            most = MAX_COUNT if self.kind is int else math.inf
        # Python compares an int of any size exactly.
        is_within = least < given <= most if self.is_above else least <= given <= most
        if not is_within or not (isinstance(given, int) or math.isfinite(given)):
            raise self.refusal(given)
        if self.kind is int:
            if not is_whole:
                raise self.refusal(given)
            return int(given)
        return float(given)

    def __get_pydantic_core_schema__(self, source: object, handler: SchemaHandler) -> Schema:
        """Return the schema of the field's type, with the checks of this declaration before it."""
        declared = replace(self, name=handler.field_name or "", kind=kind_of(source))
        return declared._read_before(handler(source)) if declared.is_readable else handler(source)

    def __get_pydantic_json_schema__(
        self, schema: Schema, handler: Callable[[Schema], Schema]
    ) -> Schema:
        """Return the type's JSON schema with description and bounds, for OpenAPI."""
        described = handler(schema)
        declared = replace(self, kind=float) if _set_bounds(described, self) else self
        return {**described, "description": declared.description}

    def _read_before(self, schema: Schema) -> Schema:
        if schema["type"] == "nullable":
            return {**schema, "schema": self._read_before(schema["schema"])}
        if not self.has_list:
            return _read_with(schema, self.read_item)
        items = [_read_with(item, self.read_item) for item in schema["items_schema"]]
        return _read_with({**schema, "items_schema": items}, self.read_list)

    def refusal(self, given: object) -> OptionError:
        """Return the error of a value."""
        return OptionError(f"must be {self.must_be}, not {_shown(given)}", field=self.name)


def _read_with(schema: Schema, read: Callable[[object], object]) -> Schema:
    """Return the schema with a reader before it, whose error pydantic gives its place."""

    def worded(given: object, info: Any) -> object:  # noqa: ANN401 - pydantic's
        if info.context is STORED:
            return given
        try:
            return read(given)
        except OptionError as error:
            raise ValueError(error.message) from None

    function = {"type": "with-info", "function": worded}
    return {"type": "function-before", "function": function, "schema": schema}


def _set_bounds(schema: Schema, declared: Option) -> bool:
    """Set the bounds at the number that a JSON schema has, and return whether it has one."""
    for part in schema.get("anyOf", (schema,)):
        number = part.get("items", part)
        if number.get("type") in {"integer", "number"}:
            least = "exclusiveMinimum" if declared.is_above else "minimum"
            bounds = zip((least, "maximum"), declared.bounds, strict=True)
            number |= {key: bound for key, bound in bounds if bound is not None}
            return True
    return False


def options_of(owner: type[object]) -> Mapping[str, Option]:
    """Return the options that a dataclass and its bases declare, by the name of the field."""
    return _options_of(cast("Hashable", owner))


@functools.cache
def _options_of(owner: Hashable) -> Mapping[str, Option]:
    found: dict[str, Option] = {}
    for name, hint in get_type_hints(cast("Any", owner), include_extras=True).items():
        for metadata in getattr(hint, "__metadata__", ()):
            if isinstance(metadata, Option):
                default = getattr(owner, name, None)
                found[name] = replace(metadata, name=name, default=default, kind=kind_of(hint))
    return MappingProxyType(found)


def kind_of(hint: object) -> type[object]:
    """Return the type of a single value: of the items of a tuple, and without None."""
    members = [member for member in get_args(hint) if member is not types.NoneType]
    if get_origin(hint) is Annotated or len(members) < len(get_args(hint)):
        return kind_of(members[0])
    if get_origin(hint) is tuple:
        item = members[0]
        return cast("type[object]", item) if isinstance(item, type) else tuple
    return hint if isinstance(hint, type) else object


def _plain(given: object) -> object:
    """Return numpy's numbers and arrays, and other sequences, as JSON has them."""
    if isinstance(given, bool):
        return given
    if isinstance(given, Integral):
        return int(given)
    if isinstance(given, Real):
        return float(given)
    if isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping):
        # An array without dimensions cannot be gone through.
        with suppress(TypeError):
            return [_plain(item) for item in cast("Iterable[object]", given)]
    return cast("Any", given)


def _items(given: object) -> Sequence[object]:
    return cast("Sequence[object]", given) if isinstance(given, list | tuple) else ()


def _bound(number: float) -> str:
    return str(int(number)) if float(number).is_integer() else f"{number:g}"


def _number_in(text: str) -> float | str:
    for number in (int, float):
        with suppress(ValueError):
            return number(text)
    return text


def _shown(given: object) -> str:
    if isinstance(given, str):
        return repr(given if len(given) <= _SHOWN_CHARACTERS else f"{given[:_SHOWN_CHARACTERS]}...")
    if given is None or isinstance(given, bool):
        return {None: "null", True: "true", False: "false"}[given]
    if isinstance(given, int) and abs(given) > 10**18:
        # Of thousands of digits; Python refuses to print it.
        return "a number beyond 10^18"
    if isinstance(given, int | float):
        return repr(given)
    return "a list" if isinstance(given, list | tuple) else f"a {type(given).__name__}"
