"""The client's errors, one tree.

FlyballError                  (flyball_wire.errors)
├── PlannerError             (planner_client)
│   ├── PlannerUnavailableError  not reachable, status 5xx, or a response outside the API
│   │   ├── PlannerBusyError         status 503 with the time of the next call
│   │   ├── PlannerDistrustedError   certificate not trusted
│   │   └── PlannerCutOffError       connection closed without an HTTP response
│   └── PlannerRefusedError      status 4xx, with its reason in one line
├── CodecError               (flyball_wire.errors) JSON that does not fit its type
└── GpuError                 (gpu/_base)
    ├── GpuPermissionError
    ├── GpuNotFoundError
    └── GpuNotSupportedError
"""

from __future__ import annotations

from flyball_wire.errors import FlyballError


class PlannerError(FlyballError):
    """A call to the planner failed."""


class PlannerUnavailableError(PlannerError):
    """The planner cannot be reached, failed, or did not follow its API."""


class PlannerBusyError(PlannerUnavailableError):
    """The planner cannot take this call now; the next may come after `retry_after_s`."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class PlannerDistrustedError(PlannerUnavailableError):
    """The planner's certificate comes from no trusted CA."""


class PlannerCutOffError(PlannerUnavailableError):
    """The connection was closed without an HTTP response."""


class PlannerRefusedError(PlannerError):
    """The planner refused the call, with HTTP status `status`; `is_read_only`: of the token."""

    def __init__(self, message: str, *, status: int, is_read_only: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.is_read_only = is_read_only
