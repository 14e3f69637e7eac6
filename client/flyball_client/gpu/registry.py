"""Registry of GPU vendors, and the opening of GPUs: of a rank, by UUID, or by an address.

`FLYBALL_CLOCK_CONTROL` selects the way of setting clocks.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import re
import time
from collections.abc import Callable, Mapping

from flyball_client.gpu._base import (
    GPU_VARIABLE,
    GpuAddress,
    GpuDevice,
    GpuError,
    GpuNotFoundError,
    GpuNotSupportedError,
    GpuPermissionError,
    SmClockRange,
)
from flyball_client.gpu.vendor import ClockSettings, GpuVendor

_logger = logging.getLogger(__name__)

_OPEN_TIMEOUT_S = 2.0
_OPEN_PAUSE_S = 0.1
_LASTING_ERRORS = (GpuNotFoundError, GpuNotSupportedError, GpuPermissionError)


def _nvidia() -> GpuVendor:
    from flyball_client.gpu.nvml.vendor import NvidiaVendor  # noqa: PLC0415 - loads pynvml

    return NvidiaVendor()


VENDORS: dict[str, Callable[[], GpuVendor]] = {"nvidia": _nvidia}
"""Vendors of real GPUs; the first is the default on a machine without GPUs."""


def vendor_of(uuid: str) -> GpuVendor:
    """Return the vendor of the GPU with this UUID; the first vendor if it is nobody's."""
    vendors = _vendors()
    return next((vendor for vendor in vendors if uuid.startswith(vendor.uuid_prefix)), vendors[0])


def local_vendor(environ: Mapping[str, str]) -> GpuVendor:
    """Return the vendor of this machine's GPUs: of FLYBALL_CLOCK_CONTROL, else with a driver."""
    vendors = _vendors()
    chosen = [each for each in vendors if _control(environ) in each.controls] or vendors
    if len(chosen) > 1:
        for vendor in chosen:
            with contextlib.suppress(GpuNotFoundError), vendor.session():
                return vendor
    return chosen[0]


def _vendors() -> list[GpuVendor]:
    return [make() for make in VENDORS.values()]


def _control(environ: Mapping[str, str]) -> str:
    return environ.get("FLYBALL_CLOCK_CONTROL") or "auto"


def read_clock_settings(environ: Mapping[str, str]) -> ClockSettings:
    """Read the settings, and check those of the vendors; an empty variable is not set.

    Raises:
        ValueError: A variable cannot be used; the text names it.
    """
    control, vendors = _control(environ), _vendors()
    controls = ["auto", *(name for vendor in vendors for name in vendor.controls)]
    if control not in controls:
        listed = f"{', '.join(controls[:-1])} or {controls[-1]}"
        raise ValueError(f"FLYBALL_CLOCK_CONTROL must be {listed}, not {control!r}")
    range_text = environ.get("FLYBALL_RETURN_CLOCKS_MHZ")
    try:
        return_range = SmClockRange.parse(range_text) if range_text else None
    except ValueError as error:
        raise ValueError(f"FLYBALL_RETURN_CLOCKS_MHZ {error}") from None
    settings = ClockSettings(control=control, return_range=return_range)
    for vendor in vendors:
        vendor.check_settings(settings, environ)
    return settings


def open_gpu(address: GpuAddress) -> GpuDevice:
    """Open the GPU at this address.

    Raises:
        ValueError: The address is incomplete.
        GpuError: The GPU cannot be opened.
    """
    return _vendor_at(address).open(address)


def check_rights(address: GpuAddress) -> None:
    """Raise GpuPermissionError if this process surely cannot set clocks at this address."""
    _vendor_at(address).check_rights(address)


def _vendor_at(address: GpuAddress) -> GpuVendor:
    # Entries are made one by one: a governor loads its own vendor's library alone.
    for make in VENDORS.values():
        vendor = make()
        if address.control in vendor.controls:
            return vendor
    raise ValueError(f"no vendor sets clocks through {address.control!r}")


def open_local_gpu(number: int, environ: Mapping[str, str]) -> GpuDevice:
    """Open the GPU that the framework calls `cuda:number`.

    Args:
        number: The framework's device number in this process.
        environ: As for `open_gpu_by_uuid`, with CUDA_VISIBLE_DEVICES, if set.

    Raises:
        ValueError: A variable cannot be used; the text names it.
        GpuError: The GPU cannot be found or opened.
    """
    read_clock_settings(environ)  # an invalid variable takes precedence over a missing GPU
    return open_gpu_by_uuid(local_vendor(environ).visible(environ).select(number), environ)


def open_rank_gpu(
    environ: Mapping[str, str],
    *,
    uuid: str | None,
    local_rank: int | None,
    stage: int | None = None,
    dp_rank: int = 0,
    num_chunks: int = 1,
    blocking_power_w: float | None = None,
) -> GpuDevice:
    """Open a rank's GPU; a driver that fails for a moment is waited for.

    With `FLYBALL_GPU=emulated:PROFILE.csv` it is emulated. Arguments are those of
    `RankSettings.open_gpu`; `local_rank` None: not known.

    Raises:
        ValueError: A variable cannot be used; the text names it.
        GpuError: The GPU cannot be found or opened.
    """
    if environ.get(GPU_VARIABLE):
        # Imported here, since ranks of real GPUs do not need it.
        from flyball_client.gpu.emulated.choice import EmulatedChoice  # noqa: PLC0415

        rank = environ.get("RANK", "")
        return EmulatedChoice.parse(environ[GPU_VARIABLE]).open(
            stage=stage,
            seed=int(rank) if rank.isascii() and rank.isdigit() else local_rank or 0,
            dp_rank=dp_rank,
            num_chunks=num_chunks,
            blocking_power_w=blocking_power_w,
        )
    return open_real_rank_gpu(environ, uuid=uuid, local_rank=local_rank)


