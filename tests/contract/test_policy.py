"""The contract of a policy (`planning/policies/_base.py`), over every registered policy."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from tests.unit.planning.oracles import every_plan, least_energy_j
from tests.unit.planning.tiny_pipelines import (
    any_enumerable_models,
    any_models,
    equal_profile,
    model_of,
)

from flyball_pipeline.errors import PipelineError
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.model.simulator import simulate
from flyball_server.planning.policies import POLICIES
from flyball_server.planning.policies._base import PolicyChoice, PolicyRequest
from flyball_wire.plan_options import Effort, PlanOptions, Policy, Reconfigure

# The forms a user may write (DESIGN: `--target`); a policy need not know them all.
TARGETS = ["slowdown:0", "slowdown:0.2", "deadline:100", "least-energy", "power:1000"]


def request_of(model: PipelineModel, target: str = "fastest") -> PolicyRequest:
    return PolicyRequest(
        model=model,
        reconfigure_granularity_mhz=30,
        options=PlanOptions(reconfigure=Reconfigure.BALANCED, target=target, effort=Effort.LOW),
    )


def assert_valid(choice: PolicyChoice, model: PipelineModel) -> None:
    assert len(choice.assignment) == model.dag.num_nodes
    for index, points in zip(choice.assignment, model.points, strict=True):
        assert isinstance(index, int)
        assert 0 <= index < len(points)
    if choice.lower_bound_j is not None:
        energy_j = simulate(model, choice.assignment).energy_j
        assert choice.lower_bound_j <= energy_j * (1 + 1e-9)  # a solver's own tolerance


@pytest.mark.parametrize("policy", sorted(POLICIES))
class TestPolicy:
    @settings(max_examples=20)
    @given(model=any_models(max_stages=2, max_microbatches=3))
    def test_gives_the_same_request_the_same_valid_choice_no_slower_than_the_baseline(
        self, policy: Policy, model: PipelineModel
    ) -> None:
        choice = POLICIES[policy](request_of(model))
        assert_valid(choice, model)
        baseline_s = simulate(model, model.baseline()).iteration_time_s
        time_s = simulate(model, choice.assignment).iteration_time_s
        assert time_s <= baseline_s * (1 + 1e-9)
        decided = list(choice.assignment)
        choice.assignment[:] = [-1] * len(decided)  # what a caller does with it stays with him
        assert POLICIES[policy](request_of(model)).assignment == decided

    @settings(max_examples=12)  # each tries up to some thousand plans
    @given(model=any_enumerable_models())
    def test_knows_no_bound_above_the_best_of_all_plans(
        self, policy: Policy, model: PipelineModel
    ) -> None:
        choice = POLICIES[policy](request_of(model))
        simulation = simulate(model, choice.assignment)
        best_j = least_energy_j(every_plan(model), simulation.iteration_time_s * (1 + 1e-9))
        assert simulation.energy_j >= best_j * (1 - 1e-9)
        if choice.lower_bound_j is not None:
            assert choice.lower_bound_j <= best_j * (1 + 1e-9)

    @pytest.mark.parametrize("target", TARGETS)
    def test_meets_a_target_or_refuses_it_by_name(self, policy: Policy, target: str) -> None:
        model = model_of(equal_profile(3), 4)
        try:
            choice = POLICIES[policy](request_of(model, target))
        except PipelineError as error:
            assert error.field == "target"
        else:
            assert_valid(choice, model)
            simulation = simulate(model, choice.assignment)
            baseline_s = simulate(model, model.baseline()).iteration_time_s
            kind, _, value = target.partition(":")
            if kind == "slowdown":
                limit_s = baseline_s * (1 + float(value))
                assert simulation.iteration_time_s <= limit_s * (1 + 1e-9)
            elif kind == "deadline":
                assert simulation.iteration_time_s <= float(value) * (1 + 1e-9)
            elif kind == "power":
                power_w = simulation.energy_j / simulation.iteration_time_s
                assert power_w <= float(value) * (1 + 1e-9)

    @pytest.mark.parametrize(
        "target", ["deadline:0.001", "power:0.001", "soon", "", "slowdown:", "slowdown:nan"]
    )
    def test_refuses_a_target_that_nobody_can_meet_or_read(
        self, policy: Policy, target: str
    ) -> None:
        with pytest.raises(PipelineError) as error:
            POLICIES[policy](request_of(model_of(equal_profile(3), 4), target))
        assert error.value.field == "target"
