"""Reports of measured savings, and the comparisons that measure them."""

from __future__ import annotations

from flyball_server.http.dependencies import JobId, State
from flyball_server.http.openapi.documentation import call_router, problems
from flyball_server.jobs.savings import comparisons
from flyball_server.views import recorded_runs, report
from flyball_wire import routes
from flyball_wire.closed_loop import ComparisonRequest, ComparisonStatus, JobReport, RecordedRuns

ROUTER = call_router("reports")


@ROUTER.get(
    routes.REPORT,
    summary="Get measured times, energies and savings",
    response_description="The job's measurements so far.",
)
def get_report(state: State, job_id: JobId) -> JobReport:
    """Return time and energy of each plan version against a measured baseline.

    Each has a 95 % interval; predictions have `predicted` in their names. All of the job's steps
    are read: with millions of steps this takes a minute or more.
    """
    return report.get_report(state.services, job_id)


@ROUTER.get(
    routes.RECORDED_RUNS,
    summary="Get the measured steps of each plan as recorded runs",
    response_description="The job's measurements so far, in the format of `flyball replay`.",
    responses=problems(409),
)
def get_recorded_runs(state: State, job_id: JobId) -> RecordedRuns:
    """Return clocks, iteration time, energies and instruction times of each plan version.

    Only steps that count in the report are in it. All of the job's steps are read, as for the
    report. A job with fewer than two versions that can be replayed is a 409.
    """
    return recorded_runs.get_recorded_runs(state.services, job_id)


@ROUTER.put(
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


@ROUTER.get(
    routes.COMPARISON,
    summary="Get the progress of a comparison",
    response_description="The newest comparison.",
)
def get_comparison(state: State, job_id: JobId) -> ComparisonStatus:
    """Return the job's newest comparison; `state` is `none` before the first one."""
    return comparisons.get_comparison(state.services, job_id)


@ROUTER.delete(
    routes.COMPARISON,
    summary="End a comparison",
    status_code=204,
    response_description="No comparison runs or is requested.",
)
def delete_comparison(state: State, job_id: JobId) -> None:
    """End the comparison that runs: the plan itself is the next version; measurements stay."""
    comparisons.delete_comparison(state.services, job_id)
