"""Histories and timelines of plans as they cross the wire; the rest of `mapping`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flyball_server.http.rendering import rendered
from flyball_server.planning.documents.predicted_timeline import PredictedTimeline
from flyball_server.planning.documents.timeline_rows import (
    TimelineRow,
    critical_places,
    timeline_rows,
)
from flyball_server.planning.plan import PlanPrediction
from flyball_server.views.history import PlanSummary
from flyball_server.views.plan_facts import Prediction
from flyball_server.views.plan_timeline import PlanTimeline
from flyball_wire import read_models

# Decimals of times in s and of energies in J: what a picture shows of them.
_TIME_DECIMALS, _ENERGY_DECIMALS = 6, 3


def rendered_history(summaries: Iterable[PlanSummary]) -> bytes:
    """The JSON of a history."""
    views = tuple(plan_summary_view(summary) for summary in summaries)
    return rendered(tuple[read_models.PlanSummary, ...], views)


def plan_summary_view(summary: PlanSummary) -> read_models.PlanSummary:
    """A plan version without its instructions."""
    prediction = summary.prediction
    return read_models.PlanSummary(
        version=summary.version,
        kind=summary.kind,
        schedule=summary.schedule,
        policy=summary.policy,
        target=summary.target,
        created_at=summary.created_at.isoformat(),
        first_step=summary.first_step,
        predicted=None if prediction is None else predicted_iteration(prediction),
        stage_clock_mhz=tuple(round(clock_mhz, 3) for clock_mhz in summary.stage_clock_mhz),
    )


def predicted_iteration(prediction: PlanPrediction | Prediction) -> read_models.PredictedIteration:
    """What the model predicts for a plan."""
    return read_models.PredictedIteration(
        iteration_time_s=prediction.iteration_time_s,
        energy_j=prediction.energy_j,
        baseline_iteration_time_s=prediction.baseline_iteration_time_s,
        baseline_energy_j=prediction.baseline_energy_j,
        saving_percent=prediction.saving_percent,
        gap_percent=prediction.gap_percent,
    )


def timeline_view(timeline: PlanTimeline) -> read_models.TimelineView:
    """A version's timeline, times to 1e-6 s and energies to 1e-3 J."""
    key = timeline.key
    return read_models.TimelineView(
        job_id=key.job_id,
        version=key.version,
        emulated=key.emulated,
        is_as_planned=timeline.is_as_planned,
        schedule=timeline.schedule,
        num_microbatches=timeline.num_microbatches,
        plan=_timeline_of_plan(timeline.plan, timeline.dp_ranks),
        baseline=_timeline_of_plan(timeline.baseline, timeline.dp_ranks),
    )


def _timeline_of_plan(
    timeline: PredictedTimeline, dp_ranks: Sequence[int]
) -> read_models.TimelineOfPlan:
    whole = timeline.simulation.whole
    return read_models.TimelineOfPlan(
        iteration_time_s=round(whole.iteration_time_s, _TIME_DECIMALS),
        energy_j=round(whole.energy_j, _ENERGY_DECIMALS),
        bubble_fraction=round(whole.bubble_fraction, 6),
        rows=tuple(_row(row) for row in timeline_rows(timeline, dp_ranks)),
        critical_path=critical_places(timeline),
    )


def _row(row: TimelineRow) -> read_models.TimelineRow:
    return read_models.TimelineRow(
        stage=row.stage,
        dp_rank=row.dp_rank,
        blocking_power_w=round(row.blocking_power_w, _ENERGY_DECIMALS),
        kinds=tuple(item.kind.value for item in row.instructions),
        microbatches=tuple(item.microbatch for item in row.instructions),
        chunks=tuple(item.chunk for item in row.instructions),
        clock_mhz=row.clock_mhz,
        start_s=_rounded(row.start_s, _TIME_DECIMALS),
        duration_s=_rounded(row.duration_s, _TIME_DECIMALS),
        energy_j=_rounded(row.energy_j, _ENERGY_DECIMALS),
        float_s=_rounded(row.float_s, _TIME_DECIMALS),
    )


def _rounded(values: Iterable[float], decimals: int) -> tuple[float, ...]:
    return tuple(round(value, decimals) for value in values)
