"""The one table from errors to HTTP status, and what a status means in the API's description."""

from __future__ import annotations

from types import MappingProxyType

from flyball_profiles.stage_profile import ProfileError
from flyball_server.http.edge_errors import (
    AccessError,
    BodyTooLargeError,
    BodyTooSlowError,
    ContentTypeError,
    CrossSiteError,
    HeadersTooLargeError,
    NotReadyError,
    TokenError,
    TooManyWaitingError,
)
from flyball_server.jobs.errors import (
    InvalidFieldError,
    PlannerFaultError,
    PlanningStoppedError,
    StoreError,
    UnknownError,
    WrongStateError,
)

ERROR_STATUS: MappingProxyType[type[Exception], int] = MappingProxyType(
    {
        TokenError: 401,
        AccessError: 403,
        CrossSiteError: 403,
        UnknownError: 404,
        BodyTooSlowError: 408,
        WrongStateError: 409,
        BodyTooLargeError: 413,
        ContentTypeError: 415,
        InvalidFieldError: 422,
        ProfileError: 422,
        HeadersTooLargeError: 431,
        PlannerFaultError: 500,
        StoreError: 503,
        PlanningStoppedError: 503,
        TooManyWaitingError: 503,
        NotReadyError: 503,
    }
)

STATUS_MEANING = MappingProxyType(
    {
        400: "The body cannot be read.",
        401: "The planner asks for a token, and the call carries none that it knows.",
        403: "The token does not open this; or a page of another site asks for a change.",
        404: "No such job, rank or plan.",
        408: "The body did not arrive in time.",
        409: "The job is in another state.",
        413: "The body is too large.",
        415: "The body is of another content type.",
        422: "A value cannot be used; the field, or the profile's line, is named.",
        431: "Address and headers are too long.",
        500: "The planner has failed at this; its log says why.",
        503: "The job store cannot answer now, or too many calls wait; trying again may help.",
    }
)


def status_of(error: Exception) -> int:
    """The HTTP status of an error of the table, or of one derived from it; else 500."""
    for kind in type(error).__mro__:
        if kind in ERROR_STATUS:
            return ERROR_STATUS[kind]
    return 500
