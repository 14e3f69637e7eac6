"""Checks of the driver and of each GPU: clocks are read, never set or restored."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from logging.handlers import BufferingHandler
from pathlib import Path

from flyball_client.cli.doctor.machine_checks import (
    CheckResult,
    State,
    counted,
    find_readable_records,
    ok,
    problem,
    warning,
)
from flyball_client.governor.clock_controller import TOLERANCE_MHZ
from flyball_client.governor.lock_record import FoundRecord
from flyball_client.gpu import nvml_facts, open_gpu
from flyball_client.gpu._base import ClockLimit, GpuError, GpuNotSupportedError
from flyball_client.gpu.clock_settings import ClockSettings
from flyball_client.gpu.nvml import NvmlGpu, visible_gpu_uuid
from flyball_client.gpu.open_gpu import (
    DEFAULT_SOCKET,
    clock_rights,
    exists,
    open_gpu_by_uuid,
    uuid_of,
)
from flyball_client.gpu.zeusd import discover, read_energy
from flyball_client.gpu.zeusd_connection import ZeusdConnection
from flyball_profiles.stage_profile import EnergyScope

_HOW_TO_GET_IT = (
    "run the ranks as root, give their container --cap-add SYS_ADMIN, or run zeusd and set"
    " ZEUSD_SOCK_PATH"
)
# Real counters move every 20 to 100 ms.
_COUNTER_TIMEOUT_S = 1.0
_COUNTER_PAUSE_S = 0.02
_ZEUSD_TIMEOUT_S = 2.0
_VOLTA = 7  # first compute capability with locked clocks
_WITHOUT_GPU = "ranks here set no clocks; planning, the planner and emulated GPUs work without"

# Limit of the clock -> (text, advice), by severity.
_LIMITS = {
    ClockLimit.THERMAL: (
        "limited by heat",
        "check the cooling: nvidia-smi -q -d TEMPERATURE; planned clocks will be missed",
    ),
    ClockLimit.POWER: (
        "limited by power",
        "compare the limit with its default: nvidia-smi -q -d POWER; under a limit the highest"
        " clocks are missed, so profile under the same one",
    ),
    ClockLimit.OTHER: (
        "limited by the hardware",
        "see nvidia-smi -q -d PERFORMANCE; planned clocks will be missed",
    ),
}


def check_gpus(named: Sequence[str], environ: Mapping[str, str]) -> Iterator[CheckResult]:
    """Check everything that setting clocks on these GPUs needs.

    Args:
        named: Indices or UUIDs; empty: all.
        environ: Environment of the ranks.
    """
    yield _check_settings(environ)
    yield check_zeusd(environ)
    try:
        with nvml_facts.nvml_session():
            yield _check_driver()
            yield from _check_all(named, environ)
    except GpuError as error:
        yield CheckResult.of_error("NVML", error, _WITHOUT_GPU)


def _check_settings(environ: Mapping[str, str]) -> CheckResult:
    name = "settings"
    try:
        settings = ClockSettings.read(environ)
    except ValueError as error:
        return CheckResult.of_error(name, error, "correct the variable, or unset it")
    back = settings.return_range
    to = "the driver's default" if back is None else f"{back} MHz"
    return ok(name, f"clock control is {settings.control}; clocks are restored to {to}")


def check_zeusd(environ: Mapping[str, str], default_socket: Path = DEFAULT_SOCKET) -> CheckResult:
    """Check that zeusd is running, sets clocks and accepts the token.

    Args:
        environ: Environment, with ZEUSD_SOCK_PATH, ZEUSD_HOST_PORT, ZEUSD_TOKEN and
            FLYBALL_CLOCK_CONTROL, if set.
        default_socket: Socket of zeusd where the environment names none.
    """
    name = "zeusd"
    control = environ.get("FLYBALL_CLOCK_CONTROL") or "auto"
    named = environ.get("ZEUSD_SOCK_PATH") or environ.get("ZEUSD_HOST_PORT")
    if control == "nvml":
        return ok(name, "not used: FLYBALL_CLOCK_CONTROL is nvml")
    if not named and control == "auto" and not exists(default_socket):
        return ok(name, f"none: no variable names one, and {default_socket} does not exist")
    # With `auto`, NVML replaces a zeusd that cannot be used.
    state: State = "problem" if control == "zeusd" else "warning"
    try:
        connection = ZeusdConnection(
            named or str(default_socket),
            token=environ.get("ZEUSD_TOKEN") or None,
            timeout_s=_ZEUSD_TIMEOUT_S,
        )
    except ValueError as error:
        return CheckResult.of_error(
            name, error, "correct ZEUSD_SOCK_PATH, ZEUSD_HOST_PORT or ZEUSD_TOKEN", state=state
        )
    try:
        with closing(connection):
            gpus = discover(connection).gpus
            if not gpus:
                raise connection.not_zeusd("listing the GPUs of zeusd")
            # The list needs no token; a reading does.
            read_energy(connection, min(gpus), "reading a GPU's energy")
    except GpuError as error:
        return CheckResult.of_error(name, error, state=state)
    return ok(name, f"answers at {connection.endpoint} and has {counted(len(gpus), 'GPU')}")


def _check_driver() -> CheckResult:
    versions = nvml_facts.nvml_versions()
    nvml = "" if versions.nvml is None else f", NVML {versions.nvml}"
    return ok("NVML", f"driver {versions.driver}{nvml}, nvidia-ml-py {versions.binding}")


def _check_all(named: Sequence[str], environ: Mapping[str, str]) -> Iterator[CheckResult]:
    num_gpus = nvml_facts.num_gpus()
    if num_gpus == 0:
        yield problem(
            "GPUs",
            "NVML lists no GPU",
            f"give the container its GPUs (docker: --gpus all), or see the kernel's log;"
            f" {_WITHOUT_GPU}",
        )
        return
    yield _check_numbering(num_gpus, environ)
    records = find_readable_records(environ)
    for gpu_named in named or map(str, range(num_gpus)):
        yield from _check_gpu(gpu_named, environ, records)


def _check_numbering(num_gpus: int, environ: Mapping[str, str]) -> CheckResult:
    """Check that the first rank's GPU can be determined."""
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    setting = "is not set" if listed is None else f"is {listed!r}"
    try:
        visible_gpu_uuid(0, environ)
    except GpuError as error:
        return CheckResult.of_error("GPUs", error, "set CUDA_VISIBLE_DEVICES to whole GPUs")
    return ok("GPUs", f"{counted(num_gpus, 'GPU')}; CUDA_VISIBLE_DEVICES {setting}")


