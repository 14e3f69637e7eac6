"""Fixtures of the contract tests."""

from __future__ import annotations

from tests.false_nvml.fixtures import false_nvml, false_nvml_library, loaded_nvml

__all__ = ["false_nvml", "false_nvml_library", "loaded_nvml"]
