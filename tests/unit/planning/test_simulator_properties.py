"""The simulator against two independent timings, on pipelines drawn at random."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball_server.planning.documents.plan_text import plan_rows
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.model.simulator import simulate

from .oracles import event_driven_finish_s, planned_schedule
from .tiny_pipelines import TICK_S, B, F, assigned_any_models, model_of, profile_of

Assigned = tuple[PipelineModel, list[int]]


@given(assigned_any_models())
def test_every_instruction_finishes_when_an_event_simulation_says(assigned: Assigned) -> None:
    model, assignment = assigned
    expected_s = event_driven_finish_s(planned_schedule(model), model.durations_s(assignment))
    simulation = simulate(model, assignment)
    assert list(simulation.finish_s) == expected_s
    assert simulation.iteration_time_s == max(expected_s)


@given(assigned_any_models(), st.data())
def test_an_instruction_may_take_its_float_longer_and_no_more(
    assigned: Assigned, data: st.DataObject
) -> None:
    model, assignment = assigned
    simulation = simulate(model, assignment)
    durations_s = model.durations_s(assignment)
    node = data.draw(st.integers(0, model.dag.num_nodes - 1))
    durations_s[node] += simulation.float_s[node]
    stretched_s = max(event_driven_finish_s(planned_schedule(model), durations_s))
    assert stretched_s == simulation.iteration_time_s
    durations_s[node] += TICK_S
    overdone_s = max(event_driven_finish_s(planned_schedule(model), durations_s))
    assert overdone_s == simulation.iteration_time_s + TICK_S


@given(assigned_any_models())
def test_the_critical_path_is_connected_and_fills_the_iteration(assigned: Assigned) -> None:
    model, assignment = assigned
    simulation = simulate(model, assignment)
    path, durations_s = simulation.critical_path, model.durations_s(assignment)
    assert simulation.start_s[path[0]] == 0
    assert simulation.finish_s[path[-1]] == simulation.iteration_time_s
    assert sum(durations_s[node] for node in path) == simulation.iteration_time_s
    for before, node in itertools.pairwise(path):
        assert before in model.dag.predecessors(node)
        assert simulation.finish_s[before] == simulation.start_s[node]
    assert all(simulation.float_s[node] == 0 for node in path)


@given(st.lists(st.floats(1e-3, 10), min_size=4, max_size=4), st.integers(1, 6))
def test_rounding_never_makes_a_wait_negative(times_s: list[float], num_microbatches: int) -> None:
    forward_s, backward_s, other_forward_s, other_backward_s = times_s
    stages = [
        {F: [(2, first_s, 1.0), (1, 99.0, 1.0)], B: [(2, then_s, 1.0), (1, 99.0, 1.0)]}
        for first_s, then_s in [(forward_s, backward_s), (other_forward_s, other_backward_s)] * 2
    ]
    model = model_of(profile_of(stages), num_microbatches)
    simulation = simulate(model, model.baseline())
    assert all(wait_s >= 0 for wait_s in simulation.wait_s)
    assert not any(row for row in plan_rows(model, model.baseline(), simulation) if "-0.0" in row)


@given(assigned_any_models())
def test_each_stage_is_busy_or_waiting_and_both_take_their_power(assigned: Assigned) -> None:
    """Counted stage by stage: what its instructions take, then its idle seconds in watts."""
    model, assignment = assigned
    simulation = simulate(model, assignment)
    assert all(wait_s >= 0 for wait_s in simulation.wait_s)
    energy_j = idle_s = 0.0
    for stage in range(model.schedule.num_stages):
        nodes = [node for node in range(model.dag.num_nodes) if model.dag.stage[node] == stage]
        points = [model.points[node][assignment[node]] for node in nodes]
        busy_s = sum(point.time_s for point in points)
        waits_s = sum(simulation.wait_s[node] for node in nodes)
        assert busy_s + waits_s == simulation.finish_s[nodes[-1]]
        stage_idle_s = simulation.iteration_time_s - busy_s
        energy_j += sum(point.energy_j for point in points)
        energy_j += stage_idle_s * model.blocking_power_w[stage] * model.num_ranks[stage]
        idle_s += stage_idle_s
    stage_seconds = model.schedule.num_stages * simulation.iteration_time_s
    assert simulation.energy_j == pytest.approx(energy_j, rel=1e-12)
    assert simulation.bubble_fraction == pytest.approx(idle_s / stage_seconds, abs=1e-12)
