"""Root of the errors of client and wire, and the codec's own."""

from __future__ import annotations


class FlyballError(Exception):
    """Base of all errors of Flyball's client; its text says what to do."""


class CodecError(FlyballError):
    """Received JSON that does not fit its wire type; the text names the field."""
