"""Checks of the driver and of each GPU: clocks are read, never set and never given back."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from flyball_client.cli.doctor.machine_checks import CheckResult, State, find_all_records
from flyball_client.gpu import nvml_facts, open_gpu
from flyball_client.gpu._base import ClockLimit, GpuAddress, GpuError, GpuNotSupportedError
from flyball_client.gpu.clock_settings import ClockSettings
from flyball_client.gpu.nvml import NvmlGpu, visible_gpu_uuid
from flyball_client.gpu.open_gpu import DEFAULT_SOCKET, open_by_uuid, uuid_of
from flyball_client.gpu.zeusd_connection import ZeusdConnection

_PROCESS = Path("/proc/self")
_CAP_SYS_ADMIN = 21
# As /proc/PID/uid_map says where no user namespace was made.
_ALL_IDS = ["0", "0", "4294967295"]

ClockRights = Literal["yes", "no", "only in a user namespace", "unknown"]


def clock_rights(process: Path = _PROCESS) -> ClockRights:
    """CAP_SYS_ADMIN, which root has outside of containers.

    In a user namespace, as rootless containers are, it does not reach the driver.

    Args:
        process: the folder in which the kernel tells of this process.
    """
    try:
        lines = (process / "status").read_text(encoding="utf-8", errors="replace").splitlines()
        masks = [int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")]
    except (OSError, ValueError, IndexError):
        return "unknown"
    if not masks:
        return "unknown"
    if not masks[0] >> _CAP_SYS_ADMIN & 1:
        return "no"
    try:
        ids = (process / "uid_map").read_text(encoding="ascii").split()
    except (OSError, ValueError):  # a kernel without user namespaces
        return "yes"
    return "yes" if ids == _ALL_IDS else "only in a user namespace"


_HOW_TO_GET_IT = (
    "run the ranks as root, give their container --cap-add SYS_ADMIN, or run zeusd and set"
    " ZEUSD_SOCK_PATH"
)


def check_control(gpu: NvmlGpu, name: str, environ: Mapping[str, str]) -> CheckResult:
    """Open the GPU as a rank would, and see through whom."""
    try:
        with _warnings_of(open_gpu.__name__) as told:
            device = open_by_uuid(gpu.uuid, environ)
            device.close()
    except (GpuError, ValueError) as error:
        return CheckResult.of_error(name, error, "the ranks set no clock on this GPU until then")
    address = device.address
    if address is not None and address.control == "zeusd":
        return CheckResult(name=name, state="ok", found=f"through zeusd at {_where(address)}")
    result = _through_nvml(name)
    if told and result.state == "ok":
        return CheckResult.of_error(
            name,
            RuntimeError(told[0]),
            "it works; unset the variables of zeusd if it is not meant",
            state="warning",
        )
    return result


def _through_nvml(name: str) -> CheckResult:
    rights = clock_rights()
    if rights == "unknown":
        rights = "yes" if os.geteuid() == 0 else "no"
    if rights == "yes":
        return CheckResult(name=name, state="ok", found="through NVML, with CAP_SYS_ADMIN")
    if rights == "no":
        return CheckResult(
            name=name,
            state="problem",
            found="this process may not set clocks: it has no CAP_SYS_ADMIN and uses no zeusd",
            advice=_HOW_TO_GET_IT,
        )
    return CheckResult(
        name=name,
        state="warning",
        found="CAP_SYS_ADMIN counts in this user namespace only (a rootless container?), and"
        " the driver will probably refuse",
        advice=f"outside of the namespace: {_HOW_TO_GET_IT}",
    )


def _where(address: GpuAddress) -> str:
    return address.endpoint or "its default socket"


@contextmanager
def _warnings_of(logger_name: str) -> Generator[list[str], None, None]:
    """Collect a logger's warnings instead of printing them on stderr."""
    told: list[str] = []
    logger = logging.getLogger(logger_name)
    handler = _Listener(told)
    was_propagating, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield told
    finally:
        logger.removeHandler(handler)
        logger.propagate = was_propagating


