"""Stage profiles as CSV or JSON, and the progress of online profiling."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import TypeAdapter, ValidationError
from starlette.concurrency import run_in_threadpool

from flyball_profiles.stage_profile import ProfileError, StageProfile
from flyball_profiles.stage_profile_csv import (
    parse_stage_profile,
    parse_stage_profile_rows,
    write_stage_profile,
)
from flyball_server.http.dependencies import JobId, PlannerState, State, check_profile, planned_view
from flyball_server.http.json_body import parse_unique
from flyball_server.http.mapping import profile_rows
from flyball_server.http.openapi.documentation import (
    BODY_ERRORS,
    JSON,
    call_router,
    problems,
    require_content_type,
)
from flyball_server.jobs.job_state import JobInput
from flyball_server.jobs.registry import inputs, inspection
from flyball_server.jobs.registry.inspection import JobSummary
from flyball_wire import messages, online_profiling, routes

ROUTER = call_router("profiling")
CSV = "text/csv"
_JSON_PROFILE = TypeAdapter(messages.JsonProfile)


def _json_schema() -> dict[str, Any]:
    """Return the JSON profile's schema with the schema of its rows in place."""
    schema = _JSON_PROFILE.json_schema()
    schema["properties"]["rows"]["items"] = schema.pop("$defs")["ProfileRow"]
    return schema


PROFILE_CSV = """stage,instruction,frequency,time,energy
0,forward,1410,0.10,30.0
0,forward,1200,0.11,26.0
0,backward,1410,0.20,62.0
0,backward,1200,0.22,54.0
1,forward,1410,0.08,24.0
1,forward,1200,0.09,21.0
1,backward,1410,0.16,50.0
1,backward,1200,0.18,43.0
"""
# Described here, since FastAPI does not read this body.
_BODY = {
    "required": True,
    "content": {
        CSV: {
            "schema": {
                "type": "string",
                "description": "Columns stage,instruction,frequency,time,energy (MHz, s, J).",
            },
            "example": PROFILE_CSV,
        },
        JSON: {"schema": _json_schema()},
    },
}


@ROUTER.put(
    routes.PROFILE,
    summary="Put a job's stage profile",
    response_description="The job, planned from the profile.",
    responses=problems(*BODY_ERRORS),
    openapi_extra={"requestBody": _BODY},
)
async def put_profile(request: Request, state: State, job_id: JobId) -> messages.JobView:
    """Store a profile as CSV (`text/csv`) or JSON (`application/json`) and plan the job at once.

    A profile that differs from the stored one makes a new plan version. An error names the line of
    the CSV, or the row.
    """
    kind = require_content_type(request, CSV, JSON)
    body = await request.body()
    stored = await run_in_threadpool(_read_and_put, state, job_id, kind, body)
    return await planned_view(state, stored, JobInput.PROFILE)


@ROUTER.get(
    routes.PROFILE,
    summary="Get a job's stage profile",
    response_class=Response,
    responses={
        200: {
            "description": "The profile.",
            "content": {CSV: {"schema": {"type": "string"}}},
        },
        **problems(409),
    },
)
def get_profile(state: State, job_id: JobId) -> Response:
    """Return the profile that the job is planned from, as CSV.

    It was sent to the planner or measured online; its columns are
    `stage,instruction,frequency,time,energy` (MHz, s, J).
    """
    profile = inspection.get_profile(state.services, job_id)
    return Response(write_stage_profile(profile), media_type=CSV)


@ROUTER.get(
    routes.PROFILING,
    summary="Get the progress of online profiling",
    response_description="Measured operating points, and the cost of measuring them.",
)
def get_profiling(state: State, job_id: JobId) -> online_profiling.ProfilingStatus:
    """Return the current estimate of every operating point with its standard errors.

    A point without probes is interpolated.
    """
    return inspection.get_profiling(state.services, job_id)


def _read_and_put(state: PlannerState, job_id: str, kind: str, body: bytes) -> JobSummary:
    profile = _from_csv(body) if kind == CSV else _from_json(body)
    check_profile(state, profile)
    return inputs.put_profile(state.services, job_id, profile)


def _from_csv(body: bytes) -> StageProfile:
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        line = body.count(b"\n", 0, error.start) + 1
        raise ProfileError("not UTF-8 text; send the profile as UTF-8 CSV", line=line) from None
    return parse_stage_profile(text)


def _from_json(body: bytes) -> StageProfile:
    with suppress(ValueError, RecursionError):  # pydantic says where
        parse_unique(body)
    try:
        profile = _JSON_PROFILE.validate_json(body)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False, include_input=False)
        for entry in errors:
            entry["loc"] = ("body", *entry["loc"])
        raise RequestValidationError(errors) from None
    return parse_stage_profile_rows(profile_rows(profile))
