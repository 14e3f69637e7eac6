"""Profiles that come out: the one a job is planned from, and how far measuring it online is."""

from __future__ import annotations

from fastapi import Response

from flyball_profiles.stage_profile_csv import write_stage_profile
from flyball_server.http.call_router import call_router
from flyball_server.http.dependencies import JobId, State
from flyball_server.http.mapping.closed_loop import profiling_view
from flyball_server.http.openapi import examples, profiling_examples
from flyball_server.http.openapi.documentation import READ_ERRORS, answers
from flyball_server.views.profiling import get_profile, get_profiling
from flyball_wire import closed_loop, routes

ROUTER = call_router("profiling")
CSV = "text/csv"


@ROUTER.get(
    routes.PROFILE,
    name="get_profile",
    summary="Get the profile that a job is planned from",
    response_class=Response,
    responses={
        **answers(examples.JOB, 404, 409, *READ_ERRORS),
        200: {
            "description": "The profile.",
            "content": {CSV: {"example": examples.PROFILE_CSV, "schema": {"type": "string"}}},
        },
    },
)
def get_stage_profile(state: State, job_id: JobId) -> Response:
    """Put or measured online, as CSV: `stage,instruction,frequency,time,energy` (MHz, s, J)."""
    profile = get_profile(state.services, job_id)
    return Response(write_stage_profile(profile), media_type=CSV)


@ROUTER.get(
    routes.PROFILING,
    name="get_profiling",
    summary="How far is online profiling?",
    responses=answers(
        profiling_examples.PROFILING,
        404,
        *READ_ERRORS,
        meaning="What is known and what it has cost.",
    ),
)
def get_online_profiling(state: State, job_id: JobId) -> closed_loop.ProfilingView:
    """Every operating point as known now, with its standard errors.

    A point without probes is interpolated between those around it.
    """
    return profiling_view(get_profiling(state.services, job_id))