class _Listener(logging.Handler):
    def __init__(self, told: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._told = told

    def emit(self, record: logging.LogRecord) -> None:
        self._told.append(record.getMessage())


# One step of the clocks that NVML offers; it rounds what it reports.
_TOLERANCE_MHZ = 15
# Real counters move every 20 to 100 ms.
_COUNTER_TIMEOUT_S = 1.0
_COUNTER_PAUSE_S = 0.02

# What holds a clock down -> (how it is told, what to do), the gravest first.
_LIMITS = {
    ClockLimit.THERMAL: (
        "held down by heat",
        "check the cooling: nvidia-smi -q -d TEMPERATURE; planned clocks will be missed",
    ),
    ClockLimit.POWER: (
        "held down by the power limit",
        "compare the limit with its default: nvidia-smi -q -d POWER; under a limit the highest"
        " clocks are missed, so profile under the same one",
    ),
    ClockLimit.OTHER: (
        "held down by the hardware",
        "see nvidia-smi -q -d PERFORMANCE; planned clocks will be missed",
    ),
}


def check_clock(gpu: NvmlGpu, name: str, *, is_ours: bool) -> CheckResult:
    """The clock in force against the highest, and what explains the difference.

    Args:
        gpu: whose clock it is.
        name: of the check.
        is_ours: a record says that Flyball set it, so it needs no other explanation.
    """
    highest_mhz = gpu.supported_sm_clocks_mhz()[0]
    now_mhz = gpu.sm_clock_mhz()
    limits = gpu.clock_limits()
    found = f"{now_mhz} MHz of {highest_mhz}"
    for limit, (reason, advice) in _LIMITS.items():
        if limits & limit:
            return CheckResult(
                name=name, state="warning", found=f"{found}, {reason}", advice=advice
            )
    is_low = now_mhz < highest_mhz - _TOLERANCE_MHZ
    is_idle = bool(limits & ClockLimit.IDLE)
    if is_ours:
        return CheckResult(name=name, state="ok", found=f"{found}, set by Flyball (see records)")
    if is_low and (nvml_facts.has_chosen_clocks(gpu.uuid) or not is_idle):
        return CheckResult(
            name=name,
            state="warning",
            found=f"{found}, held there by somebody: no record of Flyball's explains it",
            advice=f"if nobody wants it so, flyball unlock --gpu {gpu.uuid} gives a locked clock"
            " back; nvidia-smi -q -d CLOCK shows application clocks",
        )
    return CheckResult(name=name, state="ok", found=f"{found}, idle" if is_idle else found)


def check_energy(gpu: NvmlGpu, name: str) -> CheckResult:
    """Return whether the energy counter can be read and moves; a GPU always draws something."""
    before_j = gpu.total_energy_j()
    give_up_s = time.monotonic() + _COUNTER_TIMEOUT_S
    while time.monotonic() < give_up_s:
        if gpu.total_energy_j() > before_j:
            return CheckResult(name=name, state="ok", found="the energy counter moves")
        time.sleep(_COUNTER_PAUSE_S)
    return CheckResult(
        name=name,
        state="problem",
        found=f"the energy counter stood still for {_COUNTER_TIMEOUT_S:g} s",
        advice="update the driver; without it nothing can be measured, and plans need measured"
        " profiles",
    )


_TIMEOUT_S = 2.0
_NAME = "zeusd"


def check_zeusd(environ: Mapping[str, str], default_socket: Path = DEFAULT_SOCKET) -> CheckResult:
    """Return whether it is there, sets clocks and takes the token.

    Args:
        environ: with ZEUSD_SOCK_PATH, ZEUSD_HOST_PORT, ZEUSD_TOKEN, FLYBALL_CLOCK_CONTROL.
        default_socket: where it is when the environment does not say.
    """
    control = environ.get("FLYBALL_CLOCK_CONTROL") or "auto"
    named = environ.get("ZEUSD_SOCK_PATH") or environ.get("ZEUSD_HOST_PORT")
    if control == "nvml":
        return _fine("not asked: FLYBALL_CLOCK_CONTROL is nvml")
    if not named and control == "auto" and not _exists(default_socket):
        return _fine(f"none: no variable names one, and {default_socket} is not there")
    # With `auto`, NVML takes the place of a zeusd that cannot be used.
    state: State = "problem" if control == "zeusd" else "warning"
    try:
        connection = ZeusdConnection(
            named or str(default_socket),
            token=environ.get("ZEUSD_TOKEN") or None,
            timeout_s=_TIMEOUT_S,
        )
    except ValueError as error:
        return CheckResult.of_error(
            _NAME, error, "correct ZEUSD_SOCK_PATH, ZEUSD_HOST_PORT or ZEUSD_TOKEN", state=state
        )
    try:
        return _fine(_ask(connection))
    except GpuError as error:
        return CheckResult.of_error(_NAME, error, state=state)
    finally:
        connection.close()


def _ask(connection: ZeusdConnection) -> str:
    doing = "asking zeusd for its GPUs"
    answer = connection.ask(doing, "GET", "/discover")
    if answer.status != 200:
        raise connection.refusal(doing, answer)
    document: Any = answer.json()
    try:
        gpus = document.get("gpus") or document["gpu_ids"]
        first = gpus[0]["id"] if isinstance(gpus[0], dict) else gpus[0]
        query = f"gpu_ids={int(first)}"
    except (AttributeError, KeyError, IndexError, TypeError, ValueError):
        raise connection.nonsense(doing) from None
    # It tells its GPUs to everybody; a reading shows whether it takes the token.
    doing = "reading a GPU's energy"
    answer = connection.ask(doing, "GET", f"/gpu/get_cumulative_energy?{query}")
    if answer.status == 401:
        raise connection.refusal(doing, answer)
    return f"answers at {connection.endpoint} and shows {len(gpus)} GPU{'s' * (len(gpus) != 1)}"


def _fine(found: str) -> CheckResult:
    return CheckResult(name=_NAME, state="ok", found=found)


def _exists(file: Path) -> bool:
    try:
        return file.exists()
    except OSError:  # in a folder that may not be entered
        return False


_WITHOUT_GPU = "a rank here sets no clock; planning, the planner and emulated GPUs work without"
_VOLTA = 7  # of the compute capability, the first with locked clocks


def check_gpus(named: Sequence[str], environ: Mapping[str, str]) -> Iterator[CheckResult]:
    """Everything about setting clocks on these GPUs, one result after the other.

    Args:
        named: indices or UUIDs; none: all.
        environ: the environment of the ranks to be.
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
        ClockSettings.read(environ)
    except ValueError as error:
        return CheckResult.of_error(name, error, "correct the variable, or unset it")
    control = environ.get("FLYBALL_CLOCK_CONTROL") or "auto"
    returned_to = environ.get("FLYBALL_RETURN_CLOCKS_MHZ")
    to = f"to {returned_to} MHz" if returned_to else "to the driver's default"
    return CheckResult(
        name=name, state="ok", found=f"clock control is {control}; clocks are given back {to}"
    )


def _check_driver() -> CheckResult:
    versions = nvml_facts.nvml_versions()
    nvml = "" if versions.nvml is None else f", NVML {versions.nvml}"
    return CheckResult(
        name="NVML",
        state="ok",
        found=f"driver {versions.driver}{nvml}, nvidia-ml-py {versions.binding}",
    )


def _check_all(named: Sequence[str], environ: Mapping[str, str]) -> Iterator[CheckResult]:
    num_gpus = nvml_facts.num_gpus()
    if num_gpus == 0:
        yield CheckResult(
            name="GPUs",
            state="problem",
            found="NVML sees no GPU",
            advice=f"give the container its GPUs (docker: --gpus all), or see the kernel's log;"
            f" {_WITHOUT_GPU}",
        )
        return
    yield _check_numbering(num_gpus, environ)
    ours = {record.holder.uuid for record in find_all_records(environ)}
    for gpu_named in named or map(str, range(num_gpus)):
        yield from _check_gpu(gpu_named, environ, ours)


def _check_numbering(num_gpus: int, environ: Mapping[str, str]) -> CheckResult:
    """Return whether a rank knows which GPU is its own."""
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    setting = "is not set" if listed is None else f"is {listed!r}"
    try:
        visible_gpu_uuid(0, environ)
    except GpuError as error:
        return CheckResult.of_error("GPUs", error, "set CUDA_VISIBLE_DEVICES to whole GPUs")
    plural = "" if num_gpus == 1 else "s"
    return CheckResult(
        name="GPUs", state="ok", found=f"{num_gpus} GPU{plural}; CUDA_VISIBLE_DEVICES {setting}"
    )


def _check_gpu(named: str, environ: Mapping[str, str], ours: set[str]) -> Iterator[CheckResult]:
    label = f"GPU {named}" if named.isdigit() else named
    try:
        uuid = uuid_of(named)
        label = f"GPU {nvml_facts.index_of(uuid)}"
        gpu = NvmlGpu.open(uuid=uuid)
    except GpuNotSupportedError as error:
        yield CheckResult.of_error(label, error)
        return
    except GpuError as error:
        yield CheckResult.of_error(label, error, "leave this GPU out of CUDA_VISIBLE_DEVICES")
        return
    checks: dict[str, Callable[[str], CheckResult]] = {
        "model": lambda name: _check_model(gpu, name),
        "persistence": lambda name: _check_persistence(gpu, name),
        "control": lambda name: check_control(gpu, name, environ),
        "energy": lambda name: check_energy(gpu, name),
        "clock": lambda name: check_clock(gpu, name, is_ours=gpu.uuid in ours),
    }
    try:
        for part, check in checks.items():
            try:
                yield check(f"{label} {part}")
            except GpuError as error:
                yield CheckResult.of_error(f"{label} {part}", error)
    finally:
        gpu.close()


def _check_model(gpu: NvmlGpu, name: str) -> CheckResult:
    """Return whether its clocks can be locked at all."""
    what = f"{gpu.name}, {gpu.uuid}"
    clocks_mhz = gpu.supported_sm_clocks_mhz()
    try:
        major, minor = nvml_facts.compute_capability(gpu.uuid)
    except GpuNotSupportedError:  # it lists clocks; so it is believed
        major, minor = _VOLTA, 0
    if major < _VOLTA or len(clocks_mhz) < 2:
        return CheckResult(
            name=name,
            state="problem",
            found=f"{what}: compute capability {major}.{minor}, {_num(clocks_mhz)}",
            advice="use a GPU of the Volta generation (7.0) or later; this one sets no clocks",
        )
    ends = f"{clocks_mhz[-1]} to {clocks_mhz[0]} MHz"
    return CheckResult(name=name, state="ok", found=f"{what}: {_num(clocks_mhz)}, {ends}")


def _check_persistence(gpu: NvmlGpu, name: str) -> CheckResult:
    try:
        is_persistent = nvml_facts.is_persistent(gpu.uuid)
    except GpuNotSupportedError:
        return CheckResult(name=name, state="ok", found="this driver has no persistence mode")
    if is_persistent:
        return CheckResult(name=name, state="ok", found="persistence mode is on")
    return CheckResult(
        name=name,
        state="warning",
        found="persistence mode is off: the driver forgets clocks and power limits whenever"
        " nobody uses the GPU, and every start waits for it",
        advice="start nvidia-persistenced, or run nvidia-smi -pm 1 as root",
    )


def _num(clocks_mhz: Sequence[int]) -> str:
    return f"{len(clocks_mhz)} SM clock{'' if len(clocks_mhz) == 1 else 's'}"
