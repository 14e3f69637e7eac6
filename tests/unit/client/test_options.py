"""Options: what their declaration refuses, in which words, and what goes together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, get_type_hints

import pytest

from flyball_profiles.clock_transitions import ClockTransitions
from flyball_wire.messages import JobSpec
from flyball_wire.options import NumValues, Option, OptionError, options_of
from flyball_wire.plan_options import (
    GivenOptions,
    PlanOptions,
    TargetChange,
    check_together,
)
from flyball_wire.targets import TARGET_FORM, parse_target

DECLARED = options_of(JobSpec)


# ------------------------------------------------------------------ single values


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("reserve", 0, 0.0),
        ("reserve", 0.5, 0.5),
        ("max_switches", 2.0, 2),
        ("free_memory_bytes", 2e9, (2_000_000_000,)),
        ("transfer_ms", (1, 2.5), (1.0, 2.5)),
        ("extra_forwards", [3, 0], (3, 0)),
        ("policy", "uniform", "uniform"),
        ("early_requests", False, False),
        ("target", "slowdown:5%", "slowdown:5%"),
        ("gpu", "a100", "a100"),
    ],
)
def test_a_value_is_read_as_its_field_has_it(name: str, given: object, value: object) -> None:
    read = DECLARED[name].read(given)
    assert (read, type(read)) == (value, type(value)) or name == "policy"
    text = ",".join(map(str, given)) if isinstance(given, tuple | list) else str(given)
    assert DECLARED[name].read_text(text) == value


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("num_stages", 0, "must be a whole number from 1 to 4096, not 0"),
        ("num_microbatches", 65_537, "must be a whole number from 1 to 65536, not 65537"),
        ("num_ranks", 1_048_577, "must be a whole number from 1 to 1048576, not 1048577"),
        ("reserve", 0.51, "must be a share from 0 to 0.5 (0.01), not 0.51"),
        ("reserve", -0.01, "must be a share from 0 to 0.5 (0.01), not -0.01"),
        ("reserve", math.nan, "must be a share from 0 to 0.5 (0.01), not nan"),
        ("reserve", "much", "must be a share from 0 to 0.5 (0.01), not 'much'"),
        ("reserve", True, "must be a share from 0 to 0.5 (0.01), not true"),
        ("reserve", None, "must be a share from 0 to 0.5 (0.01), not null"),
        ("profiling_slowdown", 0, "must be a share above 0 and at most 1 (0.1), not 0"),
        ("max_switches", -1, "must be a whole number, at least 0 (40), not -1"),
        ("max_switches", 1.5, "must be a whole number, at least 0 (40), not 1.5"),
        ("max_switches", 10**500, "must be a whole number, at least 0 (40), not a number beyond"
         " 10^18"),
        ("max_switches", 2**53, "must be a whole number, at least 0 (40), not 9007199254740992"),
        ("gpus_at_once", 129, "must be a whole number from 1 to 128 (8), not 129"),
        ("tail_ms", math.inf, "must be a number of ms from 0 to 600000 (20), not inf"),
        ("transfer_ms", [1.0, -1], "must be a number of ms from 0 to 10000, or one for each pair of"
         " neighbours (1.5 or 1.5,2), not -1"),
        ("extra_forwards", [1, 0.5], "must be whole numbers, at least 0, one per stage (3,2,1,0),"
         " not 0.5"),
        ("extra_forwards", [], "must be whole numbers, at least 0, one per stage (3,2,1,0), not a"
         " list"),
        ("activation_bytes", {}, "must be a whole number of bytes, at least 1, or one per stage,"
         " not a dict"),
        ("effort", "High", "must be one of low, normal, high, not 'High'"),
        ("effort", ["low"], "must be one of low, normal, high, not a list"),
        ("early_requests", 1, "must be true or false, not 1"),
        ("gpu", "a\n", "must be printable text of at most 256 characters, not 'a\\n'"),
        ("gpu", "x" * 257, "must be printable text of at most 256 characters, not"
         f" '{'x' * 60}...'"),
        ("target", "soon", f"must be {TARGET_FORM}, not 'soon'"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_used_says_what_can(name: str, given: object, message: str) -> None:
    with pytest.raises(OptionError) as refused:
        DECLARED[name].read(given)
    assert (refused.value.field, refused.value.message) == (name, message)
    assert str(refused.value) == f"{name}: {message}"


def test_a_slowdown_may_be_given_in_percent() -> None:
    assert parse_target("slowdown:10%") == parse_target("slowdown:0.1")
    assert parse_target("slowdown:100%").value == 1.0


@pytest.mark.parametrize(("number", "percent"), [("1", "100"), ("5", "500"), ("2.5", "250")])
def test_a_share_of_one_or_more_is_taken_for_percent_without_its_sign(
    number: str, percent: str
) -> None:
    with pytest.raises(OptionError) as refused:
        parse_target(f"slowdown:{number}")
    assert refused.value.message == (
        f"'slowdown:{number}' would be {percent} %; write 'slowdown:{number}%' or"
        f" 'slowdown:{percent}%'"
    )


@pytest.mark.parametrize(
    "text",
    [
        *("", "soon", "fastest:1", "least-energy:", "slowdown", "slowdown:", "slowdown:x"),
        *(
            "slowdown:-0.1",
            "slowdown:nan",
            "slowdown:%",
            "slowdown:5%%",
            "deadline:5%",
            "deadline:0",
            "deadline:inf",
            "power:0",
            "power:limits",
            "deadline:limit",
        ),
    ],
)
def test_what_is_no_target_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(OptionError) as refused:
        parse_target(text)
    assert refused.value.field == "target"
    assert refused.value.message == f"must be {TARGET_FORM}, not {text!r}"


# ------------------------------------------------------------------ together


@pytest.mark.parametrize(
    ("given", "field", "message"),
    [
        ({"policy": "envelope", "max_switches": 3}, "max_switches", "is for policy frontier, not "
         "envelope"),
        ({"policy": "uniform", "reserve": 0.1}, "reserve", "is for policy frontier, not uniform"),
        ({"target": "power:1", "min_dwell_ms": 3.0}, "min_dwell_ms", "is for targets of time, not"
         " for power:"),
        ({"checkpoint": "always"}, "checkpoint", "is for schedule torchgpipe, not 1f1b"),
        ({"extra_forwards": (1, 0, 0)}, "extra_forwards", "is for schedule envpipe, not 1f1b"),
        ({"order": ()}, "order", "is for schedule explicit, not 1f1b"),
        ({"virtual_stages": ((0,),)}, "virtual_stages", "goes with an order only"),
        ({"transition_ms": 5.0, "transitions": ClockTransitions.exact(0.005)}, "transition_ms",
         "excludes transitions: give one of the two"),
        ({"activation_bytes": (1,)}, "free_memory_bytes",
         "must be given: activation_bytes and free_memory_bytes go together"),
        ({"blocking_power_w": (1.0, 2.0)}, "blocking_power_w",
         "has 2 values for 3 stages; give one, or one per stage"),
        ({"transfer_ms": (1.0,) * 3}, "transfer_ms",
         "has 3 values for 3 stages; give one, or one for each pair of neighbours, 2"),
        ({"schedule": "envpipe", "extra_forwards": (0,)}, "extra_forwards",
         "has 1 values for 3 stages; give one per stage"),
    ],
)  # fmt: skip
def test_options_that_do_not_go_together_are_refused(
    given: dict[str, Any], field: str, message: str
) -> None:
    with pytest.raises(OptionError) as refused:
        check_together(PlanOptions(**given), 3)
    assert (refused.value.field, refused.value.message) == (field, message)


def test_what_fits_is_taken_and_lengths_wait_for_the_stages() -> None:
    for powers_w in ((1.0,), (1.0, 2.0, 3.0)):
        check_together(PlanOptions(blocking_power_w=powers_w, transfer_ms=(1.0, 2.0)), 3)
    check_together(PlanOptions(blocking_power_w=(1.0, 2.0)))


@pytest.mark.parametrize("name", ["effort", "early_requests", "reconfigure"])
def test_a_job_may_keep_what_another_policy_uses_but_nobody_gives_it_for_nothing(name: str) -> None:
    other = "constant" if name == "reconfigure" else "envelope"
    options: Any = PlanOptions(**{"policy": other, "reconfigure": "greedy"})  # type: ignore[arg-type]  # names
    check_together(options, 1)
    with pytest.raises(OptionError, match=f"^{name}: is for polic"):
        check_together(options, 1, {name})


# ------------------------------------------------------------------ declarations


def test_every_field_is_declared_with_a_meaning() -> None:
    assert set(options_of(PlanOptions)) == {field.name for field in fields(PlanOptions)}
    for declared in DECLARED.values():
        assert declared.text
        assert not declared.text.endswith(".")
        assert bool(declared.limits) == (declared.kind in {int, float})


def test_a_change_of_target_reads_as_the_registration_does() -> None:
    for name, declared in options_of(TargetChange).items():
        assert declared.must_be == DECLARED[name].must_be


def test_what_a_script_may_give_is_what_is_declared() -> None:
    """`GivenOptions` is written for type checkers; its names and types follow the declaration."""
    given = get_type_hints(GivenOptions)
    declared = {
        each.keyword: each
        for each in options_of(PlanOptions).values()
        if each.is_readable and not each.is_frameworks
    }
    assert set(given) == set(declared)
    for keyword, option in declared.items():
        assert given[keyword] == _as_given(option), keyword


def _as_given(option: Option) -> object:
    kind: Any = option.kind
    if option.num_values != NumValues.ONE:
        return Sequence[kind] | kind | None
    return kind | str | None if option.names else kind | None
