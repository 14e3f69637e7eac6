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
import flyball_client.governor.governor_process
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
    assert {"flyball_client.gpu.open_gpu", "pynvml"} <= loaded
    assert loaded & {"flyball_client.gpu.zeusd", "http.client", "ssl", "httpx"} == set()
