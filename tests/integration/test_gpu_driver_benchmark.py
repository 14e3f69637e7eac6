"""The benchmark of a GPU's driver, on the false NVML: what it finds is what that one does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.false_nvml.fixtures import false_nvml, false_nvml_library
from tests.false_nvml.library import HIGHEST_MHZ, FalseNvml
from tests.planner.patience import wait_until

__all__ = ["false_nvml", "false_nvml_library"]

ROOT = Path(__file__).parents[2]
# Of the false NVML: 50 W, and a tenth of a watt per MHz.
POWER_W = 50 + 0.1 * HIGHEST_MHZ
PERIOD_MS = 100


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


def test_its_tables_name_the_gpu_and_say_that_nothing_was_set(false_nvml: FalseNvml) -> None:
    run = run_benchmark(
        "--seconds", "3", "--gpu", false_nvml.uuid(1), environment=false_nvml.environment
    )
    assert run.returncode == 0, run.stderr
    assert f"({false_nvml.uuid(1)})" in run.stdout
    assert "measured, and nothing was set" in run.stdout


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--gpu", "7"), "gpu_driver.py: there is no GPU 7; NVML counts 2, from 0"),
        (("--seconds", "0.2"), "gpu_driver.py: the energy counter moved "),
        (("--seconds", "3", "--kernels"), "gpu_driver.py: --kernels: torch sees no GPU here"),
    ],
    ids=["no such GPU", "too short", "no CUDA"],
)
def test_what_it_cannot_measure_it_says_in_one_line(
    false_nvml: FalseNvml, arguments: tuple[str, ...], line: str
) -> None:
    run = run_benchmark(*arguments, environment=false_nvml.environment)
    assert run.returncode == 2
    assert run.stdout == ""
    (said,) = run.stderr.splitlines()
    assert said.startswith(line)


def test_without_a_driver_it_says_what_is_missing(tmp_path: Path) -> None:
    # Found before any that the machine has, and no library.
    (tmp_path / "libnvidia-ml.so.1").touch()
    run = run_benchmark(environment=os.environ | {"LD_LIBRARY_PATH": str(tmp_path)})
    assert (run.returncode, run.stdout) == (2, "")
    (said,) = run.stderr.splitlines()
    assert said.startswith("gpu_driver.py: starting NVML: ")
    assert "install the NVIDIA driver" in said


def test_ctrl_c_ends_a_benchmark_with_one_line(false_nvml: FalseNvml) -> None:
    with subprocess.Popen(
        [sys.executable, "benchmarks/gpu_driver.py", "--seconds", "300"],
        cwd=ROOT,
        env=false_nvml.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            wait_until(lambda: bool(false_nvml.calls("nvmlDeviceGetTotalEnergyConsumption")))
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, *said) == (130, "", "gpu_driver.py: interrupted\n")
