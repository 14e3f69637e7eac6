"""The client is imported into training ranks: it brings nothing heavy with it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

# Not rich: httpx imports it for its own command line where it happens to be installed.
HEAVY = {"torch", "numpy", "pydantic", "fastapi", "deepspeed", "sqlalchemy"}
OURS = {"flyball_server", "flyball_integrations"}

MODULES = """
import importlib, json, pkgutil, sys
import flyball_client
names = [m.name for m in pkgutil.walk_packages(flyball_client.__path__, "flyball_client.")]
for name in names:
    importlib.import_module(name)
print(json.dumps([len(names), sorted(sys.modules)]))
"""

PARTS = """
import json, sys
import flyball_client, flyball_wire.messages, flyball_wire.codec, flyball_wire.routes
import flyball_client.__main__, flyball_client.gpu.emulated
print(json.dumps([6, sorted(sys.modules)]))
"""


GOVERNOR = """
import json, sys
import flyball_client.governor.governor_process
print(json.dumps([1, sorted(sys.modules)]))
"""


def modules_after(code: str) -> tuple[int, set[str]]:
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    num_imported, loaded = json.loads(done.stdout)
    return int(num_imported), set(loaded)


def test_all_modules_of_the_client_together_import_nothing_heavy() -> None:
    num_imported, loaded = modules_after(MODULES)
    assert num_imported > 20
    assert loaded & (HEAVY | OURS) == set()


def test_wire_command_and_emulated_gpu_need_neither_httpx_nor_nvml() -> None:
    assert modules_after(PARTS)[1] & {"httpx", "pynvml"} == set()


def test_a_governor_loads_no_http_before_it_is_told_to_reach_zeusd() -> None:
    # A rank waits for the start of its governor.
    loaded = modules_after(GOVERNOR)[1]
    assert {"flyball_client.gpu.open_gpu", "pynvml"} <= loaded
    assert loaded & {"flyball_client.gpu.zeusd", "http.client", "ssl", "httpx"} == set()
