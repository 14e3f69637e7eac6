"""Examples of overviews and steps by stages for the API's description."""

from __future__ import annotations

from flyball_wire.closed_loop import Estimate
from flyball_wire.read_models import (
    JobOverview,
    MeasuredIteration,
    Overview,
    PredictedIteration,
    StageOfStep,
    StagesOfStep,
)

JOB_OVERVIEW = JobOverview(
    job_id="gpt2-demo",
    state="planned",
    emulated=True,
    num_stages=2,
    num_microbatches=2,
    schedule="1f1b",
    num_ranks=2,
    num_registered=2,
    num_present=2,
    newest_version=2,
    active_version=2,
    policy="frontier",
    target="fastest",
    predicted=PredictedIteration(
        iteration_time_s=0.86,
        energy_j=442.9,
        baseline_iteration_time_s=0.86,
        baseline_energy_j=498.2,
        saving_percent=11.1,
        gap_percent=0.13,
    ),
    measured=MeasuredIteration(
        clocks="plan",
        version=2,
        first_step=464,
        last_step=479,
        num_steps=16,
        iteration_time_s=0.8613,
        energy_j=444.3,
    ),
    measured_baseline_time_s=Estimate(mean=0.8604, low=0.8597, high=0.8611, num_steps=60),
    measured_baseline_energy_j=Estimate(mean=498.5, low=496.2, high=500.8, num_steps=60),
    slowdown_percent=Estimate(mean=0.1, low=0.01, high=0.19, num_steps=60),
    saving_percent=Estimate(mean=10.87, low=10.36, high=11.38, num_steps=60),
    saved_j=Estimate(mean=3250.1, low=3091.4, high=3408.8, num_steps=60),
    num_steps=480,
    is_caught_up=True,
    problem=None,
    created_at="2026-01-05T09:30:00+00:00",
    heard_at="2026-01-05T09:37:02.117000+00:00",
)

OVERVIEW = Overview(jobs=(JOB_OVERVIEW,))

STAGES_OF_STEP = StagesOfStep(
    step=479,
    num_ranks=2,
    plan_versions=(2,),
    time_s=0.8615,
    energy_j=444.1,
    stages=(
        StageOfStep(
            stage=0,
            num_ranks=1,
            time_s=0.8615,
            energy_j=251.3,
            num_clock_misses=0,
            num_power_capped=0,
            num_thermally_capped=0,
            sm_clock_mhz=1297.5,
        ),
        StageOfStep(
            stage=1,
            num_ranks=1,
            time_s=0.8609,
            energy_j=192.8,
            num_clock_misses=1,
            num_power_capped=1,
            num_thermally_capped=0,
            sm_clock_mhz=1372.5,
        ),
    ),
)
