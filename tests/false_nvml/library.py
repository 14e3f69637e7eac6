"""Builds the false NVML for tests and looks into its GPUs from outside."""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("false_nvml.c")

LOWEST_MHZ = 210
HIGHEST_MHZ = 1980
SUPPORTED_MHZ = tuple(range(HIGHEST_MHZ, LOWEST_MHZ - 1, -15))

# The layout of `struct state` in false_nvml.c.
_HEAD = struct.Struct("=qqq64s")
_GPU = struct.Struct("=qqqqq")
_MAX_GPUS = 8
_GPU_FIELDS = ("locked_mhz", "held_mhz", "mig_mode", "energy_uj", "counted_ns")


class FalseNvml:
    """The GPUs of one test: what they were told, and what they shall answer.

    Args:
        library: the built library; its folder holds nothing else.
        folder: for the state and the log.
        num_gpus: 0 to 8.
    """

    def __init__(self, library: Path, folder: Path, *, num_gpus: int = 2) -> None:
        self.library = library
        self._state_file = folder / "gpus"
        self._log_file = folder / "calls.log"
        size = _HEAD.size + _MAX_GPUS * _GPU.size
        self._state_file.write_bytes(_HEAD.pack(num_gpus, 0, 0, b"").ljust(size, b"\0"))
        with self._state_file.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), size)

    def close(self) -> None:
        """Unmap the state."""
        self._map.close()

    @property
    def variables(self) -> dict[str, str]:
        """What a process that uses these GPUs must have in its environment from its start."""
        return {
            "LD_LIBRARY_PATH": str(self.library.parent),
            "FALSE_NVML_STATE": str(self._state_file),
            "FALSE_NVML_LOG": str(self._log_file),
        }

    @property
    def environment(self) -> dict[str, str]:
        """This process's environment, and those."""
        return os.environ | self.variables

    @staticmethod
    def uuid(index: int) -> str:
        """UUID of a GPU."""
        return f"GPU-{index}-of-the-false-nvml"

    def locked_mhz(self, index: int = 0) -> int:
        """The clock that is locked, MHz; 0: none, the driver's default."""
        return self._gpu(index)["locked_mhz"]

    def calls(self, function: str) -> list[tuple[int, int]]:
        """(GPU, argument) of every call of an NVML function so far."""
        if not self._log_file.exists():
            return []
        lines = [line.split() for line in self._log_file.read_text().splitlines()]
        return [(int(gpu), int(arg)) for _, name, gpu, arg in lines if name == function]

    def fail(self, function: str, code: int) -> None:
        """From now on this function returns this code; 0: it works again."""
        num_gpus, latency_us, _, _ = _HEAD.unpack_from(self._map)
        _HEAD.pack_into(self._map, 0, num_gpus, latency_us, code, function.encode())

    def set_latency_us(self, latency_us: int) -> None:
        """From now on every call takes this long."""
        num_gpus, _, code, function = _HEAD.unpack_from(self._map)
        _HEAD.pack_into(self._map, 0, num_gpus, latency_us, code, function)

    def hold_below_mhz(self, held_mhz: int, index: int = 0) -> None:
        """Let a power limit hold the clock there, whatever is locked; 0: no longer."""
        self._set_gpu(index, held_mhz=held_mhz)

    def set_mig(self, mode: int, index: int = 0) -> None:
        """Divide the GPU (1), or not (0)."""
        self._set_gpu(index, mig_mode=mode)

    def _gpu(self, index: int) -> dict[str, int]:
        values = _GPU.unpack_from(self._map, _HEAD.size + index * _GPU.size)
        return dict(zip(_GPU_FIELDS, values, strict=True))

    def _set_gpu(self, index: int, **changes: int) -> None:
        fields = self._gpu(index) | changes
        values = (fields[name] for name in _GPU_FIELDS)
        _GPU.pack_into(self._map, _HEAD.size + index * _GPU.size, *values)


def build_library(folder: Path) -> Path:
    """Compile the false NVML under the name that nvidia-ml-py asks for."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("the false NVML needs a C compiler, and there is no gcc")
    library = folder / "libnvidia-ml.so.1"
    flags = ["-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-shared", "-fvisibility=hidden"]
    subprocess.run([compiler, *flags, "-o", library, SOURCE], check=True, timeout=60)
    return library
