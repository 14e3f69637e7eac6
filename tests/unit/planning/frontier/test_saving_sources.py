"""Sources of a plan's saving: derived by hand, and for pipelines drawn at random."""

from __future__ import annotations

import pytest
from hypothesis import given
from tests.unit.planning.tiny_pipelines import (
    B,
    F,
    assigned_any_models,
    equal_profile,
    profile_of,
    request_of,
)

from flyball_profiles.stage_profile import StageProfile
from flyball_server.planning.frontier.saving_sources import saving_sources
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.model.simulator import simulate
from flyball_server.planning.planner import make_plan
from flyball_wire.read_models import SavingSources


def sources_of(profile: StageProfile, num_microbatches: int, **options: object) -> SavingSources:
    solved = make_plan(request_of(profile, num_microbatches, **options))
    simulation = simulate(solved.model, solved.assignment)
    return saving_sources(solved.model, simulation, solved.plan.baseline_iteration_time_s)


def test_a_light_stage_saves_by_imbalance() -> None:
    """Stage 1 is busy for 8 s of 10 s; stage 0 for 4 s, and waits 3 s behind its second forward.

    That forward takes 2 s at 1000 MHz in place of 1 s: 8 J less, and 1 s less of waiting at 5 W.
    The first forward and both backwards are on the critical path.
    """
    light = {F: [(1410, 1.0, 20.0), (1000, 2.0, 12.0)], B: [(1410, 1.0, 20.0)]}
    heavy = {F: [(1410, 2.0, 40.0)], B: [(1410, 2.0, 40.0)]}
    assert sources_of(profile_of([light, heavy]), 2) == SavingSources(
        imbalance_j=13.0, bubbles_j=0.0, iteration_time_j=0.0, waiting_j=0.0
    )


def test_equal_stages_save_by_bubbles() -> None:
    """Each stage saves what it does without a longer iteration, and none is heavier."""
    solved = make_plan(request_of(equal_profile(2), 2))
    saved_j = solved.plan.baseline_energy_j - solved.plan.energy_j
    assert saved_j > 0
    sources = sources_of(equal_profile(2), 2)
    assert (sources.imbalance_j, sources.iteration_time_j) == (0.0, 0.0)
    assert sources.bubbles_j == pytest.approx(saved_j)


def test_equal_stages_at_the_least_energy_save_by_time() -> None:
    """All instructions are 1.25 times as long, and so is the iteration: 9 s become 11.25 s.

    Energy 4 x (10 + 30) + 5 x (2 x 9 - 12) = 190 J becomes 4 x (8 + 20) + 5 x (2 x 11.25 - 15).
    """
    sources = sources_of(equal_profile(2), 2, target="least-energy")
    assert (sources.imbalance_j, sources.bubbles_j) == (0.0, 0.0)
    assert sources.iteration_time_j == pytest.approx(190 - 149.5)


@given(assigned_any_models())
def test_the_sources_are_the_whole_saving(assigned: tuple[PipelineModel, list[int]]) -> None:
    model, assignment = assigned
    baseline, plan = simulate(model, model.baseline()), simulate(model, assignment)
    sources = saving_sources(model, plan, baseline.iteration_time_s)
    assert sum(vars(sources).values()) == pytest.approx(
        baseline.energy_j - plan.energy_j, abs=1e-9 * baseline.energy_j
    )
    if plan.iteration_time_s <= baseline.iteration_time_s:
        waiting_j = sum(model.stage_blocking_power_w) * (
            baseline.iteration_time_s - plan.iteration_time_s
        )
        assert sources.iteration_time_j == pytest.approx(waiting_j)
