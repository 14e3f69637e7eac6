"""Fixtures of the client's tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.false_nvml.fixtures import false_nvml, false_nvml_library, loaded_nvml

__all__ = ["false_nvml", "false_nvml_library", "loaded_nvml"]


@pytest.fixture
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the lock records; no other setting of this machine applies."""
    for name in [*os.environ]:
        if name.startswith(("FLYBALL_", "ZEUSD_", "CUDA_")):
            monkeypatch.delenv(name)
    folder = tmp_path / "state"
    monkeypatch.setenv("FLYBALL_STATE_DIR", str(folder))
    return folder
