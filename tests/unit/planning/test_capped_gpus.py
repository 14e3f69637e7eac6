"""Plans of GPUs whose power limit is below their highest clocks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.unit.planning.tiny_pipelines import (
    B,
    F,
    changed_points,
    every_choice,
    model_of,
    profile_of,
    request_of,
)

from flyball_pipeline.instruction import InstructionKind
from flyball_profiles.stage_profile import OperatingPoint, StageProfile
from flyball_server.planning.model.late_clocks import LateClockSimulator
from flyball_server.planning.model.simulator import time_and_energy
from flyball_server.planning.model.unheld_clocks import limits_text, with_fewest_changes
from flyball_server.planning.planner import make_plan
from flyball_wire.plan_options import Policy


def capped(num_stages: int = 2) -> StageProfile:
    """Backwards run as at 1400 MHz under any higher lock; forwards hold all their clocks."""
    stages = [
        {
            F: [(1700, 0.5, 20.0), (1550, 0.6, 19.0), (1400, 0.7, 16.0)],
            B: [(1700, 1.0, 60.0), (1550, 1.0, 60.0), (1400, 1.0, 58.0)],
        }
    ] * num_stages

    def held(key: tuple[int, InstructionKind], point: OperatingPoint) -> OperatingPoint:
        is_held = key[1] is F or point.frequency_mhz == 1400
        return replace(point, held_by="" if is_held else "power")

    return changed_points(profile_of(stages), held)


def test_at_no_slowdown_one_clock_below_the_cap_saves_and_is_what_a_plan_must_beat() -> None:
    profile = changed_points(
        capped(), lambda key, one: replace(one, time_s=0.5) if key[1] is F else one
    )
    solved = make_plan(request_of(profile, 3, target="fastest"))
    constant, for_all = solved.plan.predicted.compared
    assert (constant.name, for_all.name) == (Policy.CONSTANT, Policy.GLOBAL)
    assert constant.energy_j == pytest.approx(6 * (16.0 + 58.0) + 5 * 2 * 1.5)
    assert constant.iteration_time_s == solved.plan.predicted.baseline_iteration_time_s
    assert solved.plan.predicted.energy_j == pytest.approx(constant.energy_j)
    assert limits_text(solved.models) == (
        "clocks above 1400 MHz are not held (power): the baseline is what the GPUs do"
        " when left alone"
    )


def test_no_clock_changes_for_an_instruction_that_would_not_hold_it() -> None:
    """Forwards at 1550 MHz between backwards that do not hold it either."""
    model = model_of(capped(1), 3)
    plan = [1 if instruction.kind is F else 0 for instruction in model.dag.instruction]
    fewer = with_fewest_changes(model, plan)
    assert fewer == [1] * len(plan)
    assert time_and_energy(model, fewer) == time_and_energy(model, plan)
    # A backward at its own lower clock keeps that, and the plan is the same where all are held.
    plan[model.dag.instruction.index(next(i for i in model.dag.instruction if i.kind is B))] = 2
    assert with_fewest_changes(model, plan).count(2) == 1
    held = model_of(changed_points(capped(1), lambda _, one: replace(one, held_by="")), 3)
    assert with_fewest_changes(held, plan) == plan


def test_no_plan_gets_more_changes_or_other_figures() -> None:
    model = model_of(capped(1), 2)
    late = LateClockSimulator(replace(model, transitions=None))
    for plan in every_choice(model).tolist():
        fewer = with_fewest_changes(model, plan)
        assert time_and_energy(model, fewer) == time_and_energy(model, plan)
        before, after = (late.num_switches(np.array([one]))[0] for one in (plan, fewer))
        assert after <= before


def test_where_all_clocks_are_held_there_is_nothing_to_say() -> None:
    held = changed_points(capped(), lambda _, one: replace(one, held_by=""))
    assert limits_text([model_of(held, 1)]) == ""
    # Not even the lowest one is held: nothing is known of what is.
    never = changed_points(capped(), lambda _, one: replace(one, held_by="power"))
    assert limits_text([model_of(never, 1)]) == ""
