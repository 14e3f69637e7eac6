"""The fixture of the made-up vendor, registered here and in every process that is started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.made_up_gpus.vendor import FOLDER_VARIABLE, MadeUpVendor

from flyball_client.gpu.registry import VENDORS

_ROOT = Path(__file__).parents[2]
_REGISTERING = "from tests.made_up_gpus.vendor import register\nregister()\n"


@pytest.fixture
def made_up_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MadeUpVendor:
    """The vendor, whose GPUs are chosen as the machine's."""
    state, site = tmp_path / "made-up-gpus", tmp_path / "site"
    state.mkdir()
    site.mkdir()
    (site / "sitecustomize.py").write_text(_REGISTERING)
    monkeypatch.setitem(VENDORS, "made-up", MadeUpVendor)
    monkeypatch.setenv(FOLDER_VARIABLE, str(state))
    monkeypatch.setenv("FLYBALL_CLOCK_CONTROL", "mul")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), str(_ROOT)]))
    return MadeUpVendor()
