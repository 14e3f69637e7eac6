"""The certificate: whatever prices it is given, it never claims more than is true."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.planning.oracles import every_plan, least_energy_j, plain_program_bound_j
from tests.unit.planning.tiny_pipelines import (
    enumerable_models,
    four_plan_model,
    models,
    network_of,
)

from flyball_server.planning.frontier.highs_relaxation import HighsRelaxation
from flyball_server.planning.frontier.relaxation import certified_bound
from flyball_server.planning.frontier.solver import DeadlineSolver
from flyball_server.planning.model.pipeline_model import PipelineModel


@settings(max_examples=25)
@given(enumerable_models(), st.data())
def test_no_prices_prove_more_than_the_best_plan_of_all(
    model: PipelineModel, data: st.DataObject
) -> None:
    network, plans = network_of(model), every_plan(model)
    times_s = sorted({time_s for time_s, _ in plans})
    price_w = st.floats(-10, 1000, allow_nan=False)
    num_arcs = len(network.tail)
    for _ in range(3):
        drawn_w = np.array(data.draw(st.lists(price_w, min_size=num_arcs, max_size=num_arcs)))
        deadline_s = data.draw(st.sampled_from(times_s)) + data.draw(st.sampled_from([0, 0.001]))
        bound_j = certified_bound(network, drawn_w, deadline_s)[0]
        assert bound_j <= least_energy_j(plans, deadline_s) * (1 + 1e-12)


def test_good_prices_prove_the_optimum_worked_out_by_hand() -> None:
    """At 3.25 s the backward is to be stretched: a second of it is worth 25 W, of all 5 W less."""
    network = network_of(four_plan_model())
    assert certified_bound(network, np.array([25.0, 25.0, 25.0]), 3.25)[0] == pytest.approx(35)
    assert certified_bound(network, np.array([13.0, 13.0, 13.0]), 3.25)[0] < 35


@settings(max_examples=20)
@given(models(max_stages=3, max_microbatches=3), st.floats(1, 2))
def test_the_prices_that_a_solver_finds_make_it_tight(
    model: PipelineModel, slowdown: float
) -> None:
    deadline_s = DeadlineSolver(model).fastest_time_s * slowdown
    bound_j = HighsRelaxation(network_of(model)).solve(deadline_s).lower_bound_j
    assert bound_j == pytest.approx(plain_program_bound_j(model, deadline_s), rel=1e-6, abs=1e-6)
