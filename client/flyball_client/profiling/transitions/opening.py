"""Opening of the GPUs whose clock changes are measured, with the checks that come first."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass

from flyball_client.gpu._base import (
    GPU_VARIABLE,
    GpuDevice,
    GpuError,
    GpuNotFoundError,
    GpuPermissionError,
)
from flyball_client.gpu.emulated import EmulatedGpuSettings
from flyball_client.gpu.emulated_choice import EmulatedChoice
from flyball_client.gpu.nvml import num_visible_gpus
from flyball_client.gpu.nvml_facts import computing_processes, driver_version, nvml_session
from flyball_client.gpu.open_gpu import may_set_clocks, open_local_gpu
from flyball_client.profiling.transitions._base import TransitionBench
from flyball_client.profiling.transitions.emulated_bench import EmulatedBench
from flyball_client.profiling.transitions.gpu_bench import GpuBench
from flyball_client.profiling.transitions.loop_process import LoopProcess

_NUM_EMULATED = 4


class GpuBusyError(GpuError):
    """Another process computes on the GPU."""


@dataclass(frozen=True, kw_only=True)
class OpenedGpus:
    """GPUs that can be measured.

    Attributes:
        name: Name of their product.
        origin: The same with the driver's version, for a table's source.
        is_emulated: True: they are emulated, and the measurement runs in virtual time.
        num_gpus: Number of them.
        supported_mhz: SM clocks in MHz, falling.
        governed: Context manager of the bench, which restores the clocks.
    """

    name: str
    origin: str
    is_emulated: bool
    num_gpus: int
    supported_mhz: tuple[int, ...]
    governed: AbstractContextManager[TransitionBench]


@contextmanager
def opened_gpus(
    devices: Sequence[int] | None,
    environ: Mapping[str, str],
    *,
    stage: int = 0,
    is_coarse: bool = False,
) -> Generator[OpenedGpus, None, None]:
    """Check that GPUs can be measured, and open them for a `with` block.

    Args:
        devices: CUDA's numbers; None: all that CUDA sees, or four emulated ones.
        environ: Environment; `FLYBALL_GPU` chooses emulated GPUs.
        stage: Emulated: stage of the profile.
        is_coarse: True: without a kernel of our own.

    Raises:
        GpuBusyError: Another process computes on a GPU, or began to meanwhile.
        GpuError: A GPU cannot be opened, or its clock cannot be set.
        ValueError: A variable cannot be used.
    """
    text = environ.get(GPU_VARIABLE)
    if text:
        yield _emulated(EmulatedChoice.parse(text), devices, stage)
        return
    if devices is None:
        devices = range(num_visible_gpus(environ))
    if not devices:
        raise GpuNotFoundError(
            f"CUDA sees no GPU; {GPU_VARIABLE}=emulated:PROFILE.csv measures emulated ones"
        )
    with ExitStack() as stack:
        gpus = [open_local_gpu(device, environ) for device in devices]
        for gpu in gpus:
            stack.callback(_close, gpu)
        _check(gpus)
        yield _real(gpus, devices, is_coarse=is_coarse)


def _emulated(choice: EmulatedChoice, devices: Sequence[int] | None, stage: int) -> OpenedGpus:
    profile = choice.read_profile()
    if stage >= profile.num_stages:
        raise ValueError(
            f"{GPU_VARIABLE}: {choice.profile}: no stage {stage}; it has 0 to"
            f" {profile.num_stages - 1}"
        )
    bench = EmulatedBench(
        profile,
        stage,
        num_gpus=_NUM_EMULATED if devices is None else len(devices),
        blocking_power_w=choice.waiting_power_w(),
        settings=EmulatedGpuSettings(power_limit_w=choice.power_limit_w),
    )
    name = f"emulated GPU of {choice.profile.name}"
    return OpenedGpus(
        name=name,
        origin=name,
        is_emulated=True,
        num_gpus=bench.num_gpus,
        supported_mhz=bench.gpus[0].supported_sm_clocks_mhz(),
        governed=bench.governed(),
    )


def _real(gpus: Sequence[GpuDevice], devices: Sequence[int], *, is_coarse: bool) -> OpenedGpus:
    bench = GpuBench(gpus, [LoopProcess(device, is_coarse=is_coarse) for device in devices])
    with nvml_session():
        driver = driver_version()
    return OpenedGpus(
        name=gpus[0].name,
        origin=f"{gpus[0].name}, driver {driver}",
        is_emulated=False,
        num_gpus=len(gpus),
        supported_mhz=gpus[0].supported_sm_clocks_mhz(),
        governed=_alone(bench, gpus),
    )


@contextmanager
def _alone(bench: GpuBench, gpus: Sequence[GpuDevice]) -> Generator[GpuBench, None, None]:
    """Yield the bench; raise GpuBusyError at the end if another process began to compute."""
    with bench.governed():
        yield bench
        # Processes of other containers have other numbers there, so they are counted.
        for gpu, pids in _computing(gpus):
            if len(pids) > 1:
                raise GpuBusyError(
                    f"another process began to compute on {gpu.name} ({gpu.uuid}) during the"
                    f" measurement, which is void: one of {', '.join(map(str, pids))}"
                )


def _check(gpus: Sequence[GpuDevice]) -> None:
    others = [gpu for gpu in gpus if gpu.name != gpus[0].name]
    if others:
        raise GpuError(
            f"{gpus[0].name} and {others[0].name} differ; choose equal GPUs with --devices"
        )
    for gpu, pids in _computing(gpus):
        if pids:
            listed = ", ".join(map(str, pids))
            raise GpuBusyError(
                f"process {listed} computes on {gpu.name} ({gpu.uuid}); measure once it has ended,"
                " or choose other GPUs with --devices"
            )
    for gpu in gpus:
        if gpu.address is not None and gpu.address.control == "nvml" and not may_set_clocks():
            raise GpuPermissionError(
                "this process has no right to set clocks; run as root, give it CAP_SYS_ADMIN, or"
                " use zeusd"
            )


def _computing(gpus: Sequence[GpuDevice]) -> list[tuple[GpuDevice, tuple[int, ...]]]:
    with nvml_session():
        return [(gpu, computing_processes(gpu.uuid)) for gpu in gpus]


def _close(gpu: GpuDevice) -> None:
    # The governor has restored the clock.
    with suppress(GpuError):
        gpu.close()
