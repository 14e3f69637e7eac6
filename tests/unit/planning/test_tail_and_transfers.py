"""The tail of an iteration and its transfers between stages: by hand, and against all plans."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.planning.tiny_pipelines import (
    equal_profile,
    every_choice,
    example_model,
    model_of,
    refuses,
    request_of,
    three_clocks_request,
)

from flyball_profiles.clock_transitions import ClockTransitions
from flyball_server.planning.documents.plan_document import plan_document, plan_from_document
from flyball_server.planning.documents.recorded_plan import model_of_plan
from flyball_server.planning.frontier.curves import model_curves
from flyball_server.planning.frontier.event_network import build_network
from flyball_server.planning.frontier.highs_relaxation import HighsRelaxation
from flyball_server.planning.frontier.interior_point import InteriorPointRelaxation
from flyball_server.planning.frontier_curve import make_frontier
from flyball_server.planning.model.data_parallel import join_pipelines, simulate_jointly
from flyball_server.planning.model.simulator import simulate, time_and_energy
from flyball_server.planning.model.transition_batches import TransitionBatch
from flyball_server.planning.plan import Slowdown
from flyball_server.planning.planner import make_plan, model_of_request
from flyball_server.planning.stragglers.slowed_pipelines import slowed_model

pytestmark = pytest.mark.slow

TAIL_S, HOP_S = 0.5, 0.25
DELAYS = {"tail_ms": 1e3 * TAIL_S, "transfer_ms": (1e3 * HOP_S,)}


def test_an_iteration_by_hand() -> None:
    """F of stage 0 to 1 s, there at 1.25 s; F and B of stage 1 to 4.25 s, B from 4.5 to 6.5 s."""
    model = model_of(equal_profile(2), 1).with_delays(TAIL_S, (HOP_S,))
    run = simulate(model, model.baseline())
    assert run.start_s == (0.0, 4.5, 1.25, 2.25)
    assert run.finish_s == (1.0, 6.5, 2.25, 4.25)
    assert run.wait_s == (0.0, 3.5, 1.25, 0.0)
    assert run.critical_path == (0, 2, 3, 1)
    assert run.iteration_time_s == 7.0
    # 5 W of each stage while it does not compute, in the tail too.
    assert run.energy_j == 10 + 30 + 10 + 30 + 5 * (2 * 7.0 - 6.0)
    assert run.bubble_fraction == pytest.approx(1 - 6 / 13)
    assert run.float_s == (0.0, 0.0, 0.0, 0.0)


def test_pipelines_side_by_side_have_both() -> None:
    model = model_of(equal_profile(2), 1).with_delays(TAIL_S, (HOP_S,))
    joint = join_pipelines([model, model])
    run = simulate_jointly([model] * 2, [model.baseline()] * 2)
    assert [own.bubble_fraction for own in run.pipelines] == pytest.approx([1 - 6 / 13] * 2)
    assert time_and_energy(joint, joint.baseline()) == (7.0, 2 * (80 + 5 * (2 * 7.0 - 6.0)))


def test_a_tail_hides_the_change_to_the_first_clock() -> None:
    times = replace(ClockTransitions.exact(0.25), starts_settled=False)
    model = replace(model_of(equal_profile(1), 2), transitions=times)
    clocks = [0, 1, 0, 1]
    assert time_and_energy(model, clocks)[0] == pytest.approx(6.975)
    partly = model.with_delays(0.125, ())
    # Half of the first forward's change is left: 0.125 s at 1.25 s a forward, a tenth of it.
    assert time_and_energy(partly, clocks)[0] == pytest.approx(6.975 - 0.025 + 0.125)
    assert time_and_energy(model.with_delays(TAIL_S, ()), clocks)[0] == pytest.approx(6.925 + 0.5)


@pytest.mark.parametrize("delay_ms", [0.0, 100.0, 1300.0])
@pytest.mark.parametrize("target", ["fastest", "slowdown:0.05", "least-energy"])
def test_plan_and_bound_against_all_plans(delay_ms: float, target: str) -> None:
    request = three_clocks_request(
        transition_ms=delay_ms, target=target, early_requests=False, **DELAYS
    )
    plan, model = make_plan(request).plan, model_of_request(request)
    choices = every_choice(model)
    every = TransitionBatch(model).run(choices)
    slowdown = {"fastest": 1.0, "slowdown:0.05": 1.05, "least-energy": np.inf}[target]
    deadline_s = plan.baseline_iteration_time_s * slowdown * (1 + 1e-9)
    assert plan.iteration_time_s <= deadline_s
    least_j = every.total_energy_j[every.iteration_time_s <= deadline_s].min()
    assert least_j * (1 - 1e-9) <= plan.energy_j <= least_j * (1 + 5e-4)
    as_fast = every.iteration_time_s <= plan.iteration_time_s * (1 + 1e-9)
    assert plan.lower_bound_j is not None
    assert plan.lower_bound_j <= every.total_energy_j[as_fast].min() * (1 + 1e-12)
    assert plan.lower_bound_j >= 0.9 * plan.energy_j
    for one in make_frontier(request, 5).points:
        fast = every.total_energy_j[every.iteration_time_s <= one.iteration_time_s * (1 + 1e-9)]
        assert one.lower_bound_j * (1 - 1e-9) <= fast.min() <= one.energy_j * (1 + 1e-9)


@pytest.mark.parametrize("power_w", [24.0, 21.0])
def test_the_average_power_counts_the_tail(power_w: float) -> None:
    request = three_clocks_request(target=f"power:{power_w}", **DELAYS)
    plan = make_plan(request).plan
    assert plan.energy_j / plan.iteration_time_s <= power_w * (1 + 1e-9)
    model = model_of_request(request)
    choices = every_choice(model)
    every = TransitionBatch(model).run(choices)
    within = every.total_energy_j <= power_w * every.iteration_time_s
    fastest_s = max(every.iteration_time_s[within].min(), plan.baseline_iteration_time_s)
    assert plan.iteration_time_s == pytest.approx(fastest_s, rel=1e-9)


def test_a_tail_alone_changes_no_clock() -> None:
    request = request_of(equal_profile(3), 4)
    plain, tailed = make_plan(request), make_plan(request.with_options(tail_ms=500.0))
    assert tailed.plan.stages == plain.plan.stages
    assert tailed.plan.iteration_time_s == pytest.approx(plain.plan.iteration_time_s + 0.5)
    waited_j = 0.5 * sum(plain.model.stage_blocking_power_w)
    assert tailed.plan.energy_j == pytest.approx(plain.plan.energy_j + waited_j)
    assert plain.plan.lower_bound_j is not None
    assert tailed.plan.lower_bound_j == pytest.approx(plain.plan.lower_bound_j + waited_j)


def test_a_slowdown_factor_scales_neither_tail_nor_transfers() -> None:
    model, assignment = example_model(2), [4 * (node % 2) for node in range(32)]
    slowdowns = [Slowdown(stage=stage, slowdown=2.0) for stage in range(model.schedule.num_stages)]
    twice = slowed_model(model.with_delays(0.02, (0.01,)), slowdowns, share=1)
    half = model.with_delays(0.01, (0.005,))
    assignment = assignment[: model.dag.num_nodes]
    assert simulate(twice, assignment).iteration_time_s == pytest.approx(
        2 * simulate(half, assignment).iteration_time_s
    )


@given(st.floats(0, 1), st.lists(st.floats(0, 1), min_size=2, max_size=2))
def test_both_solvers_agree_on_the_bound(tail_s: float, hops_s: list[float]) -> None:
    model = model_of(equal_profile(3), 3).with_delays(tail_s, hops_s)
    network = build_network(model, model_curves(model))
    deadline_s = 1.1 * time_and_energy(model, model.baseline())[0]
    bounds_j = [
        solver(network).solve(deadline_s).lower_bound_j
        for solver in (HighsRelaxation, InteriorPointRelaxation)
    ]
    assert bounds_j[0] == pytest.approx(bounds_j[1], rel=1e-4)


def test_a_plan_file_keeps_both() -> None:
    request = request_of(equal_profile(3), 4, tail_ms=20.0, transfer_ms=(1.0, 2.0))
    plan = make_plan(request).plan
    document = plan_document(plan, solve_s=0.0)
    assert (document["tail_ms"], document["transfer_ms"]) == (20.0, [1.0, 2.0])
    read = plan_from_document(document)
    assert (read.tail_s, read.transfer_s) == (0.02, (0.001, 0.002))
    model, assignment = model_of_plan(request.profile, read)
    assert time_and_energy(model, assignment) == (plan.iteration_time_s, plan.energy_j)
    with refuses("transfer_ms", "3 values for 3 stages"):
        model_of_plan(request.profile, replace(read, transfer_s=(0.001,) * 3))
    plain = plan_document(make_plan(request_of(equal_profile(3), 4)).plan, solve_s=0.0)
    assert not {"tail_ms", "transfer_ms"} & set(plain)


def test_other_stages_than_neighbours_are_as_far_as_the_farthest() -> None:
    dag = model_of(equal_profile(3), 2).dag
    joined = replace(dag, data_predecessor=tuple(range(-1, dag.num_nodes - 1)))
    delays_s = joined.with_delays(0.0, (1.0, 2.0)).input_delay_s
    assert [delays_s[4], delays_s[8]] == [1.0, 2.0]
    far = replace(dag, data_predecessor=(-1, *[dag.num_nodes - 1] * (dag.num_nodes - 1)))
    assert far.with_delays(0.0, (1.0, 2.0)).input_delay_s[1] == 2.0


def test_what_cannot_be_is_refused() -> None:
    profile = equal_profile(3)
    with refuses("tail_ms", "must be from 0 to 600000 ms, not -1"):
        request_of(profile, tail_ms=-1.0)
    with refuses("transfer_ms", "must be from 0 to 10000 ms, not nan"):
        request_of(profile, transfer_ms=(float("nan"),))
    with refuses("transfer_ms", "3 values for 3 stages; give one, or one for each pair of"):
        request_of(profile, transfer_ms=(1.0, 1.0, 1.0))
    with refuses("tail_ms", "has no effect on pipedream, whose iterations never end"):
        make_plan(request_of(profile, tail_ms=1.0, schedule="pipedream"))
