"""Checks of the driver and of each GPU: clocks are read, never set or restored."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial

from flyball_client.cli.doctor.machine_checks import find_readable_records
from flyball_client.governor.clock_controller import TOLERANCE_MHZ
from flyball_client.governor.lock_record import FoundRecord
from flyball_client.gpu._base import (
    ClockLimit,
    GpuAddress,
    GpuDevice,
    GpuError,
    GpuNotSupportedError,
)
from flyball_client.gpu.checks import CheckResult, counted, ok, problem, warning
from flyball_client.gpu.registry import (
    find_gpu,
    local_vendor,
    open_or_fall_back,
    read_clock_settings,
)
from flyball_client.gpu.vendor import GpuChecks, GpuVendor
from flyball_profiles.stage_profile import EnergyScope

# Real counters move every 20 to 100 ms.
_COUNTER_TIMEOUT_S = 1.0
_COUNTER_PAUSE_S = 0.02
_WITHOUT_GPU = "ranks here set no clocks; planning, the planner and emulated GPUs work without"

# Limit of the clock -> (text, end of the advice), by severity.
_LIMITS = {
    ClockLimit.THERMAL: ("limited by heat", "planned clocks will be missed"),
    ClockLimit.POWER: (
        "limited by power",
        "under a limit the highest clocks are missed, so profile under the same limit",
    ),
    ClockLimit.OTHER: ("limited by the hardware", "planned clocks will be missed"),
}


def check_gpus(named: Sequence[str], environ: Mapping[str, str]) -> Iterator[CheckResult]:
    """Check everything that setting clocks on these GPUs needs.

    Args:
        named: Indices or UUIDs; empty: all.
        environ: Environment of the ranks.
    """
    vendor = local_vendor(environ)
    checks = vendor.checks()
    yield _check_settings(environ)
    yield from checks.check_daemons(environ)
    try:
        with vendor.session():
            yield checks.check_driver()
            yield from _check_all(vendor, named, environ)
    except GpuError as error:
        yield CheckResult.of_error(vendor.library, error, _WITHOUT_GPU)


def _check_settings(environ: Mapping[str, str]) -> CheckResult:
    name = "settings"
    try:
        settings = read_clock_settings(environ)
    except ValueError as error:
        return CheckResult.of_error(name, error, "correct the variable, or unset it")
    back = settings.return_range
    to = "the driver's default" if back is None else f"{back} MHz"
    return ok(name, f"clock control is {settings.control}; clocks are restored to {to}")


def _check_all(
    vendor: GpuVendor, named: Sequence[str], environ: Mapping[str, str]
) -> Iterator[CheckResult]:
    num_gpus = len(vendor.uuids())
    if num_gpus == 0:
        yield problem(
            "GPUs",
            f"{vendor.library} lists no GPU",
            f"{vendor.checks().no_gpus_advice}; {_WITHOUT_GPU}",
        )
        return
    yield _check_numbering(vendor, environ)
    records = find_readable_records(environ)
    for gpu_named in named or map(str, range(num_gpus)):
        yield from _check_gpu(gpu_named, environ, records)


def _check_numbering(vendor: GpuVendor, environ: Mapping[str, str]) -> CheckResult:
    """Check that the first rank's GPU can be determined."""
    try:
        visible = vendor.visible(environ)
        visible.select(0)
    except GpuError as error:
        return CheckResult.of_error("GPUs", error, vendor.checks().numbering_advice)
    return ok("GPUs", f"{counted(visible.num_gpus, 'GPU')}; {visible.setting}")


