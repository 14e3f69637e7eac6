"""The version of the installed Flyball, for `--version` and for registering ranks."""

from __future__ import annotations

from importlib import metadata


def flyball_version() -> str:
    """The distribution's version; `unknown` when it runs without being installed."""
    try:
        return metadata.version("flyball")
    except metadata.PackageNotFoundError:
        return "unknown"
