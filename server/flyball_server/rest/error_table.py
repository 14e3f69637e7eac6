"""The one table from errors to HTTP status, and what a status means in the API's description."""

from __future__ import annotations

from types import MappingProxyType

from flyball_profiles.stage_profile import ProfileError
from flyball_server.jobs.errors import InvalidFieldError, StoreError, UnknownError, WrongStateError
from flyball_server.rest.edge_errors import BodyTooLargeError, ContentTypeError, TokenError

ERROR_STATUS: MappingProxyType[type[Exception], int] = MappingProxyType(
    {
        TokenError: 401,
        UnknownError: 404,
        WrongStateError: 409,
        BodyTooLargeError: 413,
        ContentTypeError: 415,
        InvalidFieldError: 422,
        ProfileError: 422,
        StoreError: 503,
    }
)

STATUS_MEANING = MappingProxyType(
    {
        400: "The body cannot be read.",
        401: "A token is configured and the call does not carry it.",
        404: "No such job, rank or plan.",
        409: "The job is in another state.",
        413: "The body is too large.",
        415: "The body is of another content type.",
        422: "A value cannot be used; the field, or the profile's line, is named.",
        503: "The planner's job store cannot answer now; trying again may help.",
    }
)


def status_of(error: Exception) -> int:
    """The HTTP status of an error of the table, or of one derived from it; else 500."""
    for kind in type(error).__mro__:
        if kind in ERROR_STATUS:
            return ERROR_STATUS[kind]
    return 500
