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
        """Return a form that can be pickled, for planning processes."""
        return _made_again, (type(self), self.message, self.field)


class TargetUnreachableError(PlanningError):
    """No plan meets the target; the message says what can be met.

    `nearest_target` is the nearest target that a plan meets; None: a target of another kind than
    an iteration time was asked for.
    """

    def __init__(self, message: str, *, field: str, nearest_target: str | None = None) -> None:
        super().__init__(message, field=field)
        self.nearest_target = nearest_target

    def __reduce__(self) -> tuple[object, ...]:
        """Return a form that can be pickled, with the nearest target."""
        return _made_again, (type(self), self.message, self.field, self.nearest_target)


def _made_again(kind: type[PlanningError], message: str, field: str, *rest: str) -> PlanningError:
    error = kind(message, field=field)
    if isinstance(error, TargetUnreachableError):
        [error.nearest_target] = rest
    return error
