from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyball_profiles.clock_transitions import ClockTransitions
from flyball_profiles.gpu_conditions import GpuConditions
from flyball_wire import (
    closed_loop,
    measurements,
    messages,
    orders,
    plan_options,
    predictions,
    savings,
)
from flyball_wire.codec import decode, decode_list, encode
from flyball_wire.errors import CodecError
from flyball_wire.measurements import MeasurementBatch, StepMeasurement

WIRE_TYPES = [
    wire_type
    for module in (
        messages,
        measurements,
        closed_loop,
        orders,
        plan_options,
        predictions,
        savings,
    )
    for wire_type in vars(module).values()
    if isinstance(wire_type, type)
    and is_dataclass(wire_type)
    and wire_type.__module__ == module.__name__
]

finite = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


def values_of(hint: Any) -> st.SearchStrategy[Any]:  # noqa: ANN401 - annotations have no type
    """Values that an annotation of the wire allows."""
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return st.sampled_from(hint)
    simple: dict[Any, st.SearchStrategy[Any]] = {
        Any: json_values,
        bool: st.booleans(),
        float: finite,
        int: st.integers(),
        str: st.text(),
        type(None): st.none(),
        ClockTransitions: clock_transitions(),
        GpuConditions: gpu_conditions(),
    }
    if hint in simple:
        return simple[hint]
    if is_dataclass(hint):
        return objects_of(hint)
    members = get_args(hint)
    if get_origin(hint) is tuple:
        alike = st.lists(values_of(members[0]), max_size=3).map(tuple)
        return alike if members[-1] is Ellipsis else st.tuples(*map(values_of, members))
    if get_origin(hint) is dict:
        return st.dictionaries(st.text(), values_of(members[1]), max_size=3)
    return st.one_of(*map(values_of, members))


@st.composite
def clock_transitions(draw: st.DrawFn) -> ClockTransitions:
    """Times of clock changes whose percentiles rise, as the type asks for."""
    times_s = [sorted(draw(st.lists(st.floats(0, 10), min_size=3, max_size=3))) for _ in range(3)]
    has_calls = draw(st.booleans())
    return ClockTransitions(
        up_p5_s=times_s[0][0],
        up_p50_s=times_s[0][1],
        up_p95_s=times_s[0][2],
        down_p5_s=times_s[1][0],
        down_p50_s=times_s[1][1],
        down_p95_s=times_s[1][2],
        call_p50_s=times_s[2][0] if has_calls else None,
        call_p95_s=times_s[2][1] if has_calls else None,
        queues_in_node=draw(st.none() | st.booleans()),
        starts_settled=draw(st.booleans()),
    )


def gpu_conditions() -> st.SearchStrategy[GpuConditions]:
    """Conditions within their bounds."""
    return st.builds(
        GpuConditions,
        power_limit_w=st.none() | st.floats(0, 1e6),
        memory_clock_mhz=st.none() | st.integers(0, 10_000),
        power_profile=st.none() | st.sampled_from(["none", "max-q+llm-training"]),
        ecc=st.none() | st.booleans(),
    )


_OBJECTS: dict[Any, st.SearchStrategy[Any]] = {}


def objects_of(wire_type: Any) -> st.SearchStrategy[Any]:  # noqa: ANN401 - any wire type
    """Instances of a wire type, all fields drawn."""
    if wire_type not in _OBJECTS:
        hints = get_type_hints(wire_type)
        of_fields = {field.name: values_of(hints[field.name]) for field in fields(wire_type)}
        _OBJECTS[wire_type] = st.builds(wire_type, **of_fields)
    return _OBJECTS[wire_type]


@pytest.mark.parametrize("wire_type", WIRE_TYPES)
@settings(max_examples=8)
@given(data=st.data())
def test_every_wire_type_comes_back_as_it_went(wire_type: type[Any], data: st.DataObject) -> None:
    sent = data.draw(objects_of(wire_type))
    received = decode(wire_type, json.loads(json.dumps(encode(sent), allow_nan=False)))
    assert received == sent


@dataclass(frozen=True, kw_only=True)
class Guarded:
    pair: tuple[int, str]
    limit: int = 1

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise ValueError("limit must be at least 1")


@dataclass(frozen=True, kw_only=True)
class Columns:
    counts: tuple[int, ...] = ()
    times_s: tuple[float, ...] = ()
    rows: tuple[tuple[str | int, ...], ...] = ()
    clocks_mhz: tuple[tuple[int, ...], ...] = ()
    places: tuple[int | None, ...] = ()


MEASUREMENT = {"step": 1, "plan_version": None, "time_s": 1.5, "energy_j": None}
PLAN = {"job_id": "gpt", "version": 1, "first_step": 1, "created_at": "now", "plan": {}}
VALID: dict[Any, dict[str, Any]] = {
    StepMeasurement: MEASUREMENT,
    MeasurementBatch: {"steps": [MEASUREMENT]},
    messages.PlanView: PLAN,
    Guarded: {"pair": [1, "a"]},
    Columns: {},
}


