from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyball_wire import closed_loop, messages, plan_options
from flyball_wire.codec import decode, decode_list, encode
from flyball_wire.errors import CodecError

WIRE_TYPES = [
    wire_type
    for module in (messages, closed_loop, plan_options)
    for wire_type in vars(module).values()
    if is_dataclass(wire_type) and wire_type.__module__ == module.__name__
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


def objects_of(wire_type: Any) -> st.SearchStrategy[Any]:  # noqa: ANN401 - any wire type
    """Instances of a wire type, all fields drawn."""
    hints = get_type_hints(wire_type)
    return st.builds(wire_type, **{f.name: values_of(hints[f.name]) for f in fields(wire_type)})


@pytest.mark.parametrize("wire_type", WIRE_TYPES)
@settings(max_examples=30)
@given(data=st.data())
def test_every_wire_type_comes_back_as_it_went(wire_type: type[Any], data: st.DataObject) -> None:
    sent = data.draw(objects_of(wire_type))
    received = decode(wire_type, json.loads(json.dumps(encode(sent), allow_nan=False)))
    assert received == sent


def job_view() -> dict[str, Any]:
    rank = messages.RankView(
        rank=0,
        stage=0,
        host="host-a",
        gpu_name="emulated A100",
        gpu_uuid="EMULATED-1",
        emulated=True,
        client_version="0.1.0",
        acknowledged_version=None,
        current_step=None,
    )
    view = messages.JobView(
        job_id="gpt",
        state="planned",
        registration=messages.JobRegistration(num_stages=1, num_microbatches=4),
        ranks=(rank, rank, rank),
        newest_version=1,
        active_version=None,
        problem=None,
        created_at="2026-01-01T00:00:00Z",
    )
    encoded: dict[str, Any] = encode(view)
    return encoded


def test_an_error_names_the_path_of_the_field() -> None:
    data = job_view()
    data["ranks"][2]["stage"] = "two"
    with pytest.raises(CodecError, match=r"^ranks\[2\]\.stage must be a whole number, not text$"):
        decode(messages.JobView, data)


def test_an_error_in_a_list_names_the_index_first() -> None:
    broken = job_view()
    del broken["state"]
    with pytest.raises(CodecError, match=r"^\[1\]\.state is missing$"):
        decode_list(messages.JobView, [job_view(), broken])
    with pytest.raises(CodecError, match="a list of JobView was expected, not an object"):
        decode_list(messages.JobView, {})


def test_fields_that_are_not_known_are_ignored() -> None:
    data = job_view() | {"new_in_a_later_version": [1]}
    assert decode(messages.JobView, data) == decode(messages.JobView, job_view())


def test_fields_with_a_default_may_be_missing() -> None:
    assert decode(messages.Problem, {"detail": "no"}) == messages.Problem(detail="no")


def test_the_configuration_for_pydantic_does_not_cross() -> None:
    assert set(encode(messages.Acknowledgement(version=1, current_step=2))) == {
        "version",
        "current_step",
        "run_id",
    }


MEASUREMENT = {"step": 1, "plan_version": None, "time_s": 1.5, "energy_j": None}


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("step", True, "step must be a whole number, not true or false"),
        ("step", 1.0, "step must be a whole number, not a number"),
        ("step", None, "step must be a whole number, not null"),
        ("plan_version", "1", "plan_version must be a whole number, not text"),
        ("time_s", True, "time_s must be a number, not true or false"),
        ("time_s", float("nan"), "time_s must be a finite number, not nan"),
        ("energy_j", float("inf"), "energy_j must be a finite number, not inf"),
        ("time_s", 10**400, "time_s is too large a number"),
        ("time_s", [1.0], "time_s must be a number, not a list"),
    ],
)
def test_numbers_are_taken_strictly(field: str, value: object, text: str) -> None:
    with pytest.raises(CodecError, match=f"^{text}$"):
        decode(messages.StepMeasurement, MEASUREMENT | {field: value})


def test_a_whole_number_serves_where_a_number_is_wanted() -> None:
    measured = decode(messages.StepMeasurement, MEASUREMENT | {"time_s": 2})
    assert measured.time_s == 2.0
    assert isinstance(measured.time_s, float)


RANK_PLAN: dict[str, Any] = {
    "job_id": "gpt",
    "version": 1,
    "stage": 0,
    "first_step": None,
    "instructions": [["forward", 0, 1410], ["backward", 0, 1395, 1]],
    "predicted_iteration_time_s": 2.0,
}


