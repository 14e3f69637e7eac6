"""Imports that the client delays; import contracts in pyproject.toml forbid others altogether."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

PARTS = """
import json, sys
import flyball_client, flyball_wire.messages, flyball_wire.codec, flyball_wire.routes
import flyball_client.__main__, flyball_client.gpu.emulated
print(json.dumps(sorted(sys.modules)))
"""


GOVERNOR = """
import json, sys
from flyball_client.governor.governor_process import open_gpu
from flyball_client.gpu._base import GpuAddress, GpuNotFoundError
try:
    open_gpu(GpuAddress(control="nvml", uuid="none"))
except GpuNotFoundError:
    pass
print(json.dumps(sorted(sys.modules)))
"""


def modules_after(code: str) -> set[str]:
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return set(json.loads(done.stdout))


def test_wire_command_and_emulated_gpu_need_neither_httpx_nor_nvml() -> None:
    assert modules_after(PARTS) & {"httpx", "pynvml"} == set()


def test_a_governor_loads_no_http_before_it_is_told_to_reach_zeusd() -> None:
    # A rank waits for the start of its governor.
    loaded = modules_after(GOVERNOR)
    assert {"flyball_client.gpu.registry", "pynvml"} <= loaded
    http = {"flyball_client.gpu.zeusd.device", "http.client", "ssl", "httpx"}
    assert loaded & http == set()
    # Nor what only doctor asks, nor emulated GPUs, nor of the pipeline more than its kinds.
    ours = {name for name in loaded if name.startswith("flyball_")}
    assert {name for name in ours if "checks" in name or "emulated" in name} == set()
    of_pipeline = {name for name in ours if name.startswith("flyball_pipeline")}
    parts = ("flyball_pipeline", "flyball_pipeline.errors", "flyball_pipeline.instruction")
    assert of_pipeline <= set(parts)