@pytest.mark.parametrize(
    ("wire_type", "changes", "text"),
    [
        (StepMeasurement, {"step": True}, "step must be a whole number, not true or"),
        (StepMeasurement, {"step": 1.0}, "step must be a whole number, not a number"),
        (StepMeasurement, {"plan_version": "1"}, "plan_version must be a whole number"),
        (StepMeasurement, {"time_s": True}, "time_s must be a number, not true or"),
        (StepMeasurement, {"time_s": math.nan}, "time_s must be a finite number, not"),
        (StepMeasurement, {"energy_j": math.inf}, "energy_j must be a finite number"),
        (StepMeasurement, {"time_s": 10**400}, "time_s is too large a number"),
        (StepMeasurement, {"time_s": [1.0]}, "time_s must be a number, not a list"),
        (
            MeasurementBatch,
            {"steps": [MEASUREMENT, MEASUREMENT | {"step": "two"}]},
            r"steps\[1\]\.step must be a whole number, not text$",
        ),
        (messages.PlanView, {"plan": {"a": [1, math.nan]}}, r"plan\.a\[1\] must be a finite"),
        (Guarded, {"limit": 0}, "Guarded: limit must be at least 1$"),
        (Guarded, {"pair": [1, "a", "b"]}, "pair must have 2 items, not 3$"),
        (Columns, {"counts": [1, True]}, r"counts\[1\] must be a whole number, not true"),
        (Columns, {"counts": [1, 2.0]}, r"counts\[1\] must be a whole number, not a number"),
        (Columns, {"times_s": [0.5, math.nan]}, r"times_s\[1\] must be a finite number, not nan"),
        (Columns, {"times_s": [0.5, "1"]}, r"times_s\[1\] must be a number, not text"),
        (Columns, {"rows": [["f", 0], ["b", None]]}, r"rows\[1\]\[1\] must be text or a whole"),
        (Columns, {"rows": [["f", 0], "b"]}, r"rows\[1\] must be a list, not text"),
        (Columns, {"clocks_mhz": [[1], [2, "3"]]}, r"clocks_mhz\[1\]\[1\] must be a whole number"),
        (Columns, {"places": [None, "3"]}, r"places\[1\] must be a whole number, not text"),
    ],
)
def test_a_wrong_value_is_refused_with_the_path_of_its_field(
    wire_type: type[Any], changes: dict[str, object], text: str
) -> None:
    decode(wire_type, VALID[wire_type])
    with pytest.raises(CodecError, match=f"^{text}"):
        decode(wire_type, VALID[wire_type] | changes)


def test_an_error_in_a_list_names_the_index_first() -> None:
    with pytest.raises(CodecError, match=r"^\[1\]\.step is missing$"):
        decode_list(StepMeasurement, [MEASUREMENT, {}])
    with pytest.raises(CodecError, match="a list of StepMeasurement was expected, not an object"):
        decode_list(StepMeasurement, {})


def test_unknown_fields_are_ignored_and_fields_with_a_default_may_be_missing() -> None:
    data = {"detail": "no", "new_in_a_later_version": [1]}
    assert decode(messages.Problem, data) == messages.Problem(detail="no")


def test_a_whole_number_is_accepted_where_a_number_is_expected() -> None:
    times_s = decode(Columns, {"times_s": [0.5, 2]}).times_s
    measured = decode(StepMeasurement, MEASUREMENT | {"time_s": 2})
    assert (*times_s, measured.time_s) == (0.5, 2.0, 2.0)
    assert {type(time_s) for time_s in (*times_s, measured.time_s)} == {float}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": {2, 3}}, r"a has no JSON form \(set\)"),
        (
            {"a": [{"b": [[1], [math.inf]]}]},
            r"^a\[0\]\.b\[1\]\[0\] must be a finite number, not inf$",
        ),
        ([0.5, math.nan], r"^\[1\] must be a finite number"),
        (math.inf, "^the value must be a finite number"),
        ({1: "a"}, "^the object has a key that is not text: 1"),
        ({"a": {1: "a"}}, "^a has a key"),
    ],
)
def test_what_has_no_json_form_is_not_sent(value: object, text: str) -> None:
    with pytest.raises(CodecError, match=text):
        encode(value)


@pytest.mark.parametrize("data", [None, [], "text", 1])
def test_what_is_no_object_at_all_is_named_by_its_type(data: object) -> None:
    with pytest.raises(CodecError, match=r"^PlanVersion must be an object, not "):
        decode(messages.PlanVersion, data)


def test_what_nests_deeper_than_python_can_is_refused() -> None:
    plan: dict[str, object] = {}
    for _ in range(5000):
        plan = {"a": plan}
    with pytest.raises(CodecError, match="PlanView nests too deeply"):
        decode(messages.PlanView, PLAN | {"plan": plan})


@given(st.sampled_from(WIRE_TYPES), json_values)
def test_any_json_is_decoded_or_refused_and_nothing_else_happens(
    wire_type: type[Any], data: object
) -> None:
    try:
        decode(wire_type, data)
    except CodecError:
        return
    assert isinstance(data, dict)


@pytest.mark.parametrize("wrong", ["Low", True, 1.0, None, ["low"]])
def test_a_name_is_one_of_those_known(wrong: object) -> None:
    job = {"num_stages": 1, "num_microbatches": 4}
    read = decode(messages.JobRegistration, job | {"effort": "low"})
    assert read.effort is plan_options.Effort.LOW
    with pytest.raises(CodecError, match="effort must be one of low, normal, high"):
        decode(messages.JobRegistration, job | {"effort": wrong})
