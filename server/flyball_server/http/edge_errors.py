"""Errors of a call that are found before any job is read; a docstring is its message.

EdgeError
├── TokenError            no token, or one that opens nothing
├── AccessError           a job's token, for something else than its job
├── CrossSiteError        another site's page asks for a change
├── ContentTypeError      a body of a kind that the route does not take
├── BodyTooLargeError     a body above the planner's limit
├── BodyTooSlowError      a body that does not arrive
├── HeadersTooLargeError  headers above the planner's limit
├── TooManyWaitingError   as many long polls as the planner holds wait already
└── NotReadyError         what the planner needs cannot be used now
"""

from __future__ import annotations

from types import MappingProxyType

from flyball_profiles.stage_profile import ProfileError
from flyball_server.jobs.errors import (
    InvalidFieldError,
    JobsError,
    PlannerFaultError,
    PlanningStoppedError,
    StoreError,
    UnknownError,
    WrongStateError,
)


class EdgeError(JobsError):
    """This call cannot be taken."""


class TokenError(EdgeError):
    """This planner asks for a token in the header {header}."""


class AccessError(EdgeError):
    """This token opens job {job_id} only; use an operator's."""


class CrossSiteError(EdgeError):
    """A page of another site asks for this change, and is refused."""


class ContentTypeError(EdgeError):
    """Send the body with content type {wanted}."""


class BodyTooLargeError(EdgeError):
    """The body is larger than {max_body_bytes} bytes, this planner's limit."""


class BodyTooSlowError(EdgeError):
    """The body did not arrive within {timeout_s} s; send it again, faster or in smaller parts."""


class HeadersTooLargeError(EdgeError):
    """The address and headers are longer than {max_header_bytes} bytes, this planner's limit."""


class TooManyWaitingError(EdgeError):
    """As many calls wait here as this planner holds; ask again in {retry_after_s} s."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(retry_after_s=retry_after_s)
        self.retry_after_s = retry_after_s


class NotReadyError(EdgeError):
    """The planner is not ready: {what}."""


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
