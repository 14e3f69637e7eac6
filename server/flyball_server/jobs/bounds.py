"""Checks of single values, each naming field, rule and value when it fails."""

from __future__ import annotations

import math

from flyball_server.jobs.errors import InvalidFieldError

# Whole numbers above this lose digits in JSON readers, and far above it in SQL columns.
MAX_COUNT = 2**53 - 1
MAX_TEXT_CHARACTERS = 256


def check_count(field: str, value: int, *, least: int = 0, most: int = MAX_COUNT) -> None:
    """Check that a value is a whole number from `least` to `most`.

    Raises:
        InvalidFieldError: the value is out of bounds.
    """
    if not least <= value <= most:
        raise InvalidFieldError(field, f"must be {least} to {most}, not {_shown(value)}")


def check_quantity(field: str, value: float, *, most: float = math.inf) -> None:
    """Check that a value is a finite number from 0 to `most`.

    Raises:
        InvalidFieldError: the value is out of bounds.
    """
    if not (math.isfinite(value) and value >= 0):
        raise InvalidFieldError(field, f"must be a finite number, at least 0, not {value}")
    if value > most:
        raise InvalidFieldError(field, f"must be at most {most:g}, not {value:g}")


def check_text(field: str, value: str) -> None:
    """Check that a text is printable and of a bounded length.

    Raises:
        InvalidFieldError: the text is invalid.
    """
    if len(value) > MAX_TEXT_CHARACTERS or not value.isprintable():
        raise InvalidFieldError(
            field, f"must be printable text of at most {MAX_TEXT_CHARACTERS} characters"
        )


def _shown(value: int) -> str:
    # A number of thousands of digits would not fit one line, and Python refuses to print it.
    return str(value) if abs(value) <= 10**18 else "a number beyond 10^18"
