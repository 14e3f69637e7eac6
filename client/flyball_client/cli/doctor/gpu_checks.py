"""Checks of the driver and of each GPU: clocks are read, never set and never given back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from flyball_client.cli.doctor.check_result import CheckResult
from flyball_client.cli.doctor.clock_check import check_clock, check_energy
from flyball_client.cli.doctor.control_check import check_control
from flyball_client.cli.doctor.machine_checks import find_all_records
from flyball_client.cli.doctor.zeusd_check import check_zeusd
from flyball_client.gpu import nvml_facts
from flyball_client.gpu._base import GpuError, GpuNotSupportedError
from flyball_client.gpu.clock_settings import ClockSettings
from flyball_client.gpu.named_gpu import uuid_of
from flyball_client.gpu.nvml import NvmlGpu, visible_gpu_uuid

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
    """Whether a rank knows which GPU is its own."""
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
    """Whether its clocks can be locked at all."""
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
