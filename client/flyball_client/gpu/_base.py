"""The contract of a GPU whose clocks Flyball sets, and the errors its implementations raise."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from flyball_client.errors import FlyballError


class GpuError(FlyballError):
    """A GPU call failed."""


class GpuPermissionError(GpuError):
    """Setting clocks needs root or CAP_SYS_ADMIN; the text says what to do."""


class GpuNotFoundError(GpuError):
    """No such GPU, no driver, or no NVML."""


class GpuNotSupportedError(GpuError):
    """The GPU or its driver cannot do this (locked clocks: Volta and later; no MIG)."""


class GpuDevice(Protocol):
    """One GPU, addressed by UUID.

    Contract, tested over every implementation by `tests/contract/test_gpu_device.py`:

    - All methods may be called from any one thread at a time; none keeps a lock while idle.
    - `lock_sm_clock_mhz` sets minimum and maximum to the same value; a clock not in
      `supported_sm_clocks_mhz` raises ValueError and changes nothing. When it returns, the new
      clock is requested; a power or thermal limit may hold the real one below it.
    - `reset_sm_clock` gives the clock back to the driver; any number of times, also when
      nothing was locked.
    - `total_energy_j` never falls; real counters move about every 100 ms.
    - `close` resets a clock that this object locked, then frees it; calling it again does
      nothing. Any other call after it raises GpuError.
    - Memory clocks and power limits are never touched.
    - Failures raise the GpuError tree, never a vendor's error.
    """

    @property
    def name(self) -> str:
        """The product's name; an emulated GPU's starts with `emulated `."""
        ...

    @property
    def uuid(self) -> str:
        """The GPU's UUID (`GPU-...`); an emulated GPU's starts with `EMULATED-`."""
        ...

    @property
    def is_emulated(self) -> bool:
        """Whether its times and energies come from a profile."""
        ...

    def supported_sm_clocks_mhz(self) -> tuple[int, ...]:
        """SM clocks that can be locked, MHz, falling."""
        ...

    def lock_sm_clock_mhz(self, sm_clock_mhz: int) -> None:
        """Run at this SM clock from now on."""
        ...

    def reset_sm_clock(self) -> None:
        """Give the SM clock back to the driver."""
        ...

    def sm_clock_mhz(self) -> int:
        """The SM clock in force, MHz."""
        ...

    def total_energy_j(self) -> float:
        """The energy counter, J since some fixed moment."""
        ...

    def close(self) -> None:
        """Give the clock back and free the device."""
        ...


class InstructionObserver(Protocol):
    """Something that is told when an instruction's computation begins and ends.

    Kinds are the names of `InstructionKind`. An observer may take its time: an emulated GPU
    sleeps in `on_instruction_end` until the instruction has lasted as long as its profile says.
    """

    def on_instruction_begin(self, kind: str) -> None:
        """The computation begins."""
        ...

    def on_instruction_end(self, kind: str) -> None:
        """The computation has ended."""
        ...


@runtime_checkable
class EmulatedDevice(GpuDevice, InstructionObserver, Protocol):
    """A GPU with a time of its own, which runs instructions as a profile says."""

    @property
    def num_overruns(self) -> int:
        """Instructions so far whose computation outlasted the profiled time."""
        ...

    def emulated_time_s(self) -> float:
        """Emulated seconds since the device was made."""
        ...
