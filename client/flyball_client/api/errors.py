"""The client's errors, one tree.

FlyballError                  (flyball_wire.errors)
├── PlannerError             (planner_client)
│   ├── PlannerUnavailableError  the planner cannot be reached, or answered 5xx or nonsense
│   │   ├── PlannerBusyError         it is there, and says when to ask again
│   │   ├── PlannerDistrustedError    its certificate is not trusted
│   │   └── PlannerCutOffError       what is there ended the connection, or speaks no HTTP
│   └── PlannerRefusedError      it answered 4xx; `status` and its one-line reason
├── CodecError               (flyball_wire.errors) received JSON that does not fit its type
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
    """The planner cannot be reached, or answered with a server error or with nonsense."""


class PlannerBusyError(PlannerUnavailableError):
    """The planner is there, but cannot take this call now; `retry_after_s` says when to ask."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class PlannerDistrustedError(PlannerUnavailableError):
    """The certificate that the planner shows comes from no CA that is trusted."""


class PlannerCutOffError(PlannerUnavailableError):
    """The connection ended without an answer, or with one that is not HTTP."""


class PlannerRefusedError(PlannerError):
    """The planner refused the call; `status` is its HTTP status."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status
