"""Builds the false NVML for tests and looks into its GPUs from outside."""

from __future__ import annotations

import fcntl
import mmap
import os
import shutil
import struct
import subprocess
import time
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("false_nvml.c")

LOWEST_MHZ = 210
HIGHEST_MHZ = 1980
SUPPORTED_MHZ = tuple(range(HIGHEST_MHZ, LOWEST_MHZ - 1, -15))

# The layout of `struct state` in false_nvml.c.
_HEAD = struct.Struct("=qqq")
_GPU = struct.Struct("=18q")
_FAULT = struct.Struct("=qqqq64s")
_FIELD = struct.Struct("=q")
_MAX_GPUS = _MAX_FAULTS = 8
_FAULTS = _HEAD.size + _MAX_GPUS * _GPU.size
_ALWAYS_NS = 2**62
_GPU_FIELDS = (
    "lowest_mhz",
    "highest_mhz",
    "held_mhz",
    "event_reasons",
    "mig_mode",
    "energy_uj",
    "counted_ns",
    "computing_pid",
    "is_frozen",
    "module_mw",
    "limit_mw",
    "module_limit_mw",
    "profiles",
    "unenforced",
    "memory_mhz",
    "application_mhz",
    "ecc_off",
    "is_deaf",
)
_COUNTER_PERIOD_NS = 25_000_000


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
        size = _FAULTS + _MAX_FAULTS * _FAULT.size
        self._state_file.write_bytes(_HEAD.pack(num_gpus, 0, 0).ljust(size, b"\0"))
        with self._state_file.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), size)

    def close(self) -> None:
        """Unmap the state."""
        self._map.close()

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables that a process needs from its start to use these GPUs."""
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

    @property
    def num_gpus(self) -> int:
        """GPUs that NVML counts."""
        return int(_HEAD.unpack_from(self._map)[0])

    @staticmethod
    def pci_address(index: int) -> str:
        """PCI address of a GPU, as `lspci -D` writes it."""
        return f"0000:{0x1A + index:02x}:00.0"

    def locked_mhz(self, index: int = 0) -> int:
        """The clock that is locked, MHz; 0: none, as with a range or the driver's default."""
        lowest_mhz, highest_mhz = self.range_mhz(index)
        return highest_mhz if lowest_mhz == highest_mhz else 0

    def range_mhz(self, index: int = 0) -> tuple[int, int]:
        """The lowest and highest clock that are set, MHz; zeros: the driver's default."""
        gpu = self._gpu(index)
        return gpu["lowest_mhz"], gpu["highest_mhz"]

    def set_range_mhz(self, lowest_mhz: int, highest_mhz: int, index: int = 0) -> None:
        """Set clocks as somebody with the right to does, past faults and log; zeros: reset."""
        with self._state_file.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self._count_energy(index)
            self._set_gpu(index, lowest_mhz=lowest_mhz, highest_mhz=highest_mhz)

    def energy_mj(self, index: int = 0) -> int:
        """Return what the GPU's energy counter shows, mJ."""
        with self._state_file.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self._count_energy(index)
            return self._gpu(index)["energy_uj"] // 1000

    def use_energy_j(self, energy_j: int, index: int = 0) -> None:
        """Let the energy counter jump up by this much; negative: it falls, as of a new driver."""
        with self._state_file.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self._set_gpu(index, energy_uj=self._gpu(index)["energy_uj"] + energy_j * 10**6)

    def calls(self, function: str) -> list[tuple[int, int]]:
        """(GPU, argument) of every call of an NVML function so far."""
        if not self._log_file.exists():
            return []
        # What stands behind the last line's end is being written at this moment.
        whole, _, _ = self._log_file.read_text().rpartition("\n")
        lines = [line.split() for line in whole.splitlines()]
        return [(int(gpu), int(arg)) for _, name, gpu, arg in lines if name == function]

    def fail(
        self,
        function: str,
        code: int,
        *,
        gpu: int | None = None,
        lasts_s: float | None = None,
        hangs_s: float = 0.0,
    ) -> None:
        """From now on this function returns this code, for a time, beside faults of others.

        Args:
            function: name of the function; empty: every one.
            code: NVML's code; 0: it works again, or only hangs.
            gpu: index of a GPU, whose calls fail alone.
            lasts_s: time in s; None: until it works again.
            hangs_s: time in s that a call hangs before that, at most until the fault's end.
        """
        until_ns = _ALWAYS_NS if lasts_s is None else time.monotonic_ns() + round(lasts_s * 1e9)
        of_gpu, name = -1 if gpu is None else gpu, function.encode()
        place = next(
            i
            for i, (_, at_gpu, until, _, named) in enumerate(self._faults())
            if (at_gpu, named.rstrip(b"\0")) == (of_gpu, name) or not until
        )
        if not code and not hangs_s:
            until_ns = 0
        fault = _FAULT.pack(code, of_gpu, until_ns, round(hangs_s * 1e6), name)
        offset = _FAULTS + place * _FAULT.size
        self._map[offset : offset + _FAULT.size] = fault

    def work_again(self) -> None:
        """End all faults."""
        self._map[_FAULTS:] = bytes(_MAX_FAULTS * _FAULT.size)

    def _faults(self) -> list[tuple[int, int, int, int, bytes]]:
        return [
            _FAULT.unpack_from(self._map, _FAULTS + i * _FAULT.size) for i in range(_MAX_FAULTS)
        ]

    def freeze_energy(self, index: int = 0, *, is_frozen: bool = True) -> None:
        """Let the energy counter stand still, or move again."""
        with self._state_file.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self._count_energy(index)
            self._set_gpu(index, is_frozen=int(is_frozen))

    def set_module_w(self, power_w: int, index: int = 0) -> None:
        """Let the GPU be part of a module, whose energy it counts; the rest draws this much, W."""
        with self._state_file.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self._count_energy(index)
            self._set_gpu(index, module_mw=power_w * 1000)

    def set_conditions(
        self,
        index: int = 0,
        *,
        limit_w: int | None = None,
        module_limit_w: int | None = None,
        profiles: int | None = None,
        unenforced: int | None = None,
        memory_mhz: int | None = None,
        application_mhz: int | None = None,
        ecc: bool | None = None,
    ) -> None:
        """Change limits and settings, as an operator does.

        Args:
            index: the GPU.
            limit_w: enforced power limit in W; 0: the default one, 700 W.
            module_limit_w: that of its module in W, where `set_module_w` gave it one.
            profiles: enforced power profiles, a bit each; -1: the GPU has none.
            unenforced: profiles that are requested and not enforced.
            memory_mhz: memory clock; 0: the highest, 2619 MHz.
            application_mhz: application clock of the SMs; 0: the highest.
            ecc: whether ECC is on, as it is at first.
        """
        given = {
            "limit_mw": None if limit_w is None else limit_w * 1000,
            "module_limit_mw": None if module_limit_w is None else module_limit_w * 1000,
            "profiles": profiles,
            "unenforced": unenforced,
            "memory_mhz": memory_mhz,
            "application_mhz": application_mhz,
            "ecc_off": None if ecc is None else int(not ecc),
        }
        self._set_gpu(index, **{name: value for name, value in given.items() if value is not None})

    def ignore_locks(self, index: int = 0, *, is_deaf: bool = True) -> None:
        """Let locked clocks be accepted without effect, or have effect again."""
        self._set_gpu(index, is_deaf=int(is_deaf))

    def set_latency_us(self, latency_us: int, *, queues: bool = False) -> None:
        """From now on every call takes this long; those that lock clocks at once, or in turn."""
        _HEAD.pack_into(self._map, 0, self.num_gpus, latency_us, queues)

    def hold_below_mhz(self, held_mhz: int, index: int = 0) -> None:
        """Let a power limit hold the clock there, whatever is locked; 0: no longer."""
        self._set_gpu(index, held_mhz=held_mhz)

    def set_event_reasons(self, reasons: int, index: int = 0) -> None:
        """Let NVML tell these clocks-event reasons too; 0: no others."""
        self._set_gpu(index, event_reasons=reasons)

    def set_computing(self, pid: int, index: int = 0) -> None:
        """Let this process compute on the GPU; 0: none does."""
        self._set_gpu(index, computing_pid=pid)

    def set_mig(self, mode: int, index: int = 0) -> None:
        """Divide the GPU (1), or not (0)."""
        self._set_gpu(index, mig_mode=mode)

    def _count_energy(self, index: int) -> None:
        # As count_energy in false_nvml.c: 50 W and a tenth of a watt per MHz, whole periods.
        gpu = self._gpu(index)
        until_ns = time.monotonic_ns() // _COUNTER_PERIOD_NS * _COUNTER_PERIOD_NS
        elapsed_ms = (until_ns - (gpu["counted_ns"] or until_ns)) // 10**6
        free_mhz = gpu["application_mhz"] or HIGHEST_MHZ
        asked_mhz = 0 if gpu["is_deaf"] else gpu["highest_mhz"]
        clock_mhz = min(asked_mhz or free_mhz, gpu["held_mhz"] or HIGHEST_MHZ)
        power_mw = 0 if gpu["is_frozen"] else 50_000 + 100 * clock_mhz + gpu["module_mw"]
        energy_uj = gpu["energy_uj"] + power_mw * elapsed_ms
        self._set_gpu(index, energy_uj=energy_uj, counted_ns=until_ns)

    def _gpu(self, index: int) -> dict[str, int]:
        values = _GPU.unpack_from(self._map, _HEAD.size + index * _GPU.size)
        return dict(zip(_GPU_FIELDS, values, strict=True))

    def _set_gpu(self, index: int, **changes: int) -> None:
        # Field by field: another process may change the others at the same time.
        for name, value in changes.items():
            offset = _HEAD.size + index * _GPU.size + _GPU_FIELDS.index(name) * _FIELD.size
            _FIELD.pack_into(self._map, offset, value)


def build_library(folder: Path) -> Path:
    """Compile the false NVML under the name that nvidia-ml-py asks for."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("the false NVML needs a C compiler, and there is no gcc")
    library = folder / "libnvidia-ml.so.1"
    flags = ["-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-shared", "-fvisibility=hidden"]
    subprocess.run([compiler, *flags, "-o", library, SOURCE], check=True, timeout=60)
    return library
