"""First plans: by hand, and what holds of them, their events and their bound on any pipeline."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.planning.oracles import every_plan, least_energy_j, plain_program_bound_j
from tests.unit.planning.tiny_pipelines import (
    B,
    F,
    any_models,
    enumerable_models,
    equal_profile,
    model_of,
    models,
    profile_of,
)

import flyball_profiles
from flyball_profiles.stage_profile_csv import read_stage_profile
from flyball_server.planning.frontier.curves import model_curves
from flyball_server.planning.frontier.event_arcs import BEGIN, END, EventArcs, event_arcs
from flyball_server.planning.frontier.event_network import BEGIN as NETWORK_BEGIN
from flyball_server.planning.frontier.event_network import END as NETWORK_END
from flyball_server.planning.frontier.event_network import FloatArray, build_network
from flyball_server.planning.frontier.first_plan import (
    ArcCosts,
    FirstPlanner,
    arc_costs,
    brought_within,
    earliest_s,
    latest_s,
    sweep,
)
from flyball_server.planning.frontier.path_bound import path_bound_j
from flyball_server.planning.frontier.solver import DeadlineSolver
from flyball_server.planning.model.finish_times import _earliest, _latest
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.model.simulator import (
    RELATIVE_TIME_TOLERANCE,
    earliest_finish_s,
    latest_finish_s,
    time_and_energy,
)

EXAMPLE = Path(flyball_profiles.__file__).parent / "stages" / "gpt3-175b-a100-sxm-fitted.csv"
ROUNDING_ERROR = 1e-9
SOLVER_ERROR = 1e-6


def planner_of(model: PipelineModel) -> FirstPlanner:
    return FirstPlanner(model, event_arcs(model.dag))


def bound_j(model: PipelineModel, deadline_s: float) -> float:
    return path_bound_j(model, model_curves(model), deadline_s)


def arcs_and_costs(model: PipelineModel) -> tuple[EventArcs, ArcCosts]:
    arcs = event_arcs(model.dag)
    costs = arc_costs(model_curves(model), arcs, sum(model.stage_blocking_power_w))
    return arcs, costs


def one_stage(num_microbatches: int) -> PipelineModel:
    """Forward and backward alike: 1 s and 10 J, 1.5 s and 7 J, or 2 s and 6 J; no power waiting."""
    points = [(1400, 1.0, 10.0), (1200, 1.5, 7.0), (1000, 2.0, 6.0)]
    return model_of(profile_of([{F: points, B: points}]), num_microbatches, blocking_power_w=(0,))


# ------------------------------------------------------------------ on paper


def test_what_a_deadline_leaves_is_spread_where_it_saves_most() -> None:
    """3 s for two instructions: 1.5 s each, 14 J; not 1 and 2 s, 16 J."""
    model = one_stage(1)
    plan = planner_of(model).plan(3.0)
    assert plan.assignment == [1, 1]
    assert plan.lower_bound_j == pytest.approx(14.0)


def test_in_one_stage_the_bound_is_what_a_mix_of_clocks_takes() -> None:
    """3.5 s: one of the two takes half a second more, for 1 J less."""
    assert bound_j(one_stage(1), 3.5) == pytest.approx(13.0)
    # 3.25 s: half of that.
    assert bound_j(one_stage(1), 3.25) == pytest.approx(13.5)


def test_of_a_late_deadline_the_bound_is_that_of_the_time_that_needs_least() -> None:
    """1 s or 4 s for each instruction, with 100 W while waiting: the fastest iteration needs least.

    It takes 22 s: 8 microbatches and 3 stages, each 1 s forward and 1 s back, 110 J each. In it
    the four stages are busy for 64 s, and wait for 24 s at 100 W.
    """
    points = [(1400, 1.0, 110.0), (1000, 4.0, 440.0)]
    model = model_of(profile_of([{F: points, B: points}] * 4), 8, blocking_power_w=(100.0,))
    for factor in (1.0, 2.0, 4.0):
        plan = planner_of(model).plan(22.0 * factor)
        assert time_and_energy(model, plan.assignment) == pytest.approx((22.0, 64 * 110 + 24 * 100))
        assert plan.lower_bound_j == pytest.approx(64 * 110 + 24 * 100)


def test_no_bound_is_below_what_instructions_need_while_they_run() -> None:
    """One may take 9 s more and saves 891 J with that, at 100 W; it needs 19 J while it runs."""
    points = [(1400, 1.0, 10.0), (1000, 10.0, 19.0)]
    model = model_of(profile_of([{F: points, B: points}] * 3), 4, blocking_power_w=(100.0,))
    for factor in (1.0, 3.0, 6.0, 10.0):
        assert bound_j(model, 12.0 * factor) >= 24 * 10.0


@pytest.mark.parametrize(("slower_j", "choice"), [(100.0, 1), (157.0, 0)])
def test_an_iteration_that_had_better_end_early_does(slower_j: float, choice: int) -> None:
    """At its highest clocks it takes 220 J; with 157 J for a slower instruction more."""
    points = [(1400, 1.0, 110.0), (1200, 1.5, slower_j)]
    model = model_of(profile_of([{F: points, B: points}]), 1, blocking_power_w=(100.0,))
    assert planner_of(model).plan(3.0).assignment == [choice, choice]


def test_clocks_that_run_now_are_no_worse_a_place_to_begin() -> None:
    model = model_of(read_stage_profile(EXAMPLE), 12, blocking_power_w=(83.64,))
    solver = DeadlineSolver(model)
    deadline_s = 1.1 * solver.fastest_time_s
    best = solver.plan(solver.relax(deadline_s), 50_000)
    planner = planner_of(model)
    anew = planner.plan(deadline_s)
    begun = planner.plan(deadline_s, [model.durations_s(best.assignment)])
    energies_j = [
        time_and_energy(model, assignment)[1]
        for assignment in (best.assignment, begun.assignment, anew.assignment)
    ]
    assert energies_j == sorted(energies_j)
    assert energies_j[1] < 1.005 * energies_j[0]
    assert energies_j[2] < 1.04 * energies_j[0]


DEADLINES = (1.0, 1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.5, 2.0, 3.0, 6.0)


@pytest.mark.parametrize("power_w", [0.0, 40.0, 83.64, 150.0])
def test_a_later_deadline_makes_a_first_plan_no_dearer(power_w: float) -> None:
    """Waiting costs more than slower clocks save from 1.1 to 1.25 times the fastest on."""
    model = model_of(read_stage_profile(EXAMPLE), 12, blocking_power_w=(power_w,))
    planner, solver = planner_of(model), DeadlineSolver(model)
    least_j = math.inf
    for factor in DEADLINES:
        deadline_s = factor * planner.fastest_time_s
        plan = planner.plan(deadline_s)
        _, energy_j = time_and_energy(model, plan.assignment)
        relaxed_j = solver.relax(deadline_s).lower_bound_j
        assert relaxed_j <= energy_j < 1.04 * relaxed_j
        assert 0.88 * relaxed_j < plan.lower_bound_j <= relaxed_j * (1 + SOLVER_ERROR)
        assert energy_j <= 1.005 * least_j
        least_j = min(least_j, energy_j)


def test_plans_of_a_long_pipeline_are_near_those_of_the_whole_search() -> None:
    """The bound too: what it does not see is some percent."""
    model = model_of(read_stage_profile(EXAMPLE), 48, blocking_power_w=(83.64,))
    solver = DeadlineSolver(model)
    for factor in (1.0, 1.1, 1.3):
        deadline_s = factor * solver.fastest_time_s
        first = planner_of(model).plan(deadline_s)
        time_s, energy_j = time_and_energy(model, first.assignment)
        relaxed_j = solver.relax(deadline_s).lower_bound_j
        assert time_s <= deadline_s
        assert relaxed_j < energy_j < 1.04 * relaxed_j
        assert 0.85 * relaxed_j < first.lower_bound_j < relaxed_j


# ------------------------------------------------------------------ any pipeline


@given(any_models())
def test_the_events_are_those_of_the_network(model: PipelineModel) -> None:
    arcs, network = event_arcs(model.dag), build_network(model, model_curves(model))
    num_nodes = model.dag.num_nodes
    same: dict[int, int] = {BEGIN: NETWORK_BEGIN, END: NETWORK_END}
    for ours, theirs in ((arcs.tail, network.tail), (arcs.head, network.head)):
        for one, other in zip(ours[:num_nodes], theirs[:num_nodes], strict=True):
            assert same.setdefault(int(one), int(other)) == other
    assert len(set(same.values())) == len(same)
    # The network has another arc, from the end to the deadline, and that event.
    assert len(arcs.order) == network.num_events - 1
    assert {
        (same[int(tail)], same[int(head)])
        for tail, head in zip(arcs.tail[num_nodes:], arcs.head[num_nodes:], strict=True)
    } == set(zip(network.tail[num_nodes:-1], network.head[num_nodes:-1], strict=True))


@given(any_models())
def test_events_stand_in_topological_order_from_begin_to_end(model: PipelineModel) -> None:
    arcs = event_arcs(model.dag)
    place = np.argsort(arcs.order)
    assert (place[arcs.tail] < place[arcs.head]).all()
    assert (arcs.order[0], arcs.order[-1]) == (BEGIN, END)
    assert sorted(arcs.order) == list(range(len(arcs.order)))


def windows_s(time_s: FloatArray, arcs: EventArcs) -> FloatArray:
    windows: FloatArray = time_s[arcs.head] - time_s[arcs.tail]
    return windows


@settings(max_examples=50)
@given(any_models(), st.floats(1.0, 2.0), st.lists(st.floats(0, 1), min_size=1, max_size=9))
def test_sweeps_keep_the_deadline_and_every_shortest_window(
    model: PipelineModel, factor: float, shares: list[float]
) -> None:
    arcs, costs = arcs_and_costs(model)
    least_s = np.where(costs.curve < 0, 0.0, costs.least_s[costs.curve])
    deadline_s = factor * earliest_s(arcs, costs)[END]
    wanted_s = deadline_s * np.resize(shares, len(arcs.order))
    time_s = brought_within(wanted_s, latest_s(arcs, costs, deadline_s), arcs, costs)
    for _ in range(2):
        assert time_s.max() <= deadline_s * (1 + ROUNDING_ERROR)
        assert (windows_s(time_s, arcs) >= least_s - ROUNDING_ERROR * deadline_s).all()
        end_s = time_s[END]
        sweep(time_s, 5, arcs, costs)
        assert time_s[END] == end_s


@settings(max_examples=50)
@given(any_models(), st.floats(1.0, 6.0))
def test_a_first_plan_meets_its_deadline_and_is_not_below_its_bound(
    model: PipelineModel, factor: float
) -> None:
    planner = planner_of(model)
    deadline_s = factor * planner.fastest_time_s
    plan = planner.plan(deadline_s, [model.durations_s(model.baseline())])
    time_s, energy_j = time_and_energy(model, plan.assignment)
    assert time_s <= deadline_s * (1 + RELATIVE_TIME_TOLERANCE)
    assert time_s == planner.iteration_time_s(plan.assignment)
    assert 0 < plan.lower_bound_j <= energy_j * (1 + ROUNDING_ERROR)


@settings(max_examples=30)
@given(models(max_stages=2, max_microbatches=2), st.floats(1.0, 6.0))
def test_the_bound_is_above_no_plan_and_not_above_the_relaxed_optimum(
    model: PipelineModel, factor: float
) -> None:
    deadline_s = factor * planner_of(model).fastest_time_s
    relaxed_j = plain_program_bound_j(model, deadline_s)
    assert 0 < bound_j(model, deadline_s) <= relaxed_j * (1 + 1e-5)
    if model.dag.num_nodes <= 6:
        least_j = least_energy_j(every_plan(model), deadline_s * (1 + ROUNDING_ERROR))
        assert bound_j(model, deadline_s) <= least_j * (1 + ROUNDING_ERROR)


@settings(max_examples=50)
@given(enumerable_models(), st.floats(1.0, 6.0))
def test_a_first_plan_and_its_bound_have_the_best_plan_between_them(
    model: PipelineModel, factor: float
) -> None:
    planner = planner_of(model)
    deadline_s = factor * planner.fastest_time_s
    plan = planner.plan(deadline_s)
    least_j = least_energy_j(every_plan(model), deadline_s * (1 + ROUNDING_ERROR))
    _, energy_j = time_and_energy(model, plan.assignment)
    assert 0 < plan.lower_bound_j <= least_j * (1 + ROUNDING_ERROR)
    assert least_j <= energy_j * (1 + ROUNDING_ERROR)


@given(any_models(), st.floats(1.0, 2.0))
def test_compiled_finish_times_are_those_of_the_simulator(
    model: PipelineModel, factor: float
) -> None:
    durations_s = model.durations_s(model.baseline())
    order = np.array(model.dag.topological_order)
    before = np.array([model.dag.order_predecessor, model.dag.data_predecessor])
    earliest = _earliest(order, before, np.array(durations_s))
    assert earliest.tolist() == earliest_finish_s(model.dag, durations_s)
    end_s = factor * max(earliest)
    latest = _latest(order, before, np.array(durations_s), end_s)
    assert latest.tolist() == latest_finish_s(model.dag, durations_s, end_s)


def test_a_pipeline_without_choice_is_planned_too() -> None:
    """The slower point costs more as well: one of any use."""
    points = [(1400, 1.0, 10.0), (1000, 1.5, 12.0)]
    model = model_of(profile_of([{F: points, B: points}] * 2), 2, blocking_power_w=(0,))
    planner = planner_of(model)
    assert set(planner.plan(2 * planner.fastest_time_s).assignment) == {0}


def test_equal_stages_at_the_highest_clocks_begin_and_end_where_they_must() -> None:
    """Stage 0 has nothing to spare before its first forward and after its last backward."""
    model = model_of(equal_profile(2), 2)
    arcs, costs = arcs_and_costs(model)
    early_s = earliest_s(arcs, costs)
    late_s = latest_s(arcs, costs, 9.0)
    assert early_s[END] == 9.0
    assert (late_s >= early_s).all()
    assert late_s[BEGIN] == 0.0
