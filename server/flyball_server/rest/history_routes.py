"""The history of a job's plan: every version in a line."""

from __future__ import annotations

from fastapi import APIRouter

from flyball_client import routes, wire_views
from flyball_server.jobs.history import plan_summaries
from flyball_server.rest import plan_view_examples
from flyball_server.rest.dependencies import JobId, State
from flyball_server.rest.documentation import READ_ERRORS, answers
from flyball_server.rest.plan_view_mapping import plan_summary_view

ROUTER = APIRouter(tags=["plans"])


@ROUTER.get(
    routes.HISTORY,
    name="get_history",
    summary="The history of a job's plan",
    responses=answers(
        [plan_view_examples.PLAN_SUMMARY], 404, *READ_ERRORS, meaning="All versions, rising."
    ),
)
def get_job_history(state: State, job_id: JobId) -> list[wire_views.PlanSummary]:
    """Every version with its prediction and the mean clock of each stage, without instructions.

    What is read of a version is remembered; the first call for a job with hundreds of large
    versions is answered after a minute or more.
    """
    found = plan_summaries(state.services, job_id, state.histories)
    return [plan_summary_view(summary) for summary in found]
