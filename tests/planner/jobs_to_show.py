"""Jobs as the planner shows them, for tests of what is made of them: figures with known means."""

from __future__ import annotations

from dataclasses import replace

from flyball_client.cli.top.reading import FollowedJob
from flyball_wire.closed_loop import Straggler, StragglerReason, StragglerSource
from flyball_wire.messages import JobState
from flyball_wire.read_models import (
    JobOverview,
    MeasuredIteration,
    PlanKind,
    PlanSummary,
    PredictedIteration,
    StageOfStep,
    StagesOfStep,
    StepClocks,
)
from flyball_wire.savings import Estimate

NUM_STAGES, NUM_STEPS = 4, 40
CREATED_AT, HEARD_AT = "2026-01-05T09:00:00Z", "2026-01-05T09:29:57Z"

PREDICTED = PredictedIteration(
    iteration_time_s=2.0,
    energy_j=1600.0,
    baseline_iteration_time_s=2.0,
    baseline_energy_j=2000.0,
    saving_percent=20.0,
    gap_percent=0.125,
)
MEASURED = MeasuredIteration(
    clocks=StepClocks.PLAN,
    version=2,
    first_step=20,
    last_step=39,
    num_steps=20,
    iteration_time_s=2.01,
    energy_j=1620.0,
)
PLANNED = JobOverview(
    job_id="gpt3-night",
    state=JobState.PLANNED,
    emulated=True,
    num_stages=NUM_STAGES,
    num_microbatches=12,
    schedule="1f1b",
    num_ranks=NUM_STAGES,
    num_registered=NUM_STAGES,
    num_present=NUM_STAGES,
    newest_version=2,
    active_version=2,
    policy="frontier",
    target="fastest",
    predicted=PREDICTED,
    measured=MEASURED,
    measured_baseline_time_s=Estimate(mean=2.0, low=1.99, high=2.01, num_steps=18),
    measured_baseline_energy_j=Estimate(mean=2010.0, low=2000.0, high=2020.0, num_steps=18),
    slowdown_percent=Estimate(mean=0.5, low=0.25, high=0.75, num_steps=18),
    saving_percent=Estimate(mean=19.4, low=18.9, high=19.9, num_steps=18),
    saved_j=Estimate(mean=7800.0, low=7500.0, high=8100.0, num_steps=18),
    num_steps=NUM_STEPS,
    is_caught_up=True,
    problem=None,
    created_at=CREATED_AT,
    last_seen_at=HEARD_AT,
)
NEW = replace(
    PLANNED,
    job_id="llama-70b",
    state=JobState.AWAITING_PROFILE,
    emulated=False,
    num_ranks=8,
    num_registered=6,
    num_present=5,
    newest_version=None,
    active_version=None,
    predicted=None,
    measured=None,
    measured_baseline_time_s=None,
    measured_baseline_energy_j=None,
    slowdown_percent=None,
    saving_percent=None,
    saved_j=None,
    num_steps=0,
)
HISTORY = tuple(
    PlanSummary(
        version=version,
        kind=PlanKind.PLAN,
        schedule="1f1b",
        policy=policy,
        target="fastest",
        created_at=f"2026-01-05T09:0{version}:00Z",
        first_step=20 * (version - 1),
        predicted=PREDICTED,
        stage_clock_mhz=(1410.0, 1305.0, 1230.5, 1155.0),
    )
    for version, policy in ((1, "baseline"), (2, "frontier"))
)
MEASURED_MHZ = (1410.0, 1305.0, 1215.0, None)
STRAGGLER = Straggler(
    rank=3,
    source=StragglerSource.DETECTED,
    reason=StragglerReason.POWER,
    slowdown=1.25,
    from_time="2026-01-05T09:20:00Z",
    until_time=None,
    is_planned=True,
)


def stages_of_step(step: int, *, num_ranks: int = NUM_STAGES) -> StagesOfStep:
    """Step k: 2 s and, by stage, 500, 450, 400 and 350 J before step 20, then 100 J less each.

    In step 30 power holds stage 1 down, in step 35 heat stage 3, whose clock is never read back.
    """
    is_on_plan = step >= 20
    stages = tuple(
        StageOfStep(
            stage=stage,
            num_ranks=1,
            time_s=2.0,
            energy_j=500.0 - 50 * stage - 100 * is_on_plan,
            num_clock_misses=2 * ((step, stage) in {(30, 1), (35, 3)}),
            num_power_capped=2 * ((step, stage) == (30, 1)),
            num_thermally_capped=1 * ((step, stage) == (35, 3)),
            sm_clock_mhz=1110.0 if (step, stage) == (30, 1) else MEASURED_MHZ[stage],
        )
        for stage in range(num_ranks)
    )
    return StagesOfStep(
        step=step,
        num_ranks=num_ranks,
        plan_versions=(2,) if is_on_plan else (1,),
        time_s=2.0 + 0.01 * is_on_plan + 0.002 * (step % 5),
        energy_j=sum(stage.energy_j or 0.0 for stage in stages),
        stages=stages,
    )


STEPS = tuple(stages_of_step(step) for step in range(NUM_STEPS))
READING = FollowedJob(overview=PLANNED, steps=STEPS, history=HISTORY, stragglers=(STRAGGLER,))
