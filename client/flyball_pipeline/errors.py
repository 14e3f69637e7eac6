"""Errors of a pipeline's shape and order."""

from __future__ import annotations

from typing import Any


class PipelineError(ValueError):
    """A pipeline that cannot run; `field` names the part of the input to change.

    `message` is one line: what is wrong and what would be accepted.
    """

    def __init__(self, message: str, *, field: str) -> None:
        super().__init__(f"{field}: {message}")
        self.message = message
        self.field = field

    def __reduce__(self) -> tuple[object, ...]:
        """Return a form that can be pickled, for other processes."""
        return _made_again, (type(self), vars(self))


def _made_again(kind: type[PipelineError], fields: dict[str, Any]) -> PipelineError:
    return kind(**fields)
