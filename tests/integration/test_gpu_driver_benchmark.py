"""The benchmark of a GPU's driver, on the false NVML: what it finds is what that one does."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.false_nvml.fixtures import false_nvml, false_nvml_library
from tests.false_nvml.library import HIGHEST_MHZ, FalseNvml

__all__ = ["false_nvml", "false_nvml_library"]

ROOT = Path(__file__).parents[2]
# Of the false NVML: 50 W, and a tenth of a watt per MHz.
POWER_W = 50 + 0.1 * HIGHEST_MHZ
PERIOD_MS = 25


def run_benchmark(
    *arguments: str, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "benchmarks/gpu_driver.py", *arguments],
        cwd=ROOT,
        env=dict(environment),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_it_finds_the_counters_period_and_power_and_sets_nothing(false_nvml: FalseNvml) -> None:
    run = run_benchmark("--json", "--seconds", "2", environment=false_nvml.environment)
    assert run.returncode == 0, run.stderr
    figures = json.loads(run.stdout)

    assert figures["gpu"]["uuid"] == false_nvml.uuid(0)
    ((load, found),) = figures["loads"].items()
    assert load == "no kernels of ours"
    counter = found["counter"]
    assert counter["period_ms"][0] == pytest.approx(PERIOD_MS, rel=0.2)
    assert counter["rise_j"] == pytest.approx(POWER_W * PERIOD_MS / 1000, rel=0.01)
    assert counter["power_w"] == pytest.approx(POWER_W, rel=0.2)
    assert set(found["calls_us"]) == {"SM clock", "what limits it", "energy counter"}
    for function in ("SetGpuLockedClocks", "ResetGpuLockedClocks"):
        assert false_nvml.calls(f"nvmlDevice{function}") == []
