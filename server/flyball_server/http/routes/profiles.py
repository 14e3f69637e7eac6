"""Stage profiles: put one, as CSV or as JSON."""

from __future__ import annotations

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
from flyball_server.http.dependencies import (
    JSON,
    JobId,
    PlannerState,
    State,
    call_router,
    check_profile,
    require_content_type,
)
from flyball_server.http.mapping.jobs import job_view, profile_rows, profiling_view
from flyball_server.http.openapi import examples, view_examples
from flyball_server.http.openapi.documentation import JSON_BODY_ERRORS, READ_ERRORS, answers, plain
from flyball_server.jobs.job_state import JobInput
from flyball_server.jobs.registry.inputs import put_profile
from flyball_server.jobs.registry.inspection import JobSummary, notes
from flyball_server.views.profiling import get_profile, get_profiling
from flyball_wire import closed_loop, messages, routes

ROUTER = call_router("jobs")
CSV = "text/csv"
_JSON_PROFILE = TypeAdapter(messages.JsonProfile)


def _json_schema() -> dict[str, Any]:
    """The JSON profile's schema with its rows' put in: the body is read here, not by FastAPI."""
    schema = _JSON_PROFILE.json_schema()
    schema["properties"]["rows"]["items"] = schema.pop("$defs")["ProfileRow"]
    return schema


_BODY = {
    "required": True,
    "content": {
        CSV: {
            "schema": {
                "type": "string",
                "description": "Columns stage,instruction,frequency,time,energy (MHz, s, J).",
            },
            "example": examples.PROFILE_CSV,
        },
        JSON: {"schema": _json_schema(), "example": plain(examples.JSON_PROFILE)},
    },
}


def _responses() -> dict[int | str, dict[str, Any]]:
    documented = answers(
        examples.JOB, 404, *(set(JSON_BODY_ERRORS) - {400}), meaning="The job, planned from it."
    )
    documented[422]["content"][JSON] = {
        "examples": {
            "profile": {"value": plain(examples.PROFILE_PROBLEM)},
            "field": {"value": plain(examples.PROBLEMS[422])},
        }
    }
    return documented


@ROUTER.put(
    routes.PROFILE,
    name="put_profile",
    summary="Put a job's stage profile",
    responses=_responses(),
    openapi_extra={"requestBody": _BODY},
)
async def put_stage_profile(request: Request, state: State, job_id: JobId) -> messages.JobView:
    """The profile as CSV (`text/csv`) or as JSON (`application/json`); the job is planned at once.

    The same profile again makes no new plan version, another one does. An error names the
    CSV's line, or the row.
    """
    kind = require_content_type(request, CSV, JSON)
    body = await request.body()
    stored = await run_in_threadpool(_read_and_put, state, job_id, kind, body)
    summary = await state.plan_coalescer.planned(stored, JobInput.PROFILE)
    return job_view(summary, await run_in_threadpool(notes, state.services, summary))


def _read_and_put(state: PlannerState, job_id: str, kind: str, body: bytes) -> JobSummary:
    profile = _from_csv(body) if kind == CSV else _from_json(body)
    check_profile(state, profile)
    return put_profile(state.services, job_id, profile)


def _from_csv(body: bytes) -> StageProfile:
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        line = body.count(b"\n", 0, error.start) + 1
        raise ProfileError("not UTF-8 text; send the profile as UTF-8 CSV", line=line) from None
    return parse_stage_profile(text)


def _from_json(body: bytes) -> StageProfile:
    try:
        profile = _JSON_PROFILE.validate_json(body)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False, include_input=False)
        for entry in errors:
            entry["loc"] = ("body", *entry["loc"])
        raise RequestValidationError(errors) from None
    return parse_stage_profile_rows(profile_rows(profile))


PROFILING_ROUTER = call_router("profiling")


@PROFILING_ROUTER.get(
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


@PROFILING_ROUTER.get(
    routes.PROFILING,
    name="get_profiling",
    summary="How far is online profiling?",
    responses=answers(
        view_examples.PROFILING,
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
