"""Log lines: as text and as JSON, with what they are about."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from flyball_server.log_setup import JsonFormatter, TextFormatter, about, log_fields


def record(message: str, *arguments: object, **extra: object) -> logging.LogRecord:
    """A line that was logged at midday."""
    logger = logging.getLogger("flyball_server.part")
    made = logger.makeRecord(
        logger.name, logging.WARNING, __file__, 1, message, arguments, None, extra=extra
    )
    made.created = datetime(2026, 1, 5, 12, 0, 0, 250_000, UTC).timestamp()
    return made


def as_json(line: logging.LogRecord) -> dict[str, Any]:
    text = JsonFormatter().format(line)
    assert "\n" not in text
    found: dict[str, Any] = json.loads(text)
    return found


def test_a_json_line_has_its_time_in_utc_and_what_it_is_about() -> None:
    with about(job="job", rank=3):
        found = as_json(record("plan %d made", 2, rank=4))
    assert found == {
        "time": "2026-01-05T12:00:00.250000+00:00",
        "level": "warning",
        "logger": "flyball_server.part",
        "message": "plan 2 made",
        "job": "job",
        "rank": 4,  # the line's own goes before what surrounds it
    }


def test_whatever_is_logged_a_json_line_stays_one_line() -> None:
    line = record("one\ntwo\u2028 %s", '"job": "another"')
    try:
        raise ValueError("of a test")
    except ValueError:
        line.exc_info = sys.exc_info()
    found = as_json(line)
    assert found["message"] == 'one\ntwo\u2028 "job": "another"'
    assert "job" not in found
    assert "ValueError: of a test" in found["exception"]


def test_a_text_line_ends_with_its_fields_before_a_traceback() -> None:
    line = record("made")
    line.exc_info = (ValueError, ValueError("of a test"), None)
    with about(job="job"), about(rank=0, request_id="abc"):
        first, *rest = TextFormatter().format(line).splitlines()
    assert first.endswith("WARNING flyball_server.part: made [job=job rank=0 request_id=abc]")
    assert rest[-1] == "ValueError: of a test"


def test_a_block_gives_back_what_was_before() -> None:
    with about(job="outer"):
        with about(job="inner", rank=1):
            assert dict(log_fields()) == {"job": "inner", "rank": 1}
        assert dict(log_fields()) == {"job": "outer"}
    assert dict(log_fields()) == {}
