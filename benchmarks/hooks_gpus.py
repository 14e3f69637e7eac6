"""The false GPUs of benchmarks/hooks.py, and when NVML was asked for each clock.

The tests' false NVML with some more calls, see hooks_nvml.c. All processes of one measurement
share the GPUs: the rank, its governor, Zeus.
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

from measured_process import BenchmarkError

SOURCE = Path(__file__).with_name("hooks_nvml.c")
NUM_GPUS = 2
HIGHEST_MHZ = 1980
STEP_MHZ = 15
COMPILE_GIVE_UP_S = 60.0

# `struct state` of false_nvml.c begins with the number of GPUs, and zeros mean no fault.
_STATE_BYTES = 1 << 16
# `struct calls` and `struct call` of hooks_nvml.c.
_CALLS_HEAD = struct.Struct("=qq")
_CALL = struct.Struct("=qqqq")
_MAX_CALLS = 1 << 16
_CALLS_BYTES = _CALLS_HEAD.size + _MAX_CALLS * _CALL.size
_CALLS_VARIABLE = "FALSE_NVML_CALLS"
# What CUDA_VISIBLE_DEVICES was before it named the false GPUs; not set: it was not.
OWN_DEVICES_VARIABLE = "HOOKS_OWN_CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, kw_only=True)
class NvmlCall:
    """One call that concerned clocks.

    Attributes:
        began_ns: CLOCK_MONOTONIC when it came, ns.
        ended_ns: when it returned, ns.
        mhz: the clock that was set; 0: given back; -1: something was read.
        pid: of the process that called.
    """

    began_ns: int
    ended_ns: int
    mhz: int
    pid: int


class CallRecord:
    """The calls of all processes, as the false NVML wrote them down.

    Args:
        path: of the file that they share.
    """

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _CALLS_BYTES)

    @classmethod
    def of_environment(cls) -> CallRecord:
        """The one of the GPUs that this process uses."""
        return cls(Path(os.environ[_CALLS_VARIABLE]))

    @property
    def num_calls(self) -> int:
        """Calls since `begin`."""
        return int(_CALLS_HEAD.unpack_from(self._map, 0)[0])

    def begin(self, *, set_latency_us: int) -> None:
        """Forget the calls so far; from now on setting a clock takes this long."""
        _CALLS_HEAD.pack_into(self._map, 0, 0, set_latency_us)

    def calls(self) -> list[NvmlCall]:
        """The calls since `begin`, in the order in which they came.

        Raises:
            BenchmarkError: there were more than are kept.
        """
        if self.num_calls > _MAX_CALLS:
            raise BenchmarkError(f"{self.num_calls} NVML calls in a series, over {_MAX_CALLS}")
        found: list[NvmlCall] = []
        for number in range(self.num_calls):
            offset = _CALLS_HEAD.size + number * _CALL.size
            began_ns, ended_ns, mhz, pid = _CALL.unpack_from(self._map, offset)
            found.append(NvmlCall(began_ns=began_ns, ended_ns=ended_ns, mhz=mhz, pid=pid))
        return sorted(found, key=lambda call: call.began_ns)


class FalseGpus:
    """Two GPUs without a fault.

    Args:
        folder: for the library and what the processes share.

    Raises:
        BenchmarkError: the library cannot be compiled.
    """

    def __init__(self, folder: Path) -> None:
        self._library = _compile(folder)
        self._state = folder / "gpus"
        self._state.write_bytes(NUM_GPUS.to_bytes(8, "little").ljust(_STATE_BYTES, b"\0"))
        self._calls = folder / "calls"
        self._calls.write_bytes(bytes(_CALLS_BYTES))
        self._records = folder / "records"
        self.record = CallRecord(self._calls)

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables that a process needs from its start to use these GPUs."""
        return {
            "LD_LIBRARY_PATH": os.pathsep.join([str(self._library.parent), *_library_folders()]),
            "FALSE_NVML_STATE": str(self._state),
            _CALLS_VARIABLE: str(self._calls),
            "CUDA_VISIBLE_DEVICES": ",".join(str(index) for index in range(NUM_GPUS)),
            **_own_devices(),
            "FLYBALL_STATE_DIR": str(self._records),
            "FLYBALL_CLOCK_CONTROL": "nvml",
        }


def _own_devices() -> dict[str, str]:
    devices = os.environ.get("CUDA_VISIBLE_DEVICES")
    return {} if devices is None else {OWN_DEVICES_VARIABLE: devices}


def _library_folders() -> list[str]:
    """Return where this process's libraries are looked for, a GPU's driver among them."""
    return [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]


def _compile(folder: Path) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise BenchmarkError("the false NVML needs a C compiler, and there is no gcc")
    alone = folder / "library"
    alone.mkdir()
    library = alone / "libnvidia-ml.so.1"
    flags = ["-Wall", "-O1", "-fPIC", "-shared", "-fvisibility=hidden"]
    try:
        subprocess.run(
            [compiler, *flags, "-o", str(library), str(SOURCE)],
            check=True,
            timeout=COMPILE_GIVE_UP_S,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise BenchmarkError(f"{SOURCE.name} cannot be compiled: {error}") from None
    return library
