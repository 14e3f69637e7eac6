"""Contract of a GPU vendor: all that differs from one vendor to another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from flyball_client.gpu._base import (
    ClockLimit,
    GpuAddress,
    GpuDevice,
    GpuError,
    GpuNotFoundError,
    SmClockRange,
)
from flyball_profiles.gpu_conditions import GpuConditions

if TYPE_CHECKING:
    from flyball_client.gpu.checks import CheckResult


@dataclass(frozen=True, kw_only=True)
class ClockSettings:
    """Settings of clock control, read from environment variables by `registry`.

    Attributes:
        control: Interface that sets clocks, `nvml`, `zeusd` or `auto` (`FLYBALL_CLOCK_CONTROL`).
        return_range: Clocks to restore, `LOWEST:HIGHEST` in MHz
            (`FLYBALL_RETURN_CLOCKS_MHZ`); None: the driver's default.
    """

    control: str
    return_range: SmClockRange | None


@dataclass(frozen=True, kw_only=True)
class ListedGpu:
    """GPU of a list.

    Attributes:
        index: Index in the driver's order; that of an emulated GPU is its stage.
        uuid: UUID; None: it is emulated.
        sm_clocks_mhz: SM clocks that can be locked, MHz, falling; empty: not reported.
        conditions: Limits and settings in force; None: not known.
    """

    index: int
    name: str
    uuid: str | None
    sm_clocks_mhz: tuple[int, ...]
    conditions: GpuConditions | None = None


@dataclass(frozen=True, kw_only=True)
class VisibleGpus:
    """GPUs that a framework sees.

    Attributes:
        uuids: UUIDs in the framework's order; empty: the GPU cannot be opened.
        num_gpus: Number of the vendor's GPUs in this machine.
        setting: Variable that limits them, with its value, for texts.
    """

    uuids: Sequence[str]
    num_gpus: int
    setting: str

    def select(self, number: int) -> str:
        """Return the UUID of the GPU that the framework calls `cuda:number`.

        Raises:
            GpuNotFoundError: Fewer GPUs are visible, or this GPU cannot be opened.
        """
        if not 0 <= number < len(self.uuids):
            raise GpuNotFoundError(
                f"there is no cuda:{number}: {len(self.uuids)} of {self.num_gpus} GPUs are visible"
                f" ({self.setting})"
            )
        if not self.uuids[number]:
            raise GpuNotFoundError(f"cuda:{number} cannot be opened; flyball doctor says why")
        return self.uuids[number]

    def select_for_rank(self, local_rank: int | None) -> str:
        """Return the UUID of the one visible GPU, else of that with the rank's number on its node.

        A launcher may show each rank its own GPU, which is then cuda:0 on all.

        Args:
            local_rank: Number of the rank on its node; None: not known.

        Raises:
            GpuError: As for `select`, or several are visible and nothing says which.
        """
        num_visible = len(self.uuids)
        if local_rank is None and num_visible > 1:
            raise GpuError(
                f"{num_visible} GPUs are visible ({self.setting}), and no variable such as"
                " LOCAL_RANK or SLURM_LOCALID says which of them is this rank's; set LOCAL_RANK,"
                " or show each rank its own GPU"
            )
        return self.select(0 if num_visible == 1 else local_rank or 0)


class GpuChecks(Protocol):
    """A vendor's part of `flyball doctor`. Clocks are read, never set or restored."""

    no_gpus_advice: str
    """Advice where the driver lists no GPU."""
    numbering_advice: str
    """Advice where the framework's numbers of the GPUs cannot be determined."""
    limit_advice: Mapping[ClockLimit, str]
    """Advice for POWER, THERMAL and OTHER limits of a clock."""
    lock_advice: str
    """Advice where a clock is low for no known reason, besides `flyball unlock`."""

    def check_daemons(self, environ: Mapping[str, str]) -> Iterator[CheckResult]:
        """Check what sets clocks for ranks without the right to; the driver is not started."""
        ...

    def check_driver(self) -> CheckResult:
        """Return the versions in use."""
        ...

    def parts(self) -> Mapping[str, Callable[[GpuDevice, str], CheckResult]]:
        """Return the checks of an open GPU by part: that its clocks can be locked, and stay so.

        Each takes the GPU and the check's name.
        """
        ...

    def check_control(self, name: str, address: GpuAddress | None, note: str) -> CheckResult:
        """Check the right to set clocks.

        Args:
            name: Name of the check.
            address: Address of the GPU as a rank opens it.
            note: Reason why another control was not used; empty: none.
        """
        ...

    def has_chosen_clocks(self, uuid: str) -> bool:
        """Return whether the driver reports a clock setting as the limit of the clock."""
        ...


class GpuVendor(Protocol):
    """Real GPUs of one vendor; `registry.VENDORS` has an entry for each.

    Contract, tested over every entry by `tests/contract/test_gpu_vendor.py`:

    - Facts are read from the driver, which every call starts and ends; in a `session` it runs.
    - GPUs have indices from 0, the same in every process; a GPU that is lost keeps its index.
    - Failures raise the GpuError tree; a variable that cannot be used raises ValueError, whose
      text begins with its name.
    - A new object is cheap and loads no driver.
    """

    library: str
    """Name of the library that lists the GPUs, for texts."""
    lister: str
    """Command of the vendor that lists indices and UUIDs, for texts."""
    uuid_prefix: str
    """Text that UUIDs of this vendor begin with, and of no other vendor."""
    controls: tuple[str, ...]
    """Names of the ways to set clocks, for FLYBALL_CLOCK_CONTROL; the first opens for reading."""
    torch_backend: str
    """Build of torch that runs on these GPUs, `cuda` or `hip`."""

    def session(self) -> AbstractContextManager[object]:
        """Start the driver's library for a `with` block."""
        ...

    def driver_version(self) -> str:
        """Return the driver's version."""
        ...

    def uuids(self) -> list[str | GpuError]:
        """Return the UUID of each GPU by index, or the error of one that cannot be read."""
        ...

    def describe(self, index: int) -> ListedGpu:
        """Return the GPU at this index, also one whose clocks cannot be set."""
        ...

    def visible(self, environ: Mapping[str, str]) -> VisibleGpus:
        """Return the GPUs that the framework sees."""
        ...

    def computing_processes(self, uuid: str) -> tuple[int, ...]:
        """Return the numbers of the processes that compute on the GPU, as the driver counts."""
        ...

    def check_settings(self, settings: ClockSettings, environ: Mapping[str, str]) -> None:
        """Raise ValueError if a variable of the vendor's is needed and cannot be used."""
        ...

    def addresses(
        self, uuid: str, settings: ClockSettings, environ: Mapping[str, str]
    ) -> list[GpuAddress]:
        """Return one address or several; a later one counts where no earlier one can be opened.

        Args:
            uuid: UUID.
            settings: Settings; the control is one of `controls`, or `auto`.
            environ: Environment, with the control's variables.
        """
        ...

    def open(self, address: GpuAddress) -> GpuDevice:
        """Open the GPU at an address of one of the `controls`."""
        ...

    def check_rights(self, address: GpuAddress) -> None:
        """Raise GpuPermissionError if this process surely cannot set clocks at this address."""
        ...

    def checks(self) -> GpuChecks:
        """Return the checks of `flyball doctor`."""
        ...
