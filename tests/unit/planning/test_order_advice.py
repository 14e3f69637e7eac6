"""Advice on another order: against plans made by hand, its memory, and when there is none."""

from __future__ import annotations

from typing import Any

import pytest

from flyball_pipeline.errors import PipelineError
from flyball_server.planning.order_advice import LEAST_SAVING, advise_order
from flyball_server.planning.planner import PlanRequest, make_plan
from flyball_wire.plan_options import Effort

from .test_schedule_choice import curve
from .test_schedule_choice import request_of as in_chunks
from .tiny_pipelines import B, F, profile_of, request_of

LINES = {"1f1b": "run 1f1b", "envpipe": "run [{extra_forwards}]"}
# Backwards of 1.9 s: EnvPipe's formula would give up to 4 more forwards on the first stage.
PROFILE = profile_of([{F: curve(1, 300), B: curve(1.9, 700)}] * 4)


def request(num_microbatches: int = 8, **options: Any) -> PlanRequest:  # noqa: ANN401 - any option
    given = {"blocking_power_w": (80.0,), "effort": Effort.LOW} | options
    return request_of(PROFILE, num_microbatches, **given)


def energy_j(asked: PlanRequest, **options: object) -> float:
    """Energy at the deadline that 1F1B needs at the highest clocks."""
    baseline_s = make_plan(request()).plan.predicted.baseline_iteration_time_s
    changed = asked.with_options(target=f"deadline:{baseline_s}", **options)
    return make_plan(changed).plan.predicted.energy_j


def test_the_order_that_saves_most_is_advised_with_what_its_plan_saves() -> None:
    advice = advise_order(request(), LINES)
    assert advice is not None
    assert (advice.schedule, advice.instead_of) == ("envpipe", "1f1b")
    # One more forward at most for each later stage.
    assert advice.line == "run [3,2,1,0]"
    assert (advice.most_held, advice.most_held_now) == (7, 4)
    of_1f1b, of_envpipe = (
        energy_j(request()),
        energy_j(request(), schedule="envpipe", extra_forwards=(3, 2, 1, 0)),
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
    asked = request(schedule="envpipe", extra_forwards=extra)
    best_j = energy_j(request(), schedule="envpipe", extra_forwards=(3, 2, 1, 0))
    saves_enough = best_j <= (1 - LEAST_SAVING) * energy_j(asked)
    advice = advise_order(asked, LINES)
    assert (advice is not None) is saves_enough
    assert saves_enough is (extra in {(1, 1, 1, 0), (0, 0, 0, 0)})


def test_given_memory_limits_the_forwards_in_front_and_none_is_no_advice() -> None:
    two_more = request(activation_bytes=(100,), free_memory_bytes=(150, 150, 100, 0))
    advice = advise_order(two_more, LINES)
    assert advice is not None
    assert advice.line == "run [1,1,1,0]"
    full = request(activation_bytes=(100,), free_memory_bytes=(99,))
    assert advise_order(full, LINES) is None


@pytest.mark.parametrize(
    ("target", "is_advised"),
    [
        ("slowdown:0.1", True),
        ("power:1000", True),
        # At the least energy all clocks are low enough in either order.
        ("least-energy", False),
    ],
)
def test_any_target_is_the_one_that_both_orders_are_planned_for(
    target: str, is_advised: bool
) -> None:
    assert (advise_order(request(target=target), LINES) is not None) is is_advised


def test_orders_that_the_profile_cannot_run_and_the_jobs_own_are_left_out() -> None:
    assert advise_order(request(), {"1f1b": "", "zb-h1": "", "looped-bfs": "", "2f2b": ""}) is None
    advice = advise_order(request(), LINES | {"zb-h1": "", "interleaved-1f1b": ""})
    assert advice is not None
    assert advice.schedule == "envpipe"


def test_a_job_in_chunks_is_compared_with_other_orders_of_its_chunks() -> None:
    asked = in_chunks("fastest", "looped-bfs")
    # Chunks of the others lie elsewhere in the model.
    others = {"zbv": "", "dualpipev": "", "1f1b": "", "interleaved-1f1b": "run it"}
    advice = advise_order(asked, others)
    assert advice is not None
    assert (advice.schedule, advice.line) == ("interleaved-1f1b", "run it")
    # Of six whole microbatches, and of eight halves.
    assert (advice.most_held_now, advice.most_held) == (6, 4)


def test_policies_without_a_frontier_get_no_advice() -> None:
    assert advise_order(request(policy="envelope", effort=Effort.NORMAL), LINES) is None


def test_an_order_of_the_jobs_own_that_cannot_be_planned_is_an_error() -> None:
    with pytest.raises(PipelineError, match="has no chunks"):
        advise_order(request(schedule="interleaved-1f1b"), LINES)
