"""A rank waits for its governor's start, and for its standby's: they load what they need alone."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

IMPORT = """
import sys
import flyball_client.governor.governor_process
print(*sys.modules)
"""


def test_a_governor_loads_no_http_before_it_is_told_to_reach_zeusd() -> None:
    command = [sys.executable, "-c", IMPORT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    loaded = set(done.stdout.split())

    assert {"flyball_client.gpu.open_gpu", "pynvml"} <= loaded
    assert loaded & {"flyball_client.gpu.zeusd", "http.client", "ssl", "httpx"} == set()
