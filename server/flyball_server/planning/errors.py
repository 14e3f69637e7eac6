"""Errors of a planning request."""

from __future__ import annotations


class PlanningError(ValueError):
    """A request that cannot be planned; `field` names the part of the request to change.

    `message` is one line: what is wrong and what would be accepted.
    """

    def __init__(self, message: str, *, field: str) -> None:
        super().__init__(f"{field}: {message}")
        self.message = message
        self.field = field

    def __reduce__(self) -> tuple[object, ...]:
        """It crosses from planning processes."""
        return _made_again, (type(self), self.message, self.field)


class TargetUnreachableError(PlanningError):
    """No plan meets the target; the message says what can be met."""


def _made_again(kind: type[PlanningError], message: str, field: str) -> PlanningError:
    return kind(message, field=field)
