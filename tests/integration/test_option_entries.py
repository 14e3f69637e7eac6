"""Every entry takes an option by its declaration, and refuses a bad value in the same words."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

pytest.importorskip("deepspeed", reason="needs the extra 'deepspeed'")

from flyball_integrations.deepspeed.settings import Setting, settings_of
from flyball_integrations.shared.attach_options import ATTACHED_OPTIONS, registered_fields
from flyball_server.cli.pipeline_arguments import add_pipeline_arguments
from flyball_server.http.zeus.job_metadata import read_metadata
from flyball_server.jobs.errors import InvalidFieldError
from flyball_wire.options import Option, options_of
from flyball_wire.plan_options import CLOCKS, PlanOptions


@dataclass(frozen=True, kw_only=True)
class MorePlanOptions(PlanOptions):
    """Options of a plan, with one more."""

    cooling_ms: Annotated[
        float | None, Option("pause", bounds=(0, 9), if_null="none", group=CLOCKS)
    ] = None


class Refusing(argparse.ArgumentParser):
    """Parser that raises what it would print."""

    def error(self, message: str) -> Any:  # noqa: ANN401 - never returns
        raise ValueError(message)


def parser_of(owner: type[PlanOptions]) -> argparse.ArgumentParser:
    parser = Refusing()
    add_pipeline_arguments(parser, owner, is_frontier=False)
    return parser


PARSER = parser_of(PlanOptions)
SETTINGS = {setting.option.name: setting for setting in settings_of(ATTACHED_OPTIONS)}
ADAPTER = TypeAdapter(PlanOptions)
MISSING = ["profile.csv", "--microbatches", "2"]


def as_text(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(as_text, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def on_the_command_line(option: Option, value: object) -> object:
    argument = f"{option.option_string}={as_text(value)}"
    return getattr(PARSER.parse_args([*MISSING, argument]), option.name)


def in_rest(option: Option, value: object) -> object:
    return getattr(ADAPTER.validate_python({option.name: value}), option.name)


def in_deepspeeds_block(option: Option, value: object) -> object:
    setting = SETTINGS[option.name]
    return setting.value({}, {}, {setting.key: value}, {})


def in_a_variable(option: Option, value: object) -> object:
    setting = SETTINGS[option.name]
    return setting.value({}, {setting.variable: as_text(value)}, {}, {})


def in_attach(option: Option, value: object) -> object:
    options: Any = {option.keyword: value}
    if option.name in {"activation_bytes", "free_memory_bytes"}:
        options = {"activation_bytes": 1, "free_memory_bytes": 1} | options
    return registered_fields(options)[option.name]


def in_zeuss_metadata(option: Option, value: object) -> object:
    text = as_text(value).replace("e+", "e")  # a plus ends a value there
    return read_metadata(f"name+{option.name}={text}").options[option.name]


def entries_of(option: Option) -> Iterator[Callable[[Option, object], object]]:
    yield in_rest
    if option.group and option.kind is not bool:  # a flag has no value
        yield on_the_command_line
    if not option.is_frameworks:
        yield from (in_deepspeeds_block, in_a_variable, in_attach)
    if option.name != "early_requests":
        yield in_zeuss_metadata


READABLE = [each for each in options_of(PlanOptions).values() if each.is_readable]
LIMITED = [each for each in READABLE if each.kind in {int, float}]
NAMED = [each for each in READABLE if each.names or each.check]


@st.composite
def refused_values(draw: st.DrawFn) -> tuple[Option, object]:
    """An option with a value out of its bounds, or a name that it does not have."""
    option = draw(st.sampled_from(LIMITED + NAMED))
    if option in NAMED:
        return option, draw(st.from_regex(r"[a-z]{1,9}x", fullmatch=True))
    least, most = option.bounds
    beyond = [st.floats(max_value=least - 0.01, allow_nan=False, allow_infinity=False)]
    if most is not None:
        beyond.append(st.floats(min_value=most + 0.01, allow_infinity=False))
    if option.kind is int:
        beyond.append(st.integers(0, 100).map(lambda number: number + 0.5))
    value = draw(st.one_of(*beyond))
    return option, [value] if option.has_list else value


def words_of(enter: Callable[[Option, object], object], option: Option, value: object) -> str:
    with pytest.raises((ValueError, InvalidFieldError)) as refused:
        enter(option, value)
    error = refused.value
    said = str(error.errors()[0]["msg"]) if isinstance(error, ValidationError) else str(error)
    found = re.search(r"must be .*", said)
    assert found, said
    return found[0]


@settings(max_examples=300, deadline=None)
@given(refused_values())
def test_a_bad_value_is_refused_by_the_same_words_at_every_entry(
    refused: tuple[Option, object],
) -> None:
    option, value = refused
    said = {enter.__name__: words_of(enter, option, value) for enter in entries_of(option)}
    shown = value[0] if isinstance(value, list) else value
    assert set(said.values()) == {f"must be {option.must_be}, not {shown!r}"}, said


@pytest.mark.parametrize("option", READABLE, ids=lambda option: option.name)
def test_a_good_value_is_the_same_at_every_entry(option: Option) -> None:
    good: object = {"gpu": "a100", "target": "slowdown:5%", "schedule": "gpipe"}.get(option.name)
    if option.kind is bool:
        good = False
    elif option.names:
        good = option.names[0]
    elif option.kind in {int, float}:
        least = option.bounds[0]
        good = [least + 1] if option.has_list else least + (1 if option.kind is int else 0.25)
    read = {enter.__name__: enter(option, good) for enter in entries_of(option)}
    assert len(set(read.values())) == 1, read


def test_a_new_option_is_at_every_entry_by_its_declaration_alone() -> None:
    option = options_of(MorePlanOptions)["cooling_ms"]
    parser = parser_of(MorePlanOptions)
    assert "--cooling-ms MS" in parser.format_help()
    assert "pause, 0 to 9 (default: none)" in parser.format_help()
    assert parser.parse_args([*MISSING, "--cooling-ms", "1.5"]).cooling_ms == 1.5
    adapter = TypeAdapter(MorePlanOptions)
    assert adapter.validate_json('{"cooling_ms": 1.5}').cooling_ms == 1.5
    described = adapter.json_schema()["properties"]["cooling_ms"]
    assert described["description"] == "pause, 0 to 9; null: none."
    assert described["anyOf"][0] == {"type": "number", "minimum": 0, "maximum": 9}
    (setting,) = (each for each in settings_of({"": option}) if each.key == "cooling_ms")
    assert isinstance(setting, Setting)
    assert setting.value({}, {"FLYBALL_COOLING_MS": "1.5"}, {}, {}) == 1.5
    assert setting.value({}, {}, {"cooling_ms": 1.5}, {}) == 1.5
    words = "must be a number of ms from 0 to 9, not 10"
    entries: tuple[Callable[[], object], ...] = (
        lambda: parser.parse_args([*MISSING, "--cooling-ms", "10"]),
        lambda: adapter.validate_json(json.dumps({"cooling_ms": 10})),
        lambda: setting.value({}, {}, {"cooling_ms": 10}, {}),
    )
    for enter in entries:
        with pytest.raises(ValueError, match=words):
            enter()


def test_a_number_that_is_none_is_refused_by_the_same_words_too() -> None:
    option = options_of(PlanOptions)["tail_ms"]
    for value in (math.nan, math.inf):
        said = {words_of(enter, option, value) for enter in entries_of(option)}
        assert said == {f"must be {option.must_be}, not {value}"}
    assert replace(option, bounds=(0, None)).must_be == "a number of ms, at least 0 (20)"
