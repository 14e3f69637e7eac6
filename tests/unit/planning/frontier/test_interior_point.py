"""The interior point: near the optimum at any deadline, and the same bytes every time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.planning.frontier.test_sweep import assert_is_frontier
from tests.unit.planning.oracles import plain_program_bound_j
from tests.unit.planning.tiny_pipelines import example_model, models, network_of

from flyball_server.planning import frontier_curve
from flyball_server.planning.frontier import solver as solver_module
from flyball_server.planning.frontier.event_network import END
from flyball_server.planning.frontier.highs_relaxation import HighsRelaxation
from flyball_server.planning.frontier.interior_point import InteriorPointRelaxation
from flyball_server.planning.frontier.solver import DeadlinePlan, DeadlineSolver
from flyball_server.planning.frontier_curve import sweep_frontier
from flyball_server.planning.model.pipeline_model import PipelineModel

pytestmark = pytest.mark.slow

WITHIN = 1e-4  # of the optimum, by a relaxation's contract
ROUNDING = 1e-9  # of the textbook program's solver


def deadlines_of(model: PipelineModel, shares: list[float]) -> list[float]:
    """So far from the fastest to the slowest iteration that is of any use."""
    solver = DeadlineSolver(model)
    span_s = solver.slowest_time_s - solver.fastest_time_s or solver.fastest_time_s
    return [solver.fastest_time_s + share * span_s for share in shares]


@settings(max_examples=20)
@given(
    model=models(max_stages=3, max_microbatches=3),
    shares=st.lists(st.floats(0, 1.5), min_size=3, max_size=8),
)
def test_at_any_deadline_a_bound_is_near_the_optimum_and_never_above(
    model: PipelineModel, shares: list[float]
) -> None:
    network = network_of(model)
    interior, simplex = InteriorPointRelaxation(network), HighsRelaxation(network)
    for deadline_s in deadlines_of(model, shares):
        optimum = interior.solve(deadline_s)
        optimum_j = plain_program_bound_j(model, deadline_s)
        assert optimum_j * (1 - WITHIN) <= optimum.lower_bound_j <= optimum_j * (1 + ROUNDING)
        simplex_j = simplex.solve(deadline_s).lower_bound_j
        assert optimum.lower_bound_j <= simplex_j * (1 + 1e-6)  # what it perturbs by
        assert optimum.event_time_s[END] <= deadline_s * (1 + 1e-6)


def sweep_as_if_large(monkeypatch: pytest.MonkeyPatch) -> list[DeadlinePlan]:
    monkeypatch.setattr(solver_module, "MAX_HIGHS_INSTRUCTIONS", 0)
    monkeypatch.setattr(frontier_curve, "NUM_FIRST", 30)
    monkeypatch.setattr(frontier_curve, "MAX_MIX_ERROR", WITHIN)
    return sweep_frontier(DeadlineSolver(example_model(4)), 40, 500)


def test_a_frontier_of_the_interior_point_is_certified_and_repeatable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, plans = (sweep_as_if_large(monkeypatch) for _ in range(2))
    assert len(plans) >= 40
    assert_is_frontier(plans)
    for plan in plans[::5]:
        optimum_j = plain_program_bound_j(example_model(4), plan.relaxed.deadline_s)
        assert optimum_j * (1 - WITHIN) <= plan.lower_bound_j <= optimum_j * (1 + ROUNDING)

    for one, other in zip(first, plans, strict=True):
        assert one.assignment == other.assignment
        assert (one.energy_j, one.lower_bound_j) == (other.energy_j, other.lower_bound_j)
        assert one.relaxed.event_time_s.tobytes() == other.relaxed.event_time_s.tobytes()
