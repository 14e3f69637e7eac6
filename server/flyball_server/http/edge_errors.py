"""Errors of a call that occur before a job is read; each docstring is the message.

EdgeError
├── TokenError            no token, or an invalid one
├── AccessError           a job's token, for anything but its job
├── ReadOnlyError         a read-only token, for a change
├── HostError             a call without a token, to a foreign name of the planner
├── FirstTokenError       a change of tokens by a caller without one
├── CrossSiteError        a change requested by another site's page
├── FramingError          a call whose end two headers declare
├── ContentTypeError      a body of another content type than the route's
├── BodyTooLargeError     a body above the planner's limit
├── BodyTooSlowError      a body that does not arrive
├── HeadersTooLargeError  headers above the planner's limit
├── TooManyWaitingError   the limit of waiting calls is reached
└── NotReadyError         the store or the solvers are not available
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

# Pause that a refused client is asked to make, s.
RETRY_AFTER_S = 5


class EdgeError(JobsError):
    """This call is refused."""


class TokenError(EdgeError):
    """This planner requires a token in the header {header}."""


class AccessError(EdgeError):
    """This token permits job {job_id} only; use an operator's."""


class ReadOnlyError(EdgeError):
    """This token is read-only; use an operator's, or a job's for its ranks."""


class HostError(EdgeError):
    """No token is asked for, and this host is none of the planner's; see FLYBALL_ALLOWED_HOSTS."""


class FirstTokenError(EdgeError):
    """Only operators change tokens; make the first token by `flyball token create --operator`."""


class CrossSiteError(EdgeError):
    """Changes requested by a page of another site are refused."""


class FramingError(EdgeError):
    """Send either Content-Length or Transfer-Encoding."""


class ContentTypeError(EdgeError):
    """Send the body with content type {wanted}."""


class BodyTooLargeError(EdgeError):
    """The body is larger than {max_body_bytes} bytes, this planner's limit."""


class BodyTooSlowError(EdgeError):
    """The body did not arrive within {timeout_s} s; send it again, faster or in smaller parts."""


class HeadersTooLargeError(EdgeError):
    """The address and headers are longer than {max_header_bytes} bytes, this planner's limit."""


class TooManyWaitingError(EdgeError):
    """The planner's limit of waiting calls is reached; retry in {retry_after_s} s."""


class NotReadyError(EdgeError):
    """The planner is not ready: {what}."""


ERROR_STATUS: MappingProxyType[type[Exception], int] = MappingProxyType(
    {
        FramingError: 400,
        TokenError: 401,
        AccessError: 403,
        ReadOnlyError: 403,
        HostError: 403,
        FirstTokenError: 403,
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


def status_of(error: Exception) -> int:
    """Return the HTTP status of an error by its type or nearest base in the table; else 500."""
    for kind in type(error).__mro__:
        if kind in ERROR_STATUS:
            return ERROR_STATUS[kind]
    return 500
