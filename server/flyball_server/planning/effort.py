"""How hard to search for clocks near the bound."""

from __future__ import annotations

from enum import StrEnum


class Effort(StrEnum):
    """What a user may ask of the search; more is slower and nearer to the bound."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"
