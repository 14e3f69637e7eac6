"""Measured steps of a job, reports of its savings, and the comparisons that measure them."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response
from pydantic import BeforeValidator

from flyball_server.http.dependencies import AfterStep, JobId, State, in_digits
from flyball_server.http.openapi.documentation import JSON, call_router, problems
from flyball_server.jobs.measurements.measurements import list_steps
from flyball_server.jobs.savings import comparisons
from flyball_server.kit.checked_documents import adapter_of
from flyball_server.views import recorded_runs, report
from flyball_server.views.stage_steps import list_stage_steps
from flyball_wire import routes
from flyball_wire.closed_loop import ComparisonRequest, ComparisonStatus, RecordedRuns
from flyball_wire.measurements import JobStep
from flyball_wire.read_models import StagesOfStep
from flyball_wire.savings import JobReport

STEPS_ROUTER = call_router("steps")
Limit = Annotated[
    int,
    Query(ge=1, le=10_000, description="Limit on the number of steps; the newest are returned."),
    BeforeValidator(in_digits),
]


@STEPS_ROUTER.get(
    routes.STEPS,
    summary="List measured steps",
    response_description="The newest steps, in ascending order.",
)
def get_steps(state: State, job_id: JobId, limit: Limit = 100) -> tuple[JobStep, ...]:
    """Return each step over the ranks that posted it: the slowest rank's time, their energy."""
    return list_steps(state.services, job_id, limit=limit)


@STEPS_ROUTER.get(
    routes.STAGES_OF_STEPS,
    summary="List measured steps by stages",
    response_model=list[StagesOfStep],
    response_description="The newest steps, in ascending order.",
)
def get_stages_of_steps(
    state: State, job_id: JobId, limit: Limit = 100, after_step: AfterStep = -1
) -> Response:
    """Return each step by stages: the slowest rank's time, the energy of the stage's ranks.

    An answer holds at most 32,768 stages and 262,144 measurements of ranks, so it may have
    fewer steps than `limit`.
    """
    steps = list_stage_steps(state.services, job_id, limit=limit, after_step=after_step)
    return Response(adapter_of(tuple[StagesOfStep, ...]).dump_json(steps), media_type=JSON)


REPORTS_ROUTER = call_router("reports")


@REPORTS_ROUTER.get(
    routes.REPORT,
    summary="Get measured times, energies and savings",
    response_description="The job's measurements so far.",
)
def get_report(state: State, job_id: JobId) -> JobReport:
    """Return time and energy of each plan version against a measured baseline.

    Each has a 95 % interval; predictions have `predicted` in their names. The figures come from
    running totals, so the answer takes no longer for a job with millions of steps.
    """
    return report.get_report(state.services, job_id)


@REPORTS_ROUTER.get(
    routes.RECORDED_RUNS,
    summary="Get the measured steps of each plan as recorded runs",
    response_description="The job's measurements so far, in the format of `flyball replay`.",
    responses=problems(409),
)
def get_recorded_runs(state: State, job_id: JobId) -> RecordedRuns:
    """Return clocks, iteration time, energies and instruction times of each plan version.

    Only steps that count in the report are in it. All of the job's steps are read: with millions
    of steps this takes a minute or more. A job with fewer than two versions that can be replayed is
    a 409.
    """
    return recorded_runs.get_recorded_runs(state.services, job_id)


@REPORTS_ROUTER.put(
    routes.COMPARISON,
    summary="Measure a plan against the highest clocks",
    response_description="The comparison that runs now.",
    responses=problems(409),
)
def put_comparison(state: State, job_id: JobId, request: ComparisonRequest) -> ComparisonStatus:
    """Alternate blocks of steps at the highest clocks with the plan's, as a new plan version.

    After the requested number of pairs the plan itself returns as the next version; another plan
    ends the comparison early. Repeating the call while it runs changes nothing. A job without a
    plan, or with one that has all instructions at the highest clocks, is a 409.
    """
    return comparisons.start_comparison(state.services, job_id, request.num_pairs)


@REPORTS_ROUTER.get(
    routes.COMPARISON,
    summary="Get the progress of a comparison",
    response_description="The newest comparison.",
)
def get_comparison(state: State, job_id: JobId) -> ComparisonStatus:
    """Return the job's newest comparison; `state` is `none` before the first comparison."""
    return comparisons.get_comparison(state.services, job_id)


@REPORTS_ROUTER.delete(
    routes.COMPARISON,
    summary="End a comparison",
    status_code=204,
    response_description="No comparison runs or is requested.",
)
def delete_comparison(state: State, job_id: JobId) -> None:
    """End the comparison that runs: the plan itself is the next version; measurements stay."""
    comparisons.delete_comparison(state.services, job_id)