def _check_gpu(
    named: str, environ: Mapping[str, str], records: Sequence[FoundRecord]
) -> Iterator[CheckResult]:
    label = f"GPU {named}" if named.isdigit() else named
    try:
        uuid = uuid_of(named)
        label = f"GPU {nvml_facts.index_of(uuid)}"
        gpu = NvmlGpu.open(uuid=uuid)
    except GpuError as error:
        is_unsupported = isinstance(error, GpuNotSupportedError)
        advice = "" if is_unsupported else "ranks on the other GPUs are not affected"
        yield CheckResult.of_error(label, error, advice)
        return
    checks: dict[str, Callable[[NvmlGpu, str], CheckResult]] = {
        "model": _check_model,
        "persistence": _check_persistence,
        "control": partial(_check_control, environ=environ),
        "energy": _check_energy,
        "clock": partial(_check_clock, records=records),
    }
    with closing(gpu):
        for part, check in checks.items():
            try:
                yield check(gpu, f"{label} {part}")
            except GpuError as error:
                yield CheckResult.of_error(f"{label} {part}", error)


def _check_model(gpu: NvmlGpu, name: str) -> CheckResult:
    """Check that the GPU's clocks can be locked."""
    what = f"{gpu.name}, {gpu.uuid}"
    clocks_mhz = gpu.supported_sm_clocks_mhz()
    number = counted(len(clocks_mhz), "SM clock")
    try:
        major, minor = nvml_facts.compute_capability(gpu.uuid)
    except GpuNotSupportedError:  # the list of clocks is sufficient
        major, minor = _VOLTA, 0
    if major < _VOLTA or len(clocks_mhz) < 2:
        return problem(
            name,
            f"{what}: compute capability {major}.{minor}, {number}",
            "use a GPU of the Volta generation (7.0) or later; this one sets no clocks",
        )
    return ok(name, f"{what}: {number}, {clocks_mhz[-1]} to {clocks_mhz[0]} MHz")


