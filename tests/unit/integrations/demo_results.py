"""A demo result in which everything holds, for tests to spoil in one place."""

from __future__ import annotations

from typing import Any

from flyball_lab.demo.run_folder import ClocksOfStep
from flyball_lab.demo.verdict import DemoResult, Measurement
from flyball_wire.messages import JobRegistration, JobState, JobView, PlanView, RankView

NUM_STEPS = 3
VERSION = 2
PLANNED_STEPS = (5, 6, 7, 8)
NUM_STEPS_IN_ALL = 9
_STAGES = [
    [["forward", 0, 1410], ["backward", 0, 1200]],
    [["forward", 0, 1410], ["backward", 0, 1410]],
]


def rank_view(rank: int, *, acknowledged_version: int | None = VERSION) -> RankView:
    return RankView(
        rank=rank,
        stage=rank,
        host="here",
        gpu_name="emulated A100",
        gpu_uuid=f"EMULATED-{rank}",
        emulated=True,
        client_version="0",
        acknowledged_version=acknowledged_version,
        current_step=5,
    )


def job_view(*ranks: RankView) -> JobView:
    return JobView(
        job_id="demo",
        state=JobState.PLANNED,
        registration=JobRegistration(num_stages=2, num_microbatches=1),
        ranks=ranks,
        newest_version=VERSION,
        active_version=VERSION,
        problem=None,
        created_at="2025-01-01T00:00:00Z",
    )


def plan_view() -> PlanView:
    return PlanView(
        job_id="demo",
        version=VERSION,
        first_step=PLANNED_STEPS[0],
        created_at="2025-01-01T00:00:00Z",
        plan={
            "iteration_time_s": 1.0,
            "energy_j": 90.0,
            "baseline": {"iteration_time_s": 1.0, "energy_j": 100.0},
            "stages": _STAGES,
        },
    )


def measurement(
    *,
    energy_j: float,
    iteration_time_s: float = 1.01,
    num_steps: int = NUM_STEPS,
    num_unplanned: int = 0,
) -> Measurement:
    return Measurement(
        num_steps=num_steps,
        iteration_time_s=iteration_time_s,
        energy_j=energy_j,
        num_overruns=0,
        num_unplanned=num_unplanned,
    )


def witnessed_clocks() -> dict[int, list[ClocksOfStep]]:
    """Both devices at the highest clock until the plan's first step, then as planned."""
    highest: ClocksOfStep = (("forward", 1410), ("backward", 1410))
    planned: ClocksOfStep = (("forward", 1410), ("backward", 1200))
    num_before = PLANNED_STEPS[0]
    return {
        0: [highest] * num_before + [planned] * (NUM_STEPS_IN_ALL - num_before),
        1: [highest] * NUM_STEPS_IN_ALL,
    }


def demo_result(**spoiled: Any) -> DemoResult:  # noqa: ANN401 - any of the result's fields
    fields: dict[str, Any] = {
        "job": job_view(rank_view(0), rank_view(1)),
        "plan": plan_view(),
        "measured_baseline": measurement(energy_j=101.0),
        "measured_plan": measurement(energy_j=91.0),
        "witnessed": witnessed_clocks(),
        "planned_steps": PLANNED_STEPS,
        "losses": [4.5, 4.0, 3.5],
    }
    return DemoResult(**(fields | spoiled))
