"""GPUs of a vendor that does not exist: two, whose clocks are files that every process sees."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from flyball_client.gpu._base import (
    ClockLimit,
    GpuAddress,
    GpuDevice,
    GpuError,
    GpuNotFoundError,
    GpuPermissionError,
)
from flyball_client.gpu.checks import CheckResult, ok
from flyball_client.gpu.registry import VENDORS
from flyball_client.gpu.vendor import ClockSettings, GpuChecks, ListedGpu, VisibleGpus
from flyball_profiles.gpu_conditions import GpuConditions
from flyball_profiles.stage_profile import EnergyScope

FOLDER_VARIABLE = "MADE_UP_GPUS"
UUIDS = ("MADE-UP-0", "MADE-UP-1")
CLOCKS_MHZ = (1410, 1200, 900)
POWER_W = 100.0


def register() -> None:
    """Add the vendor's entry to the registry of this process."""
    VENDORS["made-up"] = MadeUpVendor


def clock_file(uuid: str) -> Path:
    """The file with the lowest and highest clock, MHz; missing: the driver's default."""
    return Path(os.environ[FOLDER_VARIABLE]) / uuid


def locked_mhz(uuid: str = UUIDS[0]) -> int:
    """Return the locked clock of a GPU in MHz; 0: none."""
    try:
        lowest, highest = clock_file(uuid).read_text().split()
    except (FileNotFoundError, ValueError):  # the latter: it is being written
        return 0
    return int(lowest) if lowest == highest else 0


class MadeUpGpu:
    """A GpuDevice."""

    is_emulated = False

    def __init__(self, address: GpuAddress) -> None:
        self.address = address
        self.uuid = address.uuid
        self.name = f"Made-up GPU {address.uuid[-1]}"
        self._is_locked = self._is_closed = False

    def supported_sm_clocks_mhz(self) -> tuple[int, ...]:
        self._check_open()
        return CLOCKS_MHZ

    def lock_sm_clock_mhz(self, sm_clock_mhz: int) -> None:
        if sm_clock_mhz not in self.supported_sm_clocks_mhz():
            raise ValueError(f"{self.uuid} does not support {sm_clock_mhz} MHz")
        self._is_locked = True
        clock_file(self.uuid).write_text(f"{sm_clock_mhz} {sm_clock_mhz}")

    def reset_sm_clock(self) -> None:
        self._check_open()
        back = self.address.return_range
        if back is None:
            clock_file(self.uuid).unlink(missing_ok=True)
        else:
            clock_file(self.uuid).write_text(f"{back.lowest_mhz} {back.highest_mhz}")
        self._is_locked = False

    def sm_clock_mhz(self) -> int:
        self._check_open()
        return locked_mhz(self.uuid) or CLOCKS_MHZ[0]

    def clock_limits(self) -> ClockLimit:
        self._check_open()
        return ClockLimit.NONE

    def total_energy_j(self) -> float:
        self._check_open()
        return POWER_W * time.monotonic()

    def energy_scope(self) -> EnergyScope | None:
        self._check_open()
        return EnergyScope.GPU

    def conditions(self) -> GpuConditions | None:
        self._check_open()
        return GpuConditions(power_limit_w=POWER_W, default_power_limit_w=POWER_W)

    def close(self) -> None:
        if not self._is_closed and self._is_locked:
            self.reset_sm_clock()
        self._is_closed = True

    def _check_open(self) -> None:
        if self._is_closed:
            raise GpuError(f"{self.uuid} is closed")


class MadeUpVendor:
    """The GpuVendor of these GPUs, with one way to set clocks."""

    library = "MUL"
    lister = "mu-list"
    uuid_prefix = "MADE-UP-"
    controls: tuple[str, ...] = ("mul",)
    torch_backend = "made-up"

    def session(self) -> AbstractContextManager[object]:
        if FOLDER_VARIABLE not in os.environ:
            raise GpuNotFoundError("starting MUL: it is not here; install it")
        return nullcontext()

    def driver_version(self) -> str:
        return "7.7"

    def uuids(self) -> list[str | GpuError]:
        return list(UUIDS)

    def describe(self, index: int) -> ListedGpu:
        return ListedGpu(
            index=index,
            name=f"Made-up GPU {index}",
            uuid=UUIDS[index],
            sm_clocks_mhz=CLOCKS_MHZ,
        )

    def visible(self, environ: Mapping[str, str]) -> VisibleGpus:
        listed = environ.get("MUL_VISIBLE", "0,1")
        uuids = [UUIDS[int(index)] for index in listed.split(",")]
        return VisibleGpus(uuids=uuids, num_gpus=len(UUIDS), setting=f"MUL_VISIBLE is {listed}")

    def computing_processes(self, uuid: str) -> tuple[int, ...]:
        return ()

    def check_settings(self, settings: ClockSettings, environ: Mapping[str, str]) -> None:
        if settings.control in {"auto", "mul"} and environ.get("MUL_LEVEL", "1") != "1":
            raise ValueError("MUL_LEVEL must be 1")

    def addresses(
        self, uuid: str, settings: ClockSettings, environ: Mapping[str, str]
    ) -> list[GpuAddress]:
        return [GpuAddress(control="mul", uuid=uuid, return_range=settings.return_range)]

    def open(self, address: GpuAddress) -> GpuDevice:
        if address.uuid not in UUIDS:
            raise GpuNotFoundError(f"opening {address.uuid}: it is not here; mu-list lists all")
        return MadeUpGpu(address)

    def check_rights(self, address: GpuAddress) -> None:
        if not os.access(os.environ[FOLDER_VARIABLE], os.W_OK):
            raise GpuPermissionError("the folder cannot be written; run as its owner")

    def checks(self) -> GpuChecks:
        return MadeUpChecks()


class MadeUpChecks:
    """The GpuChecks of these GPUs."""

    no_gpus_advice = "make some up"
    numbering_advice = "correct MUL_VISIBLE"
    lock_advice = "mu-list shows clocks"
    limit_advice: Mapping[ClockLimit, str] = dict.fromkeys(
        (ClockLimit.POWER, ClockLimit.THERMAL, ClockLimit.OTHER), "see mu-list"
    )

    def check_daemons(self, environ: Mapping[str, str]) -> Iterator[CheckResult]:
        return iter(())

    def check_driver(self) -> CheckResult:
        return ok("MUL", "version 7.7")

    def parts(self) -> Mapping[str, Callable[[GpuDevice, str], CheckResult]]:
        return {"paint": lambda gpu, name: ok(name, f"{gpu.name} is green")}

    def check_control(self, name: str, address: GpuAddress | None, note: str) -> CheckResult:
        return ok(name, "through files")

    def has_chosen_clocks(self, uuid: str) -> bool:
        return locked_mhz(uuid) > 0
