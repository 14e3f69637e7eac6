"""Logging of the planner's process on stderr, as text or JSON lines."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType

# In the order of their output.
LOG_FIELDS = ("job", "rank", "version", "request_id")

Field = str | int
_NONE: Mapping[str, Field] = MappingProxyType({})
_FIELDS: ContextVar[Mapping[str, Field]] = ContextVar("flyball_log_fields", default=_NONE)


def log_fields() -> Mapping[str, Field]:
    """Return the log fields of this thread or task by name."""
    return _FIELDS.get()


def set_log_fields(fields: Mapping[str, Field]) -> None:
    """Set the log fields of this task and of the tasks that it starts.

    Raises:
        ValueError: a field is not in LOG_FIELDS.
    """
    unknown = sorted(set(fields) - set(LOG_FIELDS))
    if unknown:
        raise ValueError(f"a log line has no field {unknown[0]}; known: {', '.join(LOG_FIELDS)}")
    _FIELDS.set(MappingProxyType(dict(fields)))


@contextmanager
def about(**fields: Field) -> Iterator[None]:
    """Add log fields within this block."""
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
    """Formatter of `TIME LEVEL LOGGER: MESSAGE [job=... rank=...]`; no brackets without fields."""

    def __init__(self) -> None:
        super().__init__(_TEXT_FORMAT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the line, without the traceback."""
        fields = " ".join(f"{name}={value}" for name, value in _fields_of(record).items())
        line = super().formatMessage(record)
        return f"{line} [{fields}]" if fields else line


class JsonFormatter(logging.Formatter):
    """Formatter of one JSON object per line.

    Its keys are `time` (UTC, ISO 8601), `level`, `logger`, `message`, the LOG_FIELDS that are set,
    and `exception` (the traceback) if there is one.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the object in ASCII, so that no logged text breaks the line."""
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
    """Set up logging; called once, by entry points.

    Args:
        level: least severity: debug, info, warning or error.
        log_format: one of LOG_FORMATS.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == JSON else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    # uvicorn's lines on startup repeat the printed one.
    quiet = logging.DEBUG if level == "debug" else logging.WARNING
    logging.getLogger("uvicorn.error").setLevel(quiet)


def _fields_of(record: logging.LogRecord) -> dict[str, str | int]:
    """Return the line's fields: those of its `extra`, else the surrounding ones."""
    surrounding = log_fields()
    found: dict[str, str | int] = {}
    for name in LOG_FIELDS:
        value = getattr(record, name, surrounding.get(name))
        if value is not None:
            found[name] = value
    return found
