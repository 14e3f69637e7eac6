"""Contract of a GPU whose clocks Flyball sets, and the errors that implementations raise."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Flag, auto
from typing import Protocol, runtime_checkable

from flyball_profiles.gpu_conditions import GpuConditions
from flyball_profiles.stage_profile import EnergyScope
from flyball_wire.errors import FlyballError

GPU_VARIABLE = "FLYBALL_GPU"
"""Environment variable that chooses an emulated GPU; not set: the GPU is a real one."""


class GpuError(FlyballError):
    """A GPU call failed."""


class GpuPermissionError(GpuError):
    """The process has no right to set clocks."""


class GpuNotFoundError(GpuError):
    """The GPU, its driver or NVML is missing."""


class GpuNotSupportedError(GpuError):
    """The GPU or its driver does not support the call (locked clocks: from Volta on, no MIG)."""


class ClockLimit(Flag):
    """Reason for an SM clock below the requested one; IDLE: the GPU has no work."""

    NONE = 0
    IDLE = auto()
    POWER = auto()
    THERMAL = auto()
    OTHER = auto()


@dataclass(frozen=True, kw_only=True)
class SmClockRange:
    """Range of SM clocks in MHz that the driver may use, both ends included.

    Raises:
        ValueError: An end is not positive, or the lowest is above the highest.
    """

    lowest_mhz: int
    highest_mhz: int

    def __post_init__(self) -> None:
        if not 0 < self.lowest_mhz <= self.highest_mhz:
            raise ValueError(f"must be LOWEST:HIGHEST in MHz, such as 210:1410, not {self}")

    def __str__(self) -> str:
        return f"{self.lowest_mhz}:{self.highest_mhz}"

    @classmethod
    def parse(cls, text: str) -> SmClockRange:
        """Parse `LOWEST:HIGHEST`.

        Raises:
            ValueError: The text has another form.
        """
        lowest, _, highest = text.partition(":")
        try:
            return cls(lowest_mhz=int(lowest), highest_mhz=int(highest))
        except ValueError:
            raise ValueError(
                f"must be LOWEST:HIGHEST in MHz, such as 210:1410, not {text!r}"
            ) from None


@dataclass(frozen=True, kw_only=True)
class ClockCall:
    """One call that set a GPU's clock; moments are of the system's monotonic clock.

    An emulated GPU in virtual time has a clock of its own.

    Attributes:
        sm_clock_mhz: Clock that was set, MHz.
        requested_s: Moment of the request, in s.
        began_s: Start of the call in s; calls to the node's other GPUs may delay it from then on.
        returned_s: End of the call in s.
    """

    sm_clock_mhz: int
    requested_s: float
    began_s: float
    returned_s: float


@dataclass(frozen=True, kw_only=True)
class GpuAddress:
    """Address by which another process on this machine opens the same GPU.

    Attributes:
        control: Way of setting clocks, one of a vendor's `controls`.
        uuid: UUID, such as `GPU-...`.
        endpoint: Socket or `HOST:PORT` of the daemon that sets clocks; None: there is none.
        token: Token for the daemon; None: no token.
        return_range: Clocks that a reset restores; None: the driver's default.
    """

    control: str
    uuid: str
    endpoint: str | None = None
    token: str | None = field(default=None, repr=False)
    return_range: SmClockRange | None = None


class GpuDevice(Protocol):
    """One GPU, addressed by UUID.

    Contract, tested over every implementation by `tests/contract/test_gpu_device.py`:

    - All methods may be called from any thread, one at a time; none holds a lock while idle.
    - `lock_sm_clock_mhz` sets minimum and maximum to the same value; a clock that is not in
      `supported_sm_clocks_mhz` raises ValueError and changes nothing. When it returns, the new
      clock is requested; a power or thermal limit may keep the actual clock below it.
    - `reset_sm_clock` restores the driver's clock, or the range that the device was opened with;
      it may be called repeatedly, also when nothing was locked.
    - `clock_limits` returns the reasons of a clock below the requested one; the lock is none.
    - `total_energy_j` never falls; real counters move about every 100 ms.
    - `close` resets a clock that this object locked, then frees the device; it may be called
      repeatedly. Any other call after it raises GpuError.
    - Memory clocks and power limits are never changed.
    - Failures raise the GpuError tree, never a vendor's error.
    """

    @property
    def name(self) -> str:
        """Name of the product; that of an emulated GPU starts with `emulated `."""
        ...

    @property
    def uuid(self) -> str:
        """UUID, with its vendor's prefix; that of an emulated GPU starts with `EMULATED-`."""
        ...

    @property
    def is_emulated(self) -> bool:
        """True: its times and energies come from a profile."""
        ...

    @property
    def address(self) -> GpuAddress | None:
        """Address for another process; None: the device exists in this process only."""
        ...

    def supported_sm_clocks_mhz(self) -> tuple[int, ...]:
        """Return the SM clocks that can be locked, MHz, falling."""
        ...

    def lock_sm_clock_mhz(self, sm_clock_mhz: int) -> None:
        """Lock this SM clock."""
        ...

    def reset_sm_clock(self) -> None:
        """Restore the driver's SM clock, or the configured range."""
        ...

    def sm_clock_mhz(self) -> int:
        """Return the SM clock in force, MHz."""
        ...

    def clock_limits(self) -> ClockLimit:
        """Return the current limits of the clock."""
        ...

    def total_energy_j(self) -> float:
        """Return the energy counter, J since some fixed moment."""
        ...

    def energy_scope(self) -> EnergyScope | None:
        """Return what the energy counter counts; None: not known."""
        ...

    def conditions(self) -> GpuConditions | None:
        """Return the limits and settings in force; None: not known, or an emulated GPU has none.

        What cannot be read is None in it. A call may take tens of milliseconds.
        """
        ...

    def close(self) -> None:
        """Restore the clock and free the device."""
        ...


