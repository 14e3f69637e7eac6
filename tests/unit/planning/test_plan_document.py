"""Plan documents: written, read back, held against profiles, and refused with what is wrong."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyball_pipeline.errors import PipelineError
from flyball_profiles.stage_profile import StageProfile
from flyball_server.planning.documents.plan_document import plan_document, plan_from_document
from flyball_server.planning.documents.recorded_plan import model_of_plan
from flyball_server.planning.model.simulator import simulate
from flyball_server.planning.planner import PlanRequest, make_plan
from flyball_server.planning.stragglers.slowed_pipelines import make_slowed_plan
from flyball_wire.plan_options import Policy
from flyball_wire.plans.plan import PipelinePlan, Slowdown

from .tiny_pipelines import (
    B,
    F,
    I,
    W,
    any_requests,
    delays,
    equal_profile,
    merged_profile,
    profile_of,
    refuses,
    replaced,
    request_of,
    slowed_request,
)

PLAN = make_plan(request_of(equal_profile(2), 2, policy=Policy.ENVELOPE)).plan
TRANSITIONS = delays((0.1, 0.2, 0.3), (0.1, 0.2, 0.4), starts_settled=False)
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**400, -(10**400), 2**63])
    | st.floats()
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=8,
)


def fresh_document() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(plan_document(PLAN, solve_s=0.5)))
    return document


def test_a_missing_part_is_refused_by_its_name_or_has_a_default() -> None:
    optional = {"target", "num_stages", "lower_bound_j", "transition_ms", "num_switches", "solve_s"}
    unknown: dict[str, dict[str, Any]] = {
        "saving_sources": {"saving_sources": None},
        "stage_predictions": {"stages": ()},
    }
    for key in fresh_document():
        document = fresh_document()
        del document[key]
        if key in optional or key.endswith("_percent"):
            assert plan_from_document(document) == PLAN
        elif key in unknown:
            prediction = replace(PLAN.predicted, **unknown[key])
            assert plan_from_document(document) == replace(PLAN, prediction=prediction)
        else:
            with refuses(key):
                plan_from_document(document)


TIMES = asdict(TRANSITIONS)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"transition_ms": 250.0}, {"transition_ms": 250.0, "num_switches": 2}),
        ({"transitions": TRANSITIONS}, {"transition_ms": None, "num_switches": 2}),
        ({"transitions": delays(0.05, starts_settled=False)}, {"transition_ms": None}),
        (
            {"tail_ms": 20.0, "transfer_ms": (1.0, 2.0)},
            {"tail_ms": 20.0, "transfer_ms": [1.0, 2.0]},
        ),
        ({"policy": "frontier", "reserve": 0.02}, {"reserve": {"share": 0.02, "choice": None}}),
        ({"schedule": "pipedream", "policy": "baseline"}, {"weight_versions": [2, 1]}),
    ],
)
def test_what_a_plan_was_made_for_is_written_and_read_back(
    options: dict[str, Any], parts: dict[str, object]
) -> None:
    profile = equal_profile(1 + len(options.get("transfer_ms", (0.0,))))
    request = request_of(profile, 2, **{"policy": "envelope", **options})
    plan = make_plan(request).plan
    document = json.loads(json.dumps(plan_document(plan, solve_s=0.5)))
    assert {key: document[key] for key in parts} == parts
    assert plan_from_document(document) == plan


@pytest.mark.parametrize(
    ("transitions", "place", "message"),
    [
        (None, "", "is missing"),
        (TIMES | {"up_p5_s": -1.0}, "", "up_p5_s must be from 0"),
        (TIMES | {"up_p5_s": "fast"}, ".up_p5_s", "must be a valid number"),
        (TIMES | {"up_p5_s": 9.0}, "", "up_p50_s must be from up_p5_s"),
    ],
)
def test_wrong_times_of_clock_changes_are_refused(
    transitions: object, place: str, message: str
) -> None:
    document = fresh_document() | {"transition_ms": None, "transitions": transitions}
    with refuses(f"transitions{place}", message):
        plan_from_document(document)


SLOWED = make_slowed_plan(
    slowed_request(
        merged_profile(4),
        Slowdown(stage=0, slowdown=7 / 6, dp_rank=2),
        Slowdown(stage=0, slowdown=1.25, kind=F),
        num_pipelines=4,
    )
)


def test_slowdown_factors_and_pipelines_that_run_alike_are_read_back() -> None:
    assert SLOWED.is_separate
    document = json.loads(json.dumps(plan_document(SLOWED, solve_s=0.5)))
    rows = [pipeline["slowdowns"] for pipeline in document["pipelines"]]
    assert rows == [[[0, "forward", 1.25]], [[0, None, 7 / 6], [0, "forward", 1.25]]]
    assert [pipeline.get("dp_ranks") for pipeline in document["pipelines"]] == [[0, 1, 3], None]
    assert plan_from_document(document) == SLOWED


@pytest.mark.parametrize(
    ("entry", "place", "message"),
    [
        ([0, "fwd", 2.0], "[1]", "must be 'forward', 'backward'"),
        ([2, None, 2.0], "", "must name a stage of the plan"),
        ([0, None, 1e6], "", "must be a factor from 0.01 to 100, not 1e+06"),
    ],
)
def test_wrong_slowdown_factors_are_refused(entry: object, place: str, message: str) -> None:
    with refuses(f"slowdowns[0]{place}", message):
        plan_from_document(fresh_document() | {"slowdowns": [entry]})


def places(document: object) -> list[tuple[str | int, ...]]:
    """Return where the document holds anything, itself included."""
    parts: dict[str | int, object] = {}
    if isinstance(document, dict):
        parts = dict(document)
    elif isinstance(document, list):
        parts = dict(enumerate(document))
    return [(), *((key, *rest) for key, part in parts.items() for rest in places(part))]


def test_a_document_holds_what_the_plan_says() -> None:
    assert fresh_document() == {
        "policy": "envelope",
        "reconfigure": "balanced",
        "schedule": "1f1b",
        "target": "fastest",
        "num_stages": 2,
        "num_microbatches": 2,
        "blocking_power_w": [5.0, 5.0],
        "iteration_time_s": 9.0,
        "energy_j": 174.25,
        "baseline": {"iteration_time_s": 9.0, "energy_j": 190.0},
        "saving_percent": PLAN.predicted.saving_percent,
        "slowdown_percent": 0.0,
        "lower_bound_j": None,
        "gap_percent": None,
        "transition_ms": 0.0,
        "num_switches": 2,
        "saving_sources": {"imbalance_j": 0.0, "bubbles_j": 15.75, "iteration_time_j": 0.0},
        # 10 + 8 + 20 + 30 J and 2.25 s of waiting at 5 W, 80 J and 3 s of waiting.
        "stage_predictions": [
            {"busy_s": 6.75, "energy_j": 79.25},
            {"busy_s": 6.0, "energy_j": 95.0},
        ],
        "solve_s": 0.5,
        "stages": [
            [
                ["forward", 0, 1410],
                ["forward", 1, 1000],
                ["backward", 0, 1000],
                ["backward", 1, 1410],
            ],
            [
                ["forward", 0, 1410],
                ["backward", 0, 1410],
                ["forward", 1, 1410],
                ["backward", 1, 1410],
            ],
        ],
    }


@given(any_requests())
def test_a_plan_is_read_as_it_was_written_and_simulates_to_its_own_prediction(
    request: PlanRequest,
) -> None:
    plan = make_plan(request).plan
    read = plan_from_document(
        json.loads(json.dumps(plan_document(plan, solve_s=0.0), allow_nan=False))
    )
    assert read == plan
    simulation = simulate(*model_of_plan(request.profile, read))
    assert (simulation.iteration_time_s, simulation.energy_j) == (
        plan.iteration_time_s,
        plan.predicted.energy_j,
    )


@pytest.mark.parametrize(
    ("place", "value", "field"),
    [
        ((), [], "plan"),
        (("policy",), 7, "policy"),
        (("num_microbatches",), True, "num_microbatches"),
        (("blocking_power_w", 1), -5.0, "blocking_power_w[1]"),
        (("iteration_time_s",), math.nan, "iteration_time_s"),
        (("energy_j",), math.inf, "energy_j"),
        (("baseline", "energy_j"), 0.0, "baseline.energy_j"),
        (("lower_bound_j",), 0.0, "lower_bound_j"),
        (("stages", 1, 2), ["forward", 1], "stages[1][2][2]"),
        (("stages", 1, 2, 0), "sideways", "stages[1][2][0]"),
        (("stages", 1, 2, 2), 1410.5, "stages[1][2][2]"),
        (("virtual_stages",), [[0], 1], "virtual_stages[1]"),
        (("weight_versions",), [2, -1], "weight_versions[1]"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(
    place: tuple[str | int, ...], value: object, field: str
) -> None:
    with refuses(field):
        plan_from_document(replaced(fresh_document(), place, value))


@settings(max_examples=100)
@given(st.data())
def test_a_plan_with_any_value_anywhere_is_a_plan_or_refused(data: st.DataObject) -> None:
    document = fresh_document()
    place = data.draw(st.sampled_from(places(document)))
    try:
        plan = plan_from_document(replaced(document, place, data.draw(JSON_VALUES)))
    except PipelineError as error:
        assert error.field
        assert error.message
    else:
        plan_document(plan, solve_s=0.0)  # what was read can be written


RECORDED = make_plan(
    request_of(equal_profile(2), 2, blocking_power_w=(5.0, 7.0), policy=Policy.ENVELOPE)
).plan
POINTS = [(1410, 2.0, 1.0), (900, 2.5, 1.0)]


def test_on_another_profile_it_keeps_its_clocks_and_takes_that_ones_times() -> None:
    """Twice as slow everywhere, 1 J each: F 2 s, B 4 s; F1 and B0 of stage 0 at 1000 MHz.

    They have 4 s and 2 s of float and take 0.5 s and 1 s longer: 18 s as before.
    8 J, and waiting 18 - 12 - 1.5 s at 5 W on stage 0, 18 - 12 s at 7 W on stage 1.
    """
    stage = {F: [(1410, 2.0, 1.0), (1000, 2.5, 1.0)], B: [(1410, 4.0, 1.0), (1000, 5.0, 1.0)]}
    simulation = simulate(*model_of_plan(profile_of([stage, stage]), RECORDED))
    assert simulation.iteration_time_s == 18
    assert simulation.energy_j == 8 + 4.5 * 5 + 6 * 7


def test_a_plan_of_stages_in_another_order_than_the_models_keeps_their_places() -> None:
    """Stage 1 holds the begin of the model, stage 0 its end; one chunk each. 1 + 1 + 2 + 2 s."""
    stage = (("forward", 0), ("backward", 0))
    request = request_of(
        equal_profile(2),
        schedule="explicit",
        policy=Policy.BASELINE,
        order=(stage, stage),
        virtual_stages=((1,), (0,)),
    )
    plan = make_plan(request).plan
    model, assignment = model_of_plan(equal_profile(2), plan)
    assert model.schedule.virtual_stages == ((1,), (0,))
    assert simulate(model, assignment).iteration_time_s == plan.iteration_time_s == 6


def test_a_period_with_several_clocks_for_one_kind_of_a_stage_is_refused() -> None:
    request = request_of(equal_profile(2), 3, schedule="pipedream", policy=Policy.BASELINE)
    plan = make_plan(request).plan
    first, *others = plan.stages[0]
    mixed = (first._replace(frequency_mhz=1000), *others)
    with refuses("stages", "stage 0 runs forward at several clocks"):
        pipeline = PipelinePlan(stages=(mixed, *plan.stages[1:]))
        model_of_plan(equal_profile(2), replace(plan, pipelines=(pipeline,)))


@pytest.mark.parametrize(
    ("profile", "said"),
    [
        (equal_profile(3), "has 2 stages, the profile 3"),
        (profile_of([{F: POINTS, B: POINTS}] * 2), "forward of stage 0 runs at 1000 MHz"),
        (profile_of([{F: POINTS, I: POINTS, W: POINTS}] * 2), "has no backward of stage 0"),
    ],
)
def test_a_profile_that_lacks_something_of_the_plan_is_refused(
    profile: StageProfile, said: str
) -> None:
    with pytest.raises(PipelineError, match=said):
        model_of_plan(profile, RECORDED)


CUT_SHORT = PipelinePlan(stages=(RECORDED.stages[0][:-1], RECORDED.stages[1]))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"virtual_stages": ((0,),)}, "1 entries for 2 stages"),
        ({"virtual_stages": ((1,), (0,))}, "deadlocks"),
        ({"virtual_stages": ((), ())}, "stage 0 runs chunk 0, but has 0"),
        ({"weight_versions": (1,)}, "^weight_versions: "),
        ({"weight_versions": (0, 1)}, "^weight_versions: "),
        ({"pipelines": (CUT_SHORT,)}, "one forward and one backward"),
        ({"num_microbatches": 3}, "stage 0 does not run all 3 microbatches"),
    ],
)
def test_a_plan_that_cannot_run_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(PipelineError, match=said):
        model_of_plan(equal_profile(2), replace(RECORDED, **changes))
