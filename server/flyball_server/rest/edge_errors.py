"""What can be wrong with a call before any job is looked at; a docstring is its message.

EdgeError
├── TokenError            no token, or another one
├── ContentTypeError      a body of a kind that the route does not take
└── BodyTooLargeError     a body above the planner's limit
"""

from __future__ import annotations

from flyball_server.jobs.errors import JobsError


class EdgeError(JobsError):
    """This call cannot be taken."""


class TokenError(EdgeError):
    """This planner asks for its token in the header {header}."""


class ContentTypeError(EdgeError):
    """Send the body with content type {wanted}."""


class BodyTooLargeError(EdgeError):
    """The body is larger than {max_body_bytes} bytes, this planner's limit."""
