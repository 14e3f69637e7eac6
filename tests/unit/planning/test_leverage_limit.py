"""Plans within a limit of leverage, against every plan there is."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tests.unit.planning.oracles import every_plan
from tests.unit.planning.tiny_pipelines import B, F, equal_profile, profile_of, request_of

from flyball_pipeline.instruction import InstructionKind
from flyball_server.planning.errors import TargetUnreachableError
from flyball_server.planning.leverage_limit import LeverageLimit, plan_within

CLOCKS_MHZ = (1410, 1200, 1000)
# The second stage is the heavier one, so that the first can run slower.
PROFILE = profile_of(
    [
        {
            kind: [
                (mhz, work_s * scale * 1410 / mhz, 60 * work_s * scale * (mhz / 1410) ** 1.5)
                for mhz in CLOCKS_MHZ
            ]
            for kind, work_s in ((F, 1.0), (B, 2.0))
        }
        for scale in (1.0, 1.25)
    ]
)
REQUEST = request_of(PROFILE, 2, target="slowdown:10%")


def at_lowest(largest: float, *, at_most: bool = True) -> LeverageLimit:
    """Leverage of a stage: its number of instructions at 1000 MHz, or at others, squared."""
    return LeverageLimit(
        of_stage=np.zeros((2, 1)),
        of_instruction={
            (stage, kind, mhz): np.array([float((mhz == 1000) is at_most)])
            for stage, kind, mhz in itertools.product(range(2), (F, B), CLOCKS_MHZ)
        },
        largest=largest,
    )


def lowest_of_stages(stages: list[list[int]]) -> list[int]:
    return [clocks.count(1000) for clocks in stages]


@pytest.mark.parametrize("num_lowest", range(4))
def test_it_is_near_the_best_of_all_plans_within_the_limit(num_lowest: int) -> None:
    solved = plan_within(REQUEST, at_lowest(num_lowest**2))
    assert solved is not None
    clocks = [[each.frequency_mhz for each in of_stage] for of_stage in solved.plan.stages]
    assert max(lowest_of_stages(clocks)) <= num_lowest
    model, deadline_s = solved.model, 1.1 * solved.plan.predicted.baseline_iteration_time_s
    num_choices = [range(len(points)) for points in model.points]
    stage = np.array(model.dag.stage)
    best_j = min(
        energy_j
        for assignment, (time_s, energy_j) in zip(
            itertools.product(*num_choices), every_plan(model), strict=True
        )
        if time_s <= deadline_s
        and np.bincount(stage, np.array(assignment) == 2).max() <= num_lowest
    )
    assert solved.plan.iteration_time_s <= deadline_s
    assert best_j <= solved.plan.predicted.energy_j * (1 + 1e-9)
    assert solved.plan.predicted.energy_j <= 1.03 * best_j


def test_a_limit_that_no_plan_keeps_gives_none() -> None:
    limit = at_lowest(0)
    beyond = LeverageLimit(
        of_stage=limit.of_stage + 1, of_instruction=limit.of_instruction, largest=0.5
    )
    assert plan_within(REQUEST, beyond) is None


def test_a_target_that_no_plan_meets_is_refused_as_without_a_limit() -> None:
    request = request_of(equal_profile(2), 2, target="deadline:1")
    kinds: tuple[InstructionKind, ...] = (F, B)
    limit = LeverageLimit(
        of_stage=np.zeros((2, 1)),
        of_instruction={
            key: np.zeros(1) for key in itertools.product(range(2), kinds, (1410, 1000))
        },
        largest=1.0,
    )
    with pytest.raises(TargetUnreachableError, match="no plan takes 1 s"):
        plan_within(request, limit)