def _check_gpu(
    named: str, environ: Mapping[str, str], records: Sequence[FoundRecord]
) -> Iterator[CheckResult]:
    label = f"GPU {named}" if named.isdigit() else named
    try:
        vendor, index, uuid = find_gpu(named, environ)
        label = f"GPU {index}"
        gpu = vendor.open(GpuAddress(control=vendor.controls[0], uuid=uuid))
    except GpuError as error:
        is_unsupported = isinstance(error, GpuNotSupportedError)
        advice = "" if is_unsupported else "ranks on the other GPUs are not affected"
        yield CheckResult.of_error(label, error, advice)
        return
    of_vendor = vendor.checks()
    checks: dict[str, Callable[[GpuDevice, str], CheckResult]] = {
        **of_vendor.parts(),
        "control": partial(_check_control, of_vendor=of_vendor, environ=environ),
        "energy": _check_energy,
        "conditions": _check_conditions,
        "clock": partial(_check_clock, of_vendor=of_vendor, records=records),
    }
    with closing(gpu):
        for part, check in checks.items():
            try:
                yield check(gpu, f"{label} {part}")
            except GpuError as error:
                yield CheckResult.of_error(f"{label} {part}", error)


def _check_control(
    gpu: GpuDevice, name: str, of_vendor: GpuChecks, environ: Mapping[str, str]
) -> CheckResult:
    """Open the GPU as a rank does, and report the clock control in use."""
    try:
        device, note = open_or_fall_back(gpu.uuid, environ)
        device.close()
    except (GpuError, ValueError) as error:
        return CheckResult.of_error(name, error, "until then ranks set no clocks on this GPU")
    return of_vendor.check_control(name, device.address, note)


_OF_MODULE = ", and counts the whole module with its CPU and memory, as on a GH200"


def _check_energy(gpu: GpuDevice, name: str) -> CheckResult:
    """Check that the energy counter moves; a GPU always draws power."""
    before_j = gpu.total_energy_j()
    give_up_s = time.monotonic() + _COUNTER_TIMEOUT_S
    while time.monotonic() < give_up_s:
        if gpu.total_energy_j() > before_j:
            is_module = gpu.energy_scope() == EnergyScope.MODULE
            return ok(name, f"the energy counter moves{_OF_MODULE if is_module else ''}")
        time.sleep(_COUNTER_PAUSE_S)
    return problem(
        name,
        f"the energy counter did not move within {_COUNTER_TIMEOUT_S:g} s",
        "update the driver; without the counter nothing can be measured, and plans need measured"
        " profiles",
    )


def _check_conditions(gpu: GpuDevice, name: str) -> CheckResult:
    """Compare the enforced power limit with its default."""
    conditions = gpu.conditions()
    if conditions is None:
        return ok(name, "this GPU reports no limits or settings")
    if conditions.is_limited:
        return warning(
            name,
            conditions.text,
            "the power limit is below its default: profile under this limit, since a plan from a"
            " profile under another one may not be run",
        )
    return ok(name, conditions.text)


def _check_clock(
    gpu: GpuDevice, name: str, of_vendor: GpuChecks, records: Sequence[FoundRecord]
) -> CheckResult:
    """Compare the clock in force with the highest; drivers cannot read a lock itself."""
    highest_mhz = gpu.supported_sm_clocks_mhz()[0]
    now_mhz = gpu.sm_clock_mhz()
    limits = gpu.clock_limits()
    found = f"{now_mhz} MHz of {highest_mhz}"
    for limit, (reason, effect) in _LIMITS.items():
        if limits & limit:
            advice = f"{of_vendor.limit_advice[limit]}; {effect}"
            return warning(name, f"{found}, {reason}", advice)
    if any(record.uuid == gpu.uuid and record.is_live for record in records):
        return ok(name, f"{found}, set by a live rank of Flyball (see records)")
    is_low = now_mhz < highest_mhz - TOLERANCE_MHZ
    is_idle = bool(limits & ClockLimit.IDLE)
    if is_low and (of_vendor.has_chosen_clocks(gpu.uuid) or not is_idle):
        return warning(
            name,
            f"{found}, probably locked: neither power, heat nor a live rank of Flyball explains it",
            f"if it is not intended, flyball unlock --gpu {gpu.uuid} restores a locked clock;"
            f" {of_vendor.lock_advice}",
        )
    return ok(name, f"{found}, idle: whether it is locked is unknown" if is_idle else found)