def open_real_rank_gpu(
    environ: Mapping[str, str], *, uuid: str | None, local_rank: int | None
) -> GpuDevice:
    """Open a rank's GPU as `open_rank_gpu`, never an emulated one."""
    read_clock_settings(environ)
    give_up_s = time.monotonic() + _OPEN_TIMEOUT_S
    while True:
        try:
            found = uuid or local_vendor(environ).visible(environ).select_for_rank(local_rank)
            return open_gpu_by_uuid(found, environ)
        except _LASTING_ERRORS:
            raise
        except GpuError:
            # As where all ranks of a node start at once.
            if time.monotonic() > give_up_s:
                raise
        time.sleep(_OPEN_PAUSE_S)


def open_gpu_by_uuid(uuid: str, environ: Mapping[str, str]) -> GpuDevice:
    """Open the GPU with this UUID, with the clock control that the environment selects.

    With `auto`, a control that cannot be used is replaced by the next, with one warning.

    Args:
        uuid: UUID, `GPU-...`.
        environ: Environment, with FLYBALL_CLOCK_CONTROL, FLYBALL_RETURN_CLOCKS_MHZ, and
            ZEUSD_SOCK_PATH, ZEUSD_HOST_PORT and ZEUSD_TOKEN, if set.

    Raises:
        ValueError: A variable cannot be used; the text names it.
        GpuError: The GPU cannot be found or opened.
    """
    gpu, note = open_or_fall_back(uuid, environ)
    if note:
        _logger.warning("%s", note)
    return gpu


def open_or_fall_back(uuid: str, environ: Mapping[str, str]) -> tuple[GpuDevice, str]:
    """Open a GPU as `open_gpu_by_uuid`, and return the warning instead; empty: none."""
    settings, vendor = read_clock_settings(environ), vendor_of(uuid)
    if settings.control not in ("auto", *vendor.controls):
        raise ValueError(f"FLYBALL_CLOCK_CONTROL: {settings.control} does not set clocks of {uuid}")
    *preferred, last = vendor.addresses(uuid, settings, environ)
    gpu, note = None, ""
    for address in preferred:
        try:
            gpu = vendor.open(address)
            break
        except GpuError as error:
            note = f"clocks are set through {vendor.library}, not {address.control}: {error}"
    gpu = vendor.open(last) if gpu is None else gpu
    try:
        _check_return_range(gpu, settings.return_range)
    except BaseException:
        gpu.close()
        raise
    return gpu, note


def _check_return_range(gpu: GpuDevice, return_range: SmClockRange | None) -> None:
    """Check the range before it is needed."""
    if return_range is None:
        return
    try:
        clocks_mhz = gpu.supported_sm_clocks_mhz()
    except GpuNotSupportedError:  # no clock will be set or restored
        return
    if return_range.lowest_mhz < clocks_mhz[-1] or return_range.highest_mhz > clocks_mhz[0]:
        raise ValueError(
            f"FLYBALL_RETURN_CLOCKS_MHZ must lie within {clocks_mhz[-1]}:{clocks_mhz[0]}, which"
            f" {gpu.uuid} supports, not {return_range}"
        )


def reset_clock(uuid: str, environ: Mapping[str, str]) -> None:
    """Restore the clock of a GPU, locked or not.

    Raises:
        ValueError: A variable cannot be used; the text names it.
        GpuError: It cannot be restored.
    """
    gpu = open_gpu_by_uuid(uuid, environ)
    try:
        gpu.reset_sm_clock()
    finally:
        with contextlib.suppress(GpuError):
            gpu.close()


def gpu_argument(text: str) -> str:
    """Check an index or a UUID; argparse's `type`."""
    vendors = _vendors()
    prefixes = "|".join(re.escape(vendor.uuid_prefix) for vendor in vendors)
    if re.fullmatch(rf"[0-9]{{1,4}}|(?:{prefixes})[0-9A-Za-z-]{{1,80}}", text) is None:
        listers = " or ".join(vendor.lister for vendor in vendors)
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a GPU's index nor its UUID; {listers} lists both"
        )
    return text


def find_gpu(named: str, environ: Mapping[str, str]) -> tuple[GpuVendor, int, str]:
    """Return vendor, index and UUID of the GPU with this index or UUID.

    Raises:
        GpuNotFoundError: There is no such GPU.
        GpuError: It cannot be read.
    """
    vendor = local_vendor(environ) if named.isdigit() else vendor_of(named)
    uuids = vendor.uuids()
    if not named.isdigit():
        if named not in uuids:
            raise GpuNotFoundError(f"opening {named}: Not Found; {vendor.lister} lists the GPUs")
        return vendor, uuids.index(named), named
    index = int(named)
    if index >= len(uuids):
        raise GpuNotFoundError(
            f"there is no GPU {index}; {vendor.library} counts {len(uuids)}, from 0"
        )
    found = uuids[index]
    if isinstance(found, GpuError):
        raise found
    return vendor, index, found


def uuid_of_framework(uuid: object, backend: str) -> str | None:
    """Return the UUID of a GPU that torch calls by this one; None: no vendor has such GPUs.

    Args:
        uuid: UUID in the properties of torch's device.
        backend: Build of torch, `cuda` or `hip`.
    """
    prefixes = (vendor.uuid_prefix for vendor in _vendors() if vendor.torch_backend == backend)
    prefix = next(prefixes, None)
    return None if prefix is None else f"{prefix}{uuid}"