def test_instructions_become_tuples_of_text_and_whole_numbers() -> None:
    plan = decode(messages.RankPlan, RANK_PLAN)
    assert plan.instructions == (("forward", 0, 1410), ("backward", 0, 1395, 1))


def test_a_member_that_fits_no_type_of_a_union_is_refused() -> None:
    data = RANK_PLAN | {"instructions": [["forward", 0, 1410.5]]}
    with pytest.raises(
        CodecError, match=r"^instructions\[0\]\[2\] must be text or a whole number, not a number$"
    ):
        decode(messages.RankPlan, data)


def test_free_form_parts_refuse_numbers_that_json_does_not_know() -> None:
    data = {"job_id": "gpt", "version": 1, "first_step": 1, "created_at": "now"}
    with pytest.raises(CodecError, match=r"^plan\.stages\[1\] must be a finite number"):
        decode(messages.PlanView, data | {"plan": {"stages": [1, float("nan")]}})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": [1.0, float("inf")]}, r"a\[1\] must be a finite number"),
        ({1: "a"}, "has a key that is not text: 1"),
        ({"a": {2, 3}}, r"a has no JSON form \(set\)"),
        (
            {"a": [{"b": [[1], [math.inf]]}]},
            r"^a\[0\]\.b\[1\]\[0\] must be a finite number, not inf$",
        ),
        ([0.5, math.nan], r"^\[1\] must be a finite number"),
        (math.inf, "^the value must be a finite number"),
        ({1: "a"}, "^the object has a key"),
        ({"a": {1: "a"}}, "^a has a key"),
    ],
)
def test_what_has_no_json_form_is_not_sent(value: object, text: str) -> None:
    with pytest.raises(CodecError, match=text):
        encode(value)


@dataclass(frozen=True, kw_only=True)
class Guarded:
    pair: tuple[int, str]
    limit: int = 1

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise ValueError("limit must be at least 1")


def test_a_type_that_guards_its_values_is_heard() -> None:
    with pytest.raises(CodecError, match=r"^Guarded: limit must be at least 1$"):
        decode(Guarded, {"pair": [1, "a"], "limit": 0})


def test_tuples_of_fixed_length_keep_it() -> None:
    assert decode(Guarded, {"pair": [1, "a"]}).pair == (1, "a")
    with pytest.raises(CodecError, match=r"^pair must have 2 items, not 3$"):
        decode(Guarded, {"pair": [1, "a", "b"]})


@pytest.mark.parametrize("data", [None, [], "text", 1])
def test_what_is_no_object_at_all_is_named_by_its_type(data: object) -> None:
    with pytest.raises(CodecError, match=r"^PlanVersion must be an object, not "):
        decode(messages.PlanVersion, data)


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


@dataclass(frozen=True, kw_only=True)
class _Columns:
    counts: tuple[int, ...] = ()
    times_s: tuple[float, ...] = ()
    rows: tuple[tuple[str | int, ...], ...] = ()
    clocks_mhz: tuple[tuple[int, ...], ...] = ()
    places: tuple[int | None, ...] = ()


@pytest.mark.parametrize(
    ("field", "items", "text"),
    [
        ("counts", [1, True], r"counts\[1\] must be a whole number, not true or false"),
        ("counts", [1, 2.0], r"counts\[1\] must be a whole number, not a number"),
        ("times_s", [0.5, float("nan")], r"times_s\[1\] must be a finite number, not nan"),
        ("times_s", [0.5, "1"], r"times_s\[1\] must be a number, not text"),
        ("rows", [["forward", 0], ["backward", None]], r"rows\[1\]\[1\] must be text or a whole"),
        ("rows", [["forward", 0], "backward"], r"rows\[1\] must be a list, not text"),
        ("clocks_mhz", [[1], [2, "3"]], r"clocks_mhz\[1\]\[1\] must be a whole number, not text"),
        ("places", [None, "3"], r"places\[1\] must be a whole number, not text"),
    ],
)
def test_an_item_of_a_long_list_that_is_wrong_is_named_by_its_place(
    field: str, items: list[object], text: str
) -> None:
    with pytest.raises(CodecError, match=text):
        decode(_Columns, {field: items})


def test_whole_numbers_among_numbers_are_taken_as_numbers() -> None:
    decoded = decode(_Columns, {"times_s": [0.5, 2]})
    assert decoded.times_s == (0.5, 2.0)
    assert [type(time_s) for time_s in decoded.times_s] == [float, float]
