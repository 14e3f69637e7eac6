"""The contract of a GPU whose clocks Flyball sets, and the errors its implementations raise."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Flag, auto
from typing import Literal, Protocol, runtime_checkable

from flyball_wire.errors import FlyballError


class GpuError(FlyballError):
    """A GPU call failed."""


class GpuPermissionError(GpuError):
    """Setting clocks needs root or CAP_SYS_ADMIN; the text says what to do."""


class GpuNotFoundError(GpuError):
    """No such GPU, no driver, or no NVML."""


class GpuNotSupportedError(GpuError):
    """The GPU or its driver cannot do this (locked clocks: Volta and later; no MIG)."""


class ClockLimit(Flag):
    """Reason for an SM clock below the requested one; IDLE: nothing runs that would need it."""

    NONE = 0
    IDLE = auto()
    POWER = auto()
    THERMAL = auto()
    OTHER = auto()


@dataclass(frozen=True, kw_only=True)
class SmClockRange:
    """SM clocks that the driver may choose from, MHz, both ends included.

    Raises:
        ValueError: an end is not positive, or they are the wrong way round.
    """

    lowest_mhz: int
    highest_mhz: int

    def __post_init__(self) -> None:
        if not 0 < self.lowest_mhz <= self.highest_mhz:
            raise ValueError(
                f"a range of SM clocks is LOWEST:HIGHEST in MHz, as 210:1410,"
                f" not {self.lowest_mhz}:{self.highest_mhz}"
            )


@dataclass(frozen=True, kw_only=True)
class GpuAddress:
    """Address by which another process on this machine opens the same GPU.

    Attributes:
        control: who sets the clocks: this process through NVML, or zeusd.
        uuid: `GPU-...`.
        endpoint: of zeusd: the path of its socket, or `host:port`.
        token: of zeusd, where it wants one.
        return_range: what a clock that is given back goes to; None: the driver's default.
    """

    control: Literal["nvml", "zeusd"]
    uuid: str
    endpoint: str | None = None
    token: str | None = field(default=None, repr=False)
    return_range: SmClockRange | None = None


class GpuDevice(Protocol):
    """One GPU, addressed by UUID.

    Contract, tested over every implementation by `tests/contract/test_gpu_device.py`:

    - All methods may be called from any one thread at a time; none keeps a lock while idle.
    - `lock_sm_clock_mhz` sets minimum and maximum to the same value; a clock not in
      `supported_sm_clocks_mhz` raises ValueError and changes nothing. When it returns, the new
      clock is requested; a power or thermal limit may hold the real one below it.
    - `reset_sm_clock` restore the clock to the driver, or to the range that the device was
      opened with; any number of times, also when nothing was locked.
    - `clock_limits` says why the clock is lower than asked for; the lock itself is no limit.
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
        """Return whether its times and energies come from a profile."""
        ...

    @property
    def address(self) -> GpuAddress | None:
        """Return how another process opens it; None: it lives in this process only."""
        ...

    def supported_sm_clocks_mhz(self) -> tuple[int, ...]:
        """SM clocks that can be locked, MHz, falling."""
        ...

    def lock_sm_clock_mhz(self, sm_clock_mhz: int) -> None:
        """Run at this SM clock from now on."""
        ...

    def reset_sm_clock(self) -> None:
        """Give the SM clock back to the driver, or to the configured range."""
        ...

    def sm_clock_mhz(self) -> int:
        """The SM clock in force, MHz."""
        ...

    def clock_limits(self) -> ClockLimit:
        """Return what holds the clock down at this moment."""
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

    def on_instruction_begin(self, kind: str, chunk: int = 0) -> None:
        """The computation begins, of one of the stage's model chunks."""
        ...

    def on_instruction_end(self, kind: str, chunk: int = 0) -> None:
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
