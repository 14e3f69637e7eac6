"""Objects sent to a planning process and back are unchanged."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from tests.planner.samples import profile
from tests.unit.profiling.emulated_training import profile_online
from tests.unit.profiling.true_profiles import a100_truth, setup_of

from flyball_server.planning.frontier_curve import make_frontier
from flyball_server.planning.order_advice import advise_order
from flyball_server.planning.planner import PlanRequest, make_plan_only
from flyball_server.planning.stragglers.slowed_pipelines import SlowedRequest, make_slowed_plan
from flyball_server.profiling.moves import Finished, Probe, next_move
from flyball_server.solving.processes import outcome_of
from flyball_wire.plan_options import Effort, PlanOptions
from flyball_wire.plans.plan import Slowdown

ORDER = (("forward", 0), ("backward", 0), ("forward", 1), ("backward", 1))
OPTIONS = PlanOptions(blocking_power_w=(70.0,), effort=Effort.LOW)
PLAIN = PlanRequest(profile=profile(), num_microbatches=2, options=OPTIONS)
EXPLICIT = PLAIN.with_options(schedule="explicit", order=(ORDER, ORDER))


def crossed(function: Callable[..., Any], *args: object) -> object:
    """The result of a solve whose arguments and result are pickled."""
    is_good, outcome = pickle.loads(outcome_of(pickle.dumps((function, args, {}))))  # noqa: S301
    if not is_good:
        raise outcome
    return outcome


SLOWED = SlowedRequest(
    request=PLAIN, slowdowns=(Slowdown(stage=0, dp_rank=1, slowdown=1.2),), num_pipelines=2
)
OTHER_ORDERS = {"1f1b": "", "envpipe": "{extra_forwards}"}


@pytest.mark.parametrize(
    ("solve", "asked"),
    [
        (make_plan_only, (PLAIN,)),
        (make_plan_only, (EXPLICIT,)),
        (make_plan_only, (PLAIN.with_options(schedule="auto"),)),
        (make_slowed_plan, (SLOWED,)),
        (make_frontier, (PLAIN, 3)),
        (advise_order, (PLAIN.with_options(schedule="gpipe"), OTHER_ORDERS)),
    ],
)
def test_a_solve_in_another_process_is_the_same(
    solve: Callable[..., object], asked: tuple[object, ...]
) -> None:
    assert pickle.loads(pickle.dumps(asked)) == asked  # noqa: S301 - made here
    assert crossed(solve, *asked) == solve(*asked)


def test_the_moves_of_online_profiling() -> None:
    setup = setup_of(truth := a100_truth(12, stages=(0, 7)))
    run = profile_online(setup, truth, seed=1)
    last = crossed(next_move, setup, run.versions, run.observed)
    assert isinstance(last, Finished)
    assert last == next_move(setup, run.versions, run.observed)
    enough = [step for step in run.observed if step.step < 12]
    probe = crossed(next_move, setup, run.versions[:1], enough)
    assert isinstance(probe, Probe)
    assert probe == next_move(setup, run.versions[:1], enough)
