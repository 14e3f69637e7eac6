"""What can be wrong with a call before any job is looked at; a docstring is its message.

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

from flyball_server.jobs.errors import JobsError


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
