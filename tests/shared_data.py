"""Published stage profiles, which are not ours to keep; `FLYBALL_SHARED_DATA` names a folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_FOLDER = os.environ.get("FLYBALL_SHARED_DATA")

needs_shared_data = pytest.mark.skipif(
    not _FOLDER, reason="FLYBALL_SHARED_DATA does not name the folder of the published profiles"
)


def published_profile(name: str) -> Path:
    """A stage profile published with Perseus (SOSP 2024); where it is missing, tests fail."""
    return Path(_FOLDER or ".") / "perseus-sosp24" / "stage_profiles" / name


def recorded_runs() -> list[Path]:
    """Files of runs recorded by Perseus's authors, one a workload; where missing, tests fail."""
    found = sorted((Path(_FOLDER or ".") / "perseus-sosp24" / "recorded_runs").glob("*.json"))
    assert found, "no recorded runs below FLYBALL_SHARED_DATA"
    return found


def recorded_steps(name: str) -> Path:
    """Steps of a production job, recorded for an OSDI 2025 paper; where missing, tests fail."""
    return Path(_FOLDER or ".") / "bytedance-osdi25" / name
