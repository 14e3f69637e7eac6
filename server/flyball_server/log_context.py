"""Context of a log line: job, rank, plan version and call, wherever the line is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

# In the order in which a line shows them.
LOG_FIELDS = ("job", "rank", "version", "request_id")

Field = str | int
_NONE: Mapping[str, Field] = MappingProxyType({})
_FIELDS: ContextVar[Mapping[str, Field]] = ContextVar("flyball_log_fields", default=_NONE)


def log_fields() -> Mapping[str, Field]:
    """The fields of this thread's or task's lines, by name."""
    return _FIELDS.get()


def set_log_fields(fields: Mapping[str, Field]) -> None:
    """Let all lines of this task, and of what it starts from now on, have these and no others.

    Raises:
        ValueError: a field that is none of LOG_FIELDS.
    """
    unknown = sorted(set(fields) - set(LOG_FIELDS))
    if unknown:
        raise ValueError(f"a log line has no field {unknown[0]}; known: {', '.join(LOG_FIELDS)}")
    _FIELDS.set(MappingProxyType(dict(fields)))


@contextmanager
def about(**fields: Field) -> Iterator[None]:
    """Let the lines of this block have these fields beside those that they have already."""
    before = _FIELDS.get()
    set_log_fields({**before, **fields})
    try:
        yield
    finally:
        _FIELDS.set(before)
