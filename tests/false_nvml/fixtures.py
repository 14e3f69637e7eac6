"""Fixtures around the false NVML, for every test folder that wants them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml as _pynvml
import pytest
from tests.false_nvml.library import FalseNvml, build_library

# nvidia-ml-py has no types.
pynvml: Any = _pynvml


@pytest.fixture(scope="session")
def false_nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built library, alone in its folder."""
    return build_library(tmp_path_factory.mktemp("false-nvml"))


@pytest.fixture
def false_nvml(false_nvml_library: Path, tmp_path: Path) -> Iterator[FalseNvml]:
    """Two false GPUs, for child processes started with `false_nvml.environment`."""
    nvml = FalseNvml(false_nvml_library, tmp_path)
    yield nvml
    nvml.close()


@pytest.fixture
def loaded_nvml(false_nvml: FalseNvml, monkeypatch: pytest.MonkeyPatch) -> Iterator[FalseNvml]:
    """Two false GPUs, loaded into nvidia-ml-py in this process too."""
    for name, value in false_nvml.variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(false_nvml.library)))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    yield false_nvml
