"""Another process that keeps a GPU busy: begun before it is measured, ended after, and watched."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.planner.patience import wait_until

import gpu_driver
from flyball_client.governor.process_watch import is_running
from measured_process import BenchmarkError

UUID = "GPU-7"
# It leaves its number and its GPU beside itself.
BUSY = """
import os, sys
with open(__file__ + ".told", "w") as told:
    print(os.getpid(), os.environ["CUDA_VISIBLE_DEVICES"], file=told)
print("busy", flush=True)
"""
# Not even the end of its standard input ends it.
FOR_EVER = "import time; time.sleep(10**6)"


class Kernels:
    """What is run in the place of torch's kernels."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._script = folder / "kernels.py"
        monkeypatch.setattr(gpu_driver, "KERNELS", self._script)
        monkeypatch.setattr(gpu_driver, "WARM_UP_S", 0)

    def are(self, program: str) -> None:
        """From now on."""
        self._script.write_text(program)

    @property
    def told(self) -> tuple[int, str]:
        """Process number and GPU of those that have begun last."""
        pid, uuid = Path(f"{self._script}.told").read_text().split()
        return int(pid), uuid


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernels:
    return Kernels(tmp_path, monkeypatch)


def test_they_run_on_the_gpu_named_as_long_as_it_is_measured(kernels: Kernels) -> None:
    kernels.are(BUSY + FOR_EVER)
    with gpu_driver._kernels(UUID):
        pid, uuid = kernels.told
        assert uuid == UUID
        assert is_running(pid)
    assert not is_running(pid)


def test_kernels_that_end_early_spoil_the_measurement(kernels: Kernels) -> None:
    kernels.are(BUSY)
    with (
        pytest.raises(BenchmarkError, match="ended before they had been measured"),
        gpu_driver._kernels(UUID),
    ):
        pid, _ = kernels.told
        wait_until(lambda: not is_running(pid))
