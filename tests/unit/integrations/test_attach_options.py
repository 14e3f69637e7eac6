"""The options that every attach takes: which there are, what is refused, what is registered."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra 'torch'")

from flyball_integrations.shared.attach_options import (
    ATTACHED_OPTIONS,
    AttachOptions,
    PlanningOptions,
    check_options,
    registered_fields,
)
from flyball_profiles.clock_transitions import ClockTransitions
from flyball_profiles.gpu_windows import load_gpu_window
from flyball_wire.messages import JobRegistration

GIVEN: dict[str, Any] = {
    "gpu_type": "a100",
    "blocking_power_w": [70, 84],
    "policy": "frontier",
    "reconfigure": "greedy",
    "target": "slowdown:0.1",
    "effort": "low",
    "profiling": "online",
    "profiling_slowdown": 0.05,
    "adaptation": "frontier",
    "reserve": 0.01,
    "transition_ms": 5.0,
    "transitions": ClockTransitions.exact(0.005),
    "gpus_at_once": 8,
    "gpus_in_node": 16,
    "early_requests": False,
    "max_switches": 40,
    "min_dwell_ms": 50.0,
    "tail_ms": 20.0,
    "transfer_ms": (1.5, 2.0),
    "activation_bytes": (100, 200),
    "free_memory_bytes": (1000,),
}


def attach(engine: object, *, job_id: str, **options: Unpack[AttachOptions]) -> None:
    """As an integration's."""
    check_options(attach, options)


def test_type_checkers_know_each_option_that_is_declared() -> None:
    declared = {option.keyword for option in ATTACHED_OPTIONS.values()}
    assert declared == PlanningOptions.__optional_keys__


def test_what_is_given_is_registered_and_the_rest_has_the_wires_defaults() -> None:
    pipeline: dict[str, Any] = {"num_stages": 2, "num_microbatches": 4}
    plain = JobRegistration(**pipeline)
    nothing: Any = dict.fromkeys(GIVEN)
    assert JobRegistration(**pipeline, **registered_fields({})) == plain
    assert JobRegistration(**pipeline, **registered_fields(nothing)) == plain
    for left_out in ("transition_ms", "transitions"):
        given: Any = {name: value for name, value in GIVEN.items() if name != left_out}
        found = JobRegistration(**pipeline, **registered_fields(given))
        for name, value in given.items():
            expected = (70, 84) if name == "blocking_power_w" else value
            assert getattr(found, "gpu" if name == "gpu_type" else name) == expected


def test_options_that_do_not_go_together_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match=r"^transition_ms: excludes transitions: "):
        registered_fields({"transition_ms": 5.0, "transitions": ClockTransitions.exact(0.005)})
    with pytest.raises(ValueError, match=r"^reserve: is for policy frontier, not uniform$"):
        registered_fields({"policy": "uniform", "reserve": 0.1})


def test_times_of_clock_changes_may_be_a_file(tmp_path: Path) -> None:
    a40 = load_gpu_window("a40")
    with resources.as_file(resources.files("flyball_profiles") / "gpus" / "a40.toml") as path:
        for given in (path, str(path)):
            assert registered_fields({"transitions": given}) == {"transitions": a40.transitions}
    with pytest.raises(ValueError, match=r"none\.toml: No such file"):
        registered_fields({"transitions": str(tmp_path / "none.toml")})


@pytest.mark.parametrize("given", [np.float32(80), np.array([80.0]), (np.int64(80),), 80])
def test_one_or_several_blocking_powers_of_numpy_too_become_plain_numbers(given: object) -> None:
    options: Any = {"blocking_power_w": given}
    fields = registered_fields(options)
    assert fields == {"blocking_power_w": (80.0,)}
    assert type(fields["blocking_power_w"][0]) is float


@pytest.mark.parametrize(
    "given",
    [
        *("70,84", "70", b"70", True, np.bool_(True), [70.0, None], ["70"], {0: 70.0}, object()),
        *(np.array(True), float("nan"), [70.0, float("inf")]),
    ],
)
def test_a_blocking_power_that_is_no_number_is_refused_by_name(given: object) -> None:
    options: Any = {"blocking_power_w": given}
    with pytest.raises(ValueError, match="blocking_power_w: must be"):
        registered_fields(options)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("tagret", "did you mean 'target'?"),
        ("job", "did you mean 'job_id'?"),
        ("frobnicate", "see flyball_integrations.shared.attach_options"),
    ],
)
def test_an_option_that_there_is_not_is_named_with_the_function(name: str, hint: str) -> None:
    wrong: Any = {name: "fastest"}
    with pytest.raises(TypeError) as refused:
        attach(object(), job_id="job", **wrong)
    function = f"{__name__}.attach()"
    assert str(refused.value) == f"{function} got an unexpected keyword argument '{name}'; {hint}"
