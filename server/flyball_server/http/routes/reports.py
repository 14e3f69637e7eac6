"""Reports: what plans were measured to save, and comparisons that measure it."""

from __future__ import annotations

from typing import Annotated

from flyball_server.http.dependencies import JobId, JsonBody, State, call_router
from flyball_server.http.mapping.views import comparison_view, report_view
from flyball_server.http.openapi import view_examples
from flyball_server.http.openapi.documentation import (
    JSON_BODY_ERRORS,
    READ_ERRORS,
    answers,
    json_body,
)
from flyball_server.jobs.savings.comparisons import (
    delete_comparison,
    get_comparison,
    start_comparison,
)
from flyball_server.views.report import get_report
from flyball_wire import routes
from flyball_wire.closed_loop import ComparisonRequest, ComparisonView, ReportView

ROUTER = call_router("reports")


@ROUTER.get(
    routes.REPORT,
    name="get_report",
    summary="What has been measured and saved?",
    responses=answers(
        view_examples.REPORT, 404, *READ_ERRORS, meaning="What the job has measured so far."
    ),
)
def get_job_report(state: State, job_id: JobId) -> ReportView:
    """Time and energy of each plan version against a measured baseline, with 95 % intervals.

    What is predicted is called so. All of the job's steps are read for it: a job of millions of
    steps is answered after a minute or more.
    """
    return report_view(get_report(state.services, job_id))


@ROUTER.put(
    routes.COMPARISON,
    summary="Measure a plan against the highest clocks",
    dependencies=[JsonBody],
    responses=answers(
        view_examples.COMPARISON,
        404,
        409,
        *JSON_BODY_ERRORS,
        meaning="The comparison that runs now.",
    ),
)
def put_comparison(
    state: State,
    job_id: JobId,
    request: Annotated[ComparisonRequest, json_body(view_examples.COMPARISON_REQUEST)],
) -> ComparisonView:
    """Blocks of steps at the highest clocks in turn with the plan's, as a plan version of its own.

    When enough is measured the plain plan comes back as the next version; a plan that comes in
    between ends the comparison. The same again changes nothing while it runs. A job without a
    plan, or with one that is all at the highest clocks, is a 409.
    """
    return comparison_view(start_comparison(state.services, job_id, request.num_pairs))


@ROUTER.get(
    routes.COMPARISON,
    name="get_comparison",
    summary="How far is a comparison?",
    responses=answers(
        view_examples.COMPARISON, 404, *READ_ERRORS, meaning="The newest comparison."
    ),
)
def get_job_comparison(state: State, job_id: JobId) -> ComparisonView:
    """The newest comparison of the job; `state` is `none` where none was ever asked for."""
    return comparison_view(get_comparison(state.services, job_id))


@ROUTER.delete(
    routes.COMPARISON,
    name="delete_comparison",
    summary="End a comparison",
    status_code=204,
    responses={
        **{
            status: answer
            for status, answer in answers(view_examples.COMPARISON, 404, *READ_ERRORS).items()
            if status != 200
        },
        204: {"description": "No comparison runs, nor is one asked for."},
    },
)
def delete_job_comparison(state: State, job_id: JobId) -> None:
    """End a comparison that runs: the plain plan is the next version; measurements count."""
    delete_comparison(state.services, job_id)
