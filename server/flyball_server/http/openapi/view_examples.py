"""Examples of overviews and steps by stages for the API's description."""

from __future__ import annotations

from dataclasses import replace

from flyball_wire import closed_loop
from flyball_wire.closed_loop import (
    ComparisonRequest,
    ComparisonView,
    Estimate,
    ReportView,
    SavingView,
    StragglerReport,
    StragglerView,
    Timetable,
    TimetableView,
    TimetableWindow,
)
from flyball_wire.read_models import (
    JobOverview,
    MeasuredIteration,
    Overview,
    PlanSummary,
    PredictedIteration,
    StageOfStep,
    StagesOfStep,
    TimelineOfPlan,
    TimelineRow,
    TimelineView,
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


_KINDS_FIRST = ("forward", "forward", "backward", "backward")
_KINDS_LAST = ("forward", "backward", "forward", "backward")

PLAN_SUMMARY = PlanSummary(
    version=1,
    kind="plan",
    schedule="1f1b",
    policy="frontier",
    target="fastest",
    created_at="2026-01-05T09:30:00.123456+00:00",
    first_step=6,
    predicted=PredictedIteration(
        iteration_time_s=0.9,
        energy_j=395.9,
        baseline_iteration_time_s=0.9,
        baseline_energy_j=410.0,
        saving_percent=3.439,
        gap_percent=0.0,
    ),
    stage_clock_mhz=(1300.0, 1410.0),
)

_FIRST_STAGE_AT_HIGHEST = TimelineRow(
    stage=0,
    dp_rank=0,
    blocking_power_w=70.0,
    kinds=_KINDS_FIRST,
    microbatches=(0, 1, 0, 1),
    chunks=(0, 0, 0, 0),
    clock_mhz=(1410, 1410, 1410, 1410),
    start_s=(0.0, 0.1, 0.4, 0.7),
    duration_s=(0.1, 0.1, 0.2, 0.2),
    energy_j=(30.0, 30.0, 62.0, 62.0),
    float_s=(0.0, 0.2, 0.1, 0.0),
)
_FIRST_STAGE = replace(
    _FIRST_STAGE_AT_HIGHEST,
    clock_mhz=(1410, 1200, 1200, 1410),
    duration_s=(0.1, 0.11, 0.22, 0.2),
    energy_j=(30.0, 26.0, 54.0, 62.0),
    float_s=(0.0, 0.19, 0.08, 0.0),
)
_LAST_STAGE = TimelineRow(
    stage=1,
    dp_rank=0,
    blocking_power_w=70.0,
    kinds=_KINDS_LAST,
    microbatches=(0, 0, 1, 1),
    chunks=(0, 0, 0, 0),
    clock_mhz=(1410, 1410, 1410, 1410),
    start_s=(0.1, 0.2, 0.4, 0.5),
    duration_s=(0.1, 0.2, 0.1, 0.2),
    energy_j=(30.0, 62.0, 30.0, 62.0),
    float_s=(0.0, 0.0, 0.0, 0.0),
)
_CRITICAL_PATH = ((0, 0), (1, 0), (1, 1), (1, 2), (1, 3), (0, 3))

TIMELINE = TimelineView(
    job_id="gpt2-demo",
    version=1,
    emulated=True,
    is_as_planned=True,
    schedule="1f1b",
    num_microbatches=2,
    plan=TimelineOfPlan(
        iteration_time_s=0.9,
        energy_j=395.9,
        bubble_fraction=0.316667,
        rows=(_FIRST_STAGE, _LAST_STAGE),
        critical_path=_CRITICAL_PATH,
    ),
    baseline=TimelineOfPlan(
        iteration_time_s=0.9,
        energy_j=410.0,
        bubble_fraction=0.333333,
        rows=(_FIRST_STAGE_AT_HIGHEST, _LAST_STAGE),
        critical_path=_CRITICAL_PATH,
    ),
)


COMPARISON_REQUEST = ComparisonRequest(num_pairs=60)

COMPARISON = ComparisonView(state="running", version=2, num_pairs=60, num_measured_pairs=24)

REPORT = ReportView(
    job_id="gpt2-demo",
    emulated=True,
    num_ranks=2,
    num_steps=480,
    time_s=412.8,
    energy_j=214310.5,
    saved_j=Estimate(mean=3250.1, low=3091.4, high=3408.8, num_steps=60),
    profiling_time_s=None,
    profiling_energy_j=None,
    versions=(
        SavingView(
            version=2,
            policy="frontier",
            target="fastest",
            time_s=Estimate(mean=0.8613, low=0.8606, high=0.862, num_steps=60),
            energy_j=Estimate(mean=444.3, low=442.1, high=446.5, num_steps=60),
            baseline_time_s=Estimate(mean=0.8604, low=0.8597, high=0.8611, num_steps=60),
            baseline_energy_j=Estimate(mean=498.5, low=496.2, high=500.8, num_steps=60),
            baseline="interleaved",
            slowdown_percent=Estimate(mean=0.1, low=0.01, high=0.19, num_steps=60),
            saving_percent=Estimate(mean=10.87, low=10.36, high=11.38, num_steps=60),
            saved_j=Estimate(mean=3250.1, low=3091.4, high=3408.8, num_steps=60),
            num_steps=60,
            num_left_out=1,
            predicted_time_s=0.86,
            predicted_energy_j=442.9,
            predicted_saving_percent=11.1,
        ),
    ),
)


PROFILING = closed_loop.ProfilingView(
    job_id="gpt2-demo",
    state="probing",
    problem=None,
    num_steps=48,
    points=(
        closed_loop.ProbedPointView(
            stage=0,
            instruction="forward",
            chunk=0,
            frequency_mhz=1410,
            time_s=0.0502,
            time_error_s=0.00002,
            energy_j=23.8,
            energy_error_j=0.11,
            num_probes=1080,
        ),
    ),
    blocking_power_w=(83.1,),
    blocking_power_error_w=(0.9,),
    slowdown_limit=0.1,
    largest_slowdown=0.071,
    extra_time_s=9.4,
    extra_energy_j=-812.0,
    emulated=True,
)


STRAGGLER_REPORT = StragglerReport(
    rank=5, slowdown=1.15, from_time="2026-11-21T22:00:00+01:00", until_time=None
)

STRAGGLER = StragglerView(
    rank=5,
    source="announced",
    reason="slow",
    slowdown=1.15,
    from_time="2026-11-21T21:00:00+00:00",
    until_time=None,
    is_in_force=False,
)

DETECTED_STRAGGLER = StragglerView(
    rank=9,
    source="detected",
    reason="thermal",
    slowdown=1.083,
    from_time="2026-11-21T20:14:09.512000+00:00",
    until_time=None,
    is_in_force=True,
)

TIMETABLE = Timetable(
    windows=(
        TimetableWindow(from_time="22:00", until_time="06:00", target="least-energy"),
        TimetableWindow(
            from_time="17:00",
            until_time="20:00",
            target="power:8000",
            days=("mon", "tue", "wed", "thu", "fri"),
        ),
    ),
    timezone="Europe/Berlin",
)

TIMETABLE_VIEW = TimetableView(
    timetable=TIMETABLE, target_in_force="power:8000", next_change="2026-11-20T19:00:00+00:00"
)
