"""The time of day that use cases work with, unless a test gives them another."""

from __future__ import annotations

from datetime import UTC, datetime


def utc_now() -> datetime:
    """The time of day, UTC."""
    return datetime.now(UTC)
