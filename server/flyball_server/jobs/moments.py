"""Time of day in the use cases; tests replace it."""

from __future__ import annotations

from datetime import UTC, datetime


def utc_now() -> datetime:
    """The time of day, UTC."""
    return datetime.now(UTC)
