"""Errors of a planning request."""

from __future__ import annotations

from typing import Any


class PlanningError(ValueError):
    """A request that cannot be planned; `field` names the part of the request to change.

    `message` is one line: what is wrong and what would be accepted.
    """

    def __init__(self, message: str, *, field: str) -> None:
        super().__init__(f"{field}: {message}")
        self.message = message
        self.field = field

    def __reduce__(self) -> tuple[object, ...]:
        """Return a form that can be pickled, for planning processes."""
        return _made_again, (type(self), vars(self))


class TargetUnreachableError(PlanningError):
    """No plan meets the target; the message says what can be met.

    `nearest_target` is the nearest target that a plan meets; None: a target of another kind than
    an iteration time was asked for.
    """

    def __init__(self, message: str, *, field: str, nearest_target: str | None = None) -> None:
        super().__init__(message, field=field)
        self.nearest_target = nearest_target


def _made_again(kind: type[PlanningError], fields: dict[str, Any]) -> PlanningError:
    return kind(**fields)
