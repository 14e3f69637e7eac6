"""Examples of histories and timelines for the API's description."""

from __future__ import annotations

from dataclasses import replace

from flyball_wire.read_models import (
    PlanSummary,
    PredictedIteration,
    TimelineOfPlan,
    TimelineRow,
    TimelineView,
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
