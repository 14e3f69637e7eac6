"""A load on a real GPU sees the one that the caller sees, beside the false ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import hooks_load
from hooks_gpus import FalseGpus


@pytest.mark.parametrize("devices", ["3", "", None])
def test_cuda_sees_what_it_did_before_the_false_gpus(
    devices: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if devices is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
    for name, value in FalseGpus(tmp_path).variables.items():
        monkeypatch.setenv(name, value)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"
    hooks_load._see_own_devices()
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == devices


def test_the_drivers_own_libraries_are_found_behind_the_false_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/usr/local/nvidia/lib64:/opt/lib")
    folders = FalseGpus(tmp_path).variables["LD_LIBRARY_PATH"].split(":")
    assert (Path(folders[0]) / "libnvidia-ml.so.1").is_file()
    assert folders[1:] == ["/usr/local/nvidia/lib64", "/opt/lib"]
