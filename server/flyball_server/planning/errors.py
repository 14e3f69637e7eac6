"""Errors of a planning request."""

from __future__ import annotations

from flyball_pipeline.errors import PipelineError


class PlanningError(PipelineError):
    """A request that cannot be planned; `field` names the part of the request to change."""


class TargetUnreachableError(PlanningError):
    """No plan meets the target; the message says what can be met.

    `nearest_target` is the nearest target that a plan meets; None: a target of another kind than
    an iteration time was asked for.
    """

    def __init__(self, message: str, *, field: str, nearest_target: str | None = None) -> None:
        super().__init__(message, field=field)
        self.nearest_target = nearest_target
