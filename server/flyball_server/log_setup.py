"""Logging of the planner's process: on stderr, as text or as a JSON object a line."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
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


TEXT, JSON = "text", "json"
LOG_FORMATS = (TEXT, JSON)

_TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class TextFormatter(logging.Formatter):
    """`TIME LEVEL LOGGER: MESSAGE [job=... rank=...]`; the brackets only where there is a field."""

    def __init__(self) -> None:
        super().__init__(_TEXT_FORMAT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """The line, before any traceback."""
        fields = " ".join(f"{name}={value}" for name, value in _fields_of(record).items())
        line = super().formatMessage(record)
        return f"{line} [{fields}]" if fields else line


class JsonFormatter(logging.Formatter):
    """One JSON object a line.

    `time` (UTC, ISO 8601), `level`, `logger`, `message`, those of LOG_FIELDS that are known, and
    `exception` (the traceback) where there is one.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The object, in ASCII: a line stays one line whatever was logged."""
        moment = datetime.fromtimestamp(record.created, UTC)
        entry: dict[str, str | int] = {
            "time": moment.isoformat(timespec="microseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields_of(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def set_up_logging(*, level: str, log_format: str) -> None:
    """Log from now on; for entry points, once in a process.

    Args:
        level: the lowest that is logged: debug, info, warning or error.
        log_format: one of LOG_FORMATS.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == JSON else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    # uvicorn's own lines on startup repeat what is printed.
    quiet = logging.DEBUG if level == "debug" else logging.WARNING
    logging.getLogger("uvicorn.error").setLevel(quiet)
    logging.getLogger("numba").setLevel(logging.WARNING)  # its debugging is of the compiler


def _fields_of(record: logging.LogRecord) -> dict[str, str | int]:
    """Return what the line is about: what it was logged with (`extra`), else what surrounds it."""
    surrounding = log_fields()
    found: dict[str, str | int] = {}
    for name in LOG_FIELDS:
        value = getattr(record, name, surrounding.get(name))
        if value is not None:
            found[name] = value
    return found