def _check_persistence(gpu: NvmlGpu, name: str) -> CheckResult:
    try:
        is_persistent = nvml_facts.is_persistent(gpu.uuid)
    except GpuNotSupportedError:
        return ok(name, "this driver has no persistence mode")
    if is_persistent:
        return ok(name, "persistence mode is on")
    return warning(
        name,
        "persistence mode is off: the driver resets clocks and power limits while the GPU is not"
        " in use, and every start waits for it",
        "start nvidia-persistenced, or run nvidia-smi -pm 1 as root",
    )


def _check_control(gpu: NvmlGpu, name: str, environ: Mapping[str, str]) -> CheckResult:
    """Open the GPU as a rank does, and report the clock control in use."""
    try:
        with _warnings_of(open_gpu.__name__) as warnings:
            device = open_gpu_by_uuid(gpu.uuid, environ)
            device.close()
    except (GpuError, ValueError) as error:
        return CheckResult.of_error(name, error, "until then ranks set no clocks on this GPU")
    address = device.address
    if address is not None and address.control == "zeusd":
        return ok(name, f"through zeusd at {address.endpoint}")
    result = _check_rights(name)
    if warnings and result.state == "ok":
        advice = "NVML works; unset the variables of zeusd if it is not meant"
        return CheckResult.of_error(
            name, RuntimeError(warnings[0].getMessage()), advice, state="warning"
        )
    return result


def _check_rights(name: str) -> CheckResult:
    rights = clock_rights()
    if rights == "unknown":
        rights = "yes" if os.geteuid() == 0 else "no"
    if rights == "yes":
        return ok(name, "through NVML, with CAP_SYS_ADMIN")
    if rights == "no":
        found = "this process may not set clocks: it has no CAP_SYS_ADMIN and uses no zeusd"
        return problem(name, found, _HOW_TO_GET_IT)
    return warning(
        name,
        "CAP_SYS_ADMIN is limited to this user namespace (a rootless container?), and the driver"
        " will probably refuse",
        f"outside of the namespace: {_HOW_TO_GET_IT}",
    )


_OF_MODULE = ", and counts the whole module with its CPU and memory, as on a GH200"


def _check_energy(gpu: NvmlGpu, name: str) -> CheckResult:
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


def _check_clock(gpu: NvmlGpu, name: str, records: Sequence[FoundRecord]) -> CheckResult:
    """Compare the clock in force with the highest; NVML cannot read a lock itself."""
    highest_mhz = gpu.supported_sm_clocks_mhz()[0]
    now_mhz = gpu.sm_clock_mhz()
    limits = gpu.clock_limits()
    found = f"{now_mhz} MHz of {highest_mhz}"
    for limit, (reason, advice) in _LIMITS.items():
        if limits & limit:
            return warning(name, f"{found}, {reason}", advice)
    if any(record.uuid == gpu.uuid and record.is_live for record in records):
        return ok(name, f"{found}, set by a live rank of Flyball (see records)")
    is_low = now_mhz < highest_mhz - TOLERANCE_MHZ
    is_idle = bool(limits & ClockLimit.IDLE)
    if is_low and (nvml_facts.has_chosen_clocks(gpu.uuid) or not is_idle):
        return warning(
            name,
            f"{found}, probably locked: neither power, heat nor a live rank of Flyball explains it",
            f"if it is not intended, flyball unlock --gpu {gpu.uuid} restores a locked clock;"
            " nvidia-smi -q -d CLOCK shows application clocks",
        )
    return ok(name, f"{found}, idle: whether it is locked is unknown" if is_idle else found)


@contextmanager
def _warnings_of(logger_name: str) -> Generator[list[logging.LogRecord], None, None]:
    """Collect a logger's warnings instead of printing them."""
    handler = BufferingHandler(capacity=1000)
    handler.setLevel(logging.WARNING)
    logger = logging.getLogger(logger_name)
    was_propagating, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield handler.buffer
    finally:
        logger.removeHandler(handler)
        logger.propagate = was_propagating
