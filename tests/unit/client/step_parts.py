"""Parts of a plan whose steps have plans of their own, for ranks of small pipelines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.unit.pipeline.small_pipelines import BACKWARD, FORWARD

from flyball_pipeline.instruction import InstructionKind, equal_stages
from flyball_pipeline.schedules.inputs import ScheduleInputs
from flyball_pipeline.schedules.table import make_schedule
from flyball_pipeline.step_curves import ClockPoint
from flyball_pipeline.work import WorkCoefficients
from flyball_wire.plans.rank_pipeline import packed_pipeline
from flyball_wire.plans.rank_plan import RankPlan, rank_plan

HIGHEST_MHZ = 1400
SUPPORTED_MHZ = (1400, 1300, 1200, 1000)
COEFFICIENTS = WorkCoefficients(0.2, 0.1, 0.01)
LIGHT, HEAVY = [[1, 2], [2]], [[4, 3], [5]]


def part_of_stage(
    stage: int,
    num_stages: int,
    version: int = 1,
    num_microbatches: int = 2,
    **rules: Any,  # noqa: ANN401
) -> RankPlan:
    """Return a stage's part of a plan at the highest clocks."""
    schedule = make_schedule(
        "1f1b", ScheduleInputs(shape=equal_stages(num_stages, num_microbatches))
    )
    points: dict[tuple[int, InstructionKind, int], Sequence[ClockPoint]] = {
        (each, kind, 0): points
        for each in range(num_stages)
        for kind, points in (
            (InstructionKind.FORWARD, FORWARD),
            (InstructionKind.BACKWARD, BACKWARD),
        )
    }
    clocks_mhz = [[HIGHEST_MHZ] * len(of_stage) for of_stage in schedule.stages]
    coefficients = dict.fromkeys(points, COEFFICIENTS)
    return rank_plan(
        [(str(kind), microbatch, HIGHEST_MHZ, 0) for kind, microbatch, _ in schedule.stages[stage]],
        job_id="gpt",
        version=version,
        stage=stage,
        first_step=0,
        predicted_iteration_time_s=1.0,
        pipeline=packed_pipeline(
            schedule,
            clocks_mhz,
            points,
            waiting_power_w=[80.0] * num_stages,
            coefficients=coefficients,
            **rules,
        ),
    )