class InstructionObserver(Protocol):
    """Observer that is called when an instruction's computation begins and ends.

    Kinds are the names of `InstructionKind`. An observer may block: an emulated GPU sleeps in
    `on_instruction_end` until the profiled time of the instruction is over.
    """

    def on_instruction_begin(self, kind: str, chunk: int = 0) -> None:
        """Start the computation of one of the stage's model chunks."""
        ...

    def on_instruction_end(self, kind: str, chunk: int = 0) -> None:
        """End the computation."""
        ...


@runtime_checkable
class EmulatedDevice(GpuDevice, InstructionObserver, Protocol):
    """GPU with its own clock, which runs instructions with the times of a profile."""

    def begin_work(self, step: int, microbatch: int) -> None:
        """Take the work of this step's microbatch for instructions that begin from now on."""
        ...

    def complete(self) -> None:
        """Wait until the emulated time of the running instruction is over; it may go on."""
        ...

    def on_wait_begin(self) -> None:
        """Suspend the running instruction: it makes no progress until `on_wait_end`."""
        ...

    def on_wait_end(self) -> None:
        """Resume the suspended instruction."""
        ...

    def break_off(self) -> None:
        """End the running instruction where it is; without one it has no effect."""
        ...

    def lock_sm_clock_mhz_at(self, sm_clock_mhz: int, moment_s: float) -> None:
        """Lock this SM clock at a moment of `emulated_time_s`, in s; a past one is now.

        Another lock or reset before then replaces it.
        """
        ...

    @property
    def num_overruns(self) -> int:
        """Number of instructions whose computation exceeded the profiled time."""
        ...

    def emulated_time_s(self) -> float:
        """Return the emulated seconds since the device was created."""
        ...

    def last_call(self) -> ClockCall | None:
        """Return the last call that set the clock; None: there was none, or it is not over."""
        ...
