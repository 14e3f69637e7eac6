"""Schedule `auto`: one target for all orders, bounds that exclude, and what is told of them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from flyball_pipeline.errors import PipelineError
from flyball_profiles.stage_profile import StageProfile
from flyball_server.planning.data_parallel import separate_pipelines
from flyball_server.planning.documents.plan_document import plan_document, plan_from_document
from flyball_server.planning.errors import TargetUnreachableError
from flyball_server.planning.frontier.solver import DeadlineSolver
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.order_advice import LEAST_SAVING, advise_order
from flyball_server.planning.planner import PlanRequest, make_plan
from flyball_server.planning.schedule_choice import (
    candidate_schedules,
)
from flyball_wire.plan_options import Effort
from flyball_wire.plans.plan import Plan

from .tiny_pipelines import B, F, I, W, profile_of, refuses
from .tiny_pipelines import request_of as tiny_request_of

pytestmark = pytest.mark.slow

CLOCKS_MHZ = (1400, 1200, 1000, 800)
TARGETS = ["fastest", "slowdown:0.1", "deadline:40", "least-energy", "power:700"]


def curve(time_s: float, energy_j: float) -> list[tuple[int, float, float]]:
    """Time and energy as a GPU has them: a part of each follows the clock."""
    return [
        (
            mhz,
            time_s * (0.4 + 0.6 * CLOCKS_MHZ[0] / mhz),
            energy_j * (0.5 + 0.5 * (mhz / CLOCKS_MHZ[0]) ** 2),
        )
        for mhz in CLOCKS_MHZ
    ]


def in_parts(num_stages: int) -> StageProfile:
    """Stages with chunks and split backwards, whose parts together take longer than a whole."""
    whole = {F: curve(1, 300), B: curve(1.9, 1900), I: curve(1.5, 450), W: curve(1.5, 450)}
    chunk = {F: curve(0.5, 150), B: curve(1, 900), I: curve(0.75, 225), W: curve(0.75, 225)}
    chunks = tuple(profile_of([chunk] * num_stages) for _ in range(2))
    return replace(profile_of([whole] * num_stages), chunks=chunks)


def request_of(target: str = "fastest", schedule: str = "auto") -> PlanRequest:
    options = {"blocking_power_w": (80.0,), "schedule": schedule, "target": target}
    return tiny_request_of(in_parts(3), 6, effort=Effort.LOW, **options)


WHOLE_OR_LOOPED = (
    *("1f1b", "envpipe", "gpipe", "zb-h1"),
    *("interleaved-1f1b", "looped-bfs", "interleaved-zb"),
)


@cache
def planned(target: str) -> Plan:
    """The plan of the best order; several tests look at the same one."""
    return make_plan(request_of(target)).plan


@pytest.mark.parametrize("target", TARGETS)
def test_no_order_that_was_left_out_could_have_been_better(target: str) -> None:
    plan = planned(target)
    by_name = {entry.schedule: entry for entry in plan.considered}
    assert tuple(by_name) == WHOLE_OR_LOOPED
    assert by_name[plan.schedule].energy_j == plan.predicted.energy_j
    assert plan.predicted.lower_bound_j is not None
    assert plan.predicted.lower_bound_j <= plan.predicted.energy_j * (1 + 1e-9)
    for entry in plan.considered:
        if entry.energy_j is not None and entry.lower_bound_j is not None:
            assert entry.lower_bound_j <= entry.energy_j * (1 + 1e-9)
        elif entry.lower_bound_j is not None:
            assert entry.lower_bound_j >= plan.predicted.energy_j
    if not target.startswith("power:"):
        planned_j = [entry.energy_j for entry in plan.considered if entry.energy_j is not None]
        assert plan.predicted.energy_j == min(planned_j)
    read = plan_from_document(plan_document(plan, solve_s=0.1))
    assert not read.is_separate
    assert read == plan


def test_for_a_power_budget_the_fastest_counts_and_then_the_least_energy() -> None:
    plan, budget_w = planned("power:700"), 700.0
    assert plan.predicted.energy_j <= budget_w * plan.iteration_time_s * (1 + 1e-9)
    found = [entry for entry in plan.considered if entry.energy_j and entry.iteration_time_s]
    fastest_s = min(entry.iteration_time_s or 0 for entry in found)
    assert plan.iteration_time_s == pytest.approx(fastest_s, rel=2e-4)
    as_fast_j = [
        entry.energy_j
        for entry in found
        if entry.iteration_time_s == pytest.approx(plan.iteration_time_s, rel=1e-9)
    ]
    assert plan.predicted.energy_j == min(energy_j or 0 for energy_j in as_fast_j)


def test_the_plan_is_what_the_chosen_order_by_its_name_would_give_at_the_same_deadline() -> None:
    chosen = planned("deadline:40")
    named = make_plan(request_of("deadline:40", chosen.schedule)).plan
    assert (named.predicted.energy_j, named.stages) == (chosen.predicted.energy_j, chosen.stages)


def test_orders_that_the_profile_or_memory_do_not_allow_say_why() -> None:
    request = replace(
        request_of(), profile=profile_of([{F: curve(1, 300), B: curve(2, 600)}] * 3)
    ).with_options(activation_bytes=(100,), free_memory_bytes=(150,))
    why_not = {entry.schedule: entry.why_not or "" for entry in make_plan(request).plan.considered}
    assert "has no backward_input of stage 0" in why_not["zb-h1"]
    assert "has no chunks" in why_not["interleaved-1f1b"]
    assert "keeps the activations of 6 microbatches on stage 0" in why_not["gpipe"]
    assert why_not["1f1b"] == why_not["envpipe"] == ""


def test_orders_may_be_named_and_1f1b_is_always_among_them() -> None:
    assert candidate_schedules("auto") == WHOLE_OR_LOOPED
    assert candidate_schedules("auto:zbv, dualpipev") == ("1f1b", "zbv", "dualpipev")
    plan = make_plan(request_of(schedule="auto:zbv,dualpipev")).plan
    assert [entry.schedule for entry in plan.considered] == ["1f1b", "zbv", "dualpipev"]
    named = make_plan(request_of(schedule="1f1b")).plan
    assert plan.considered[0].energy_j == named.predicted.energy_j


@pytest.mark.parametrize("name", ["auto:", "auto:pipedream", "auto:2f2b", "auto:zbv,auto"])
def test_an_order_that_cannot_be_compared_is_refused_with_those_that_can(name: str) -> None:
    with pytest.raises(PipelineError, match="known: 1f1b, envpipe") as error:
        make_plan(request_of(schedule=name))
    assert error.value.field == "schedule"
    assert all(known in error.value.message for known in (*WHOLE_OR_LOOPED, "zbv", "dualpipev"))


def test_a_target_that_no_order_meets_says_what_each_can() -> None:
    with pytest.raises(TargetUnreachableError, match=r"zb-h1: takes at least \d") as error:
        make_plan(request_of("deadline:1"))
    assert error.value.field == "target"


def test_a_policy_without_a_frontier_is_refused() -> None:
    with refuses("schedule", "auto compares frontiers"):
        make_plan(request_of().with_options(policy="envelope"))


def test_separate_pipelines_are_not_compared() -> None:
    with pytest.raises(PipelineError, match="name a schedule for separate pipelines"):
        separate_pipelines(request_of(), [in_parts(3), in_parts(3)])


@pytest.mark.parametrize("options", [{"max_switches": 6}, {"transition_ms": 100.0}])
def test_the_solver_of_an_orders_bound_plans_it_too(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    built: list[DeadlineSolver] = []
    build = DeadlineSolver.__init__

    def counted(solver: DeadlineSolver, model: PipelineModel, *, reserve: float = 0.0) -> None:
        built.append(solver)
        build(solver, model, reserve=reserve)

    monkeypatch.setattr(DeadlineSolver, "__init__", counted)
    plan = make_plan(request_of("slowdown:0.2", "auto:gpipe").with_options(**options)).plan
    assert [entry.schedule for entry in plan.considered] == ["1f1b", "gpipe"]
    assert len(built) == 2


# ------------------------------------------------------------------ advice on another order


LINES = {"1f1b": "run 1f1b", "envpipe": "run [{extra_forwards}]"}
# Backwards of 1.9 s: EnvPipe's formula would give up to 4 more forwards on the first stage.
PROFILE = profile_of([{F: curve(1, 300), B: curve(1.9, 700)}] * 4)


def asked_for(num_microbatches: int = 8, **options: Any) -> PlanRequest:  # noqa: ANN401 - any option
    given = {"blocking_power_w": (80.0,), "effort": Effort.LOW} | options
    return tiny_request_of(PROFILE, num_microbatches, **given)


def energy_j(asked: PlanRequest, **options: object) -> float:
    """Energy at the deadline that 1F1B needs at the highest clocks."""
    baseline_s = make_plan(asked_for()).plan.predicted.baseline_iteration_time_s
    changed = asked.with_options(target=f"deadline:{baseline_s}", **options)
    return make_plan(changed).plan.predicted.energy_j


def test_the_order_that_saves_most_is_advised_with_what_its_plan_saves() -> None:
    advice = advise_order(asked_for(), LINES)
    assert advice is not None
    assert (advice.schedule, advice.instead_of) == ("envpipe", "1f1b")
    # One more forward at most for each later stage.
    assert advice.line == "run [3,2,1,0]"
    assert (advice.most_held, advice.most_held_now) == (7, 4)
    of_1f1b, of_envpipe = (
        energy_j(asked_for()),
        energy_j(asked_for(), schedule="envpipe", extra_forwards=(3, 2, 1, 0)),
    )
    assert advice.saving_percent == pytest.approx(100 * (1 - of_envpipe / of_1f1b), abs=1e-6)
    assert advice.saving_percent > 100 * LEAST_SAVING
    assert advice.text == (
        f"schedule envpipe would need {advice.saving_percent:.1f} % less energy than 1f1b at the"
        " same target (predicted), with activations of 7 microbatches on a stage in place of 4; to"
        " run it from the next start on: run [3,2,1,0]"
    )


@pytest.mark.parametrize("extra", [(3, 2, 1, 0), (2, 2, 1, 0), (1, 1, 1, 0), (0, 0, 0, 0)])
def test_an_order_that_saves_less_than_the_threshold_is_not_advised(
    extra: tuple[int, ...],
) -> None:
    asked = asked_for(schedule="envpipe", extra_forwards=extra)
    best_j = energy_j(asked_for(), schedule="envpipe", extra_forwards=(3, 2, 1, 0))
    saves_enough = best_j <= (1 - LEAST_SAVING) * energy_j(asked)
    advice = advise_order(asked, LINES)
    assert (advice is not None) is saves_enough
    assert saves_enough is (extra in {(1, 1, 1, 0), (0, 0, 0, 0)})


def test_given_memory_limits_the_forwards_in_front_and_none_is_no_advice() -> None:
    two_more = asked_for(activation_bytes=(100,), free_memory_bytes=(150, 150, 100, 0))
    advice = advise_order(two_more, LINES)
    assert advice is not None
    assert advice.line == "run [1,1,1,0]"
    full = asked_for(activation_bytes=(100,), free_memory_bytes=(99,))
    assert advise_order(full, LINES) is None


@pytest.mark.parametrize(
    ("target", "is_advised"),
    [
        ("slowdown:0.1", True),
        ("deadline:35", True),
        # At the least energy all clocks are low enough in either order.
        ("least-energy", False),
    ],
)
def test_any_target_is_the_one_that_both_orders_are_planned_for(
    target: str, is_advised: bool
) -> None:
    assert (advise_order(asked_for(target=target), LINES) is not None) is is_advised


def test_orders_that_the_profile_cannot_run_and_the_jobs_own_are_left_out() -> None:
    assert (
        advise_order(asked_for(), {"1f1b": "", "zb-h1": "", "looped-bfs": "", "2f2b": ""}) is None
    )
    advice = advise_order(asked_for(), LINES | {"zb-h1": "", "interleaved-1f1b": ""})
    assert advice is not None
    assert advice.schedule == "envpipe"


def test_a_job_in_chunks_is_compared_with_other_orders_of_its_chunks() -> None:
    asked = request_of("fastest", "looped-bfs")
    # Chunks of the others lie elsewhere in the model.
    others = {"zbv": "", "dualpipev": "", "1f1b": "", "interleaved-1f1b": "run it"}
    advice = advise_order(asked, others)
    assert advice is not None
    assert (advice.schedule, advice.line) == ("interleaved-1f1b", "run it")
    # Of six whole microbatches, and of eight halves.
    assert (advice.most_held_now, advice.most_held) == (6, 4)


def test_policies_without_a_frontier_get_no_advice() -> None:
    assert advise_order(asked_for(policy="envelope", effort=Effort.NORMAL), LINES) is None


def test_an_order_of_the_jobs_own_that_cannot_be_planned_is_an_error() -> None:
    with pytest.raises(PipelineError, match="has no chunks"):
        advise_order(asked_for(schedule="interleaved-1f1b"), LINES)
