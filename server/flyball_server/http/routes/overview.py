"""Overviews: jobs in a row each, all of them or one."""

from __future__ import annotations

from fastapi import Response

from flyball_server.http.call_router import call_router
from flyball_server.http.dependencies import JSON, JobId, State
from flyball_server.http.middleware.token_access import CallerAccess
from flyball_server.http.openapi import view_examples
from flyball_server.http.openapi.documentation import READ_ERRORS, answers
from flyball_wire import routes
from flyball_wire.read_models import JobOverview, Overview

ROUTER = call_router("overview")


@ROUTER.get(
    routes.OVERVIEW,
    name="get_overview",
    summary="All jobs at a glance",
    response_model=Overview,
    responses=answers(
        view_examples.OVERVIEW, *READ_ERRORS, meaning="Those heard of last come first."
    ),
)
async def get_all_jobs_overview(state: State, access: CallerAccess) -> Response:
    """Each job in a row: its state, ranks and plan, measured and predicted figures, apart.

    At most half a second old; ranks, versions and steps of jobs that are not among the 20 heard
    of last, nor have a label in `/metrics`, up to a minute. By a job's token that job and its
    earlier runs alone.
    """
    overview = await state.overviews.all_jobs()
    return Response(overview.seen_by(access), media_type=JSON)


@ROUTER.get(
    routes.JOB_OVERVIEW,
    summary="A job at a glance",
    responses=answers(
        view_examples.JOB_OVERVIEW, 404, *READ_ERRORS, meaning="The job as it stands."
    ),
)
async def get_job_overview(state: State, job_id: JobId) -> JobOverview:
    """The job's row of the overview, read for this answer."""
    return await state.overviews.of_job.submit(job_id, None)
