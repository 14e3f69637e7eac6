"""Opening of the GPU whose clock changes are measured, with the checks that come first."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress

from flyball_client.gpu._base import GPU_VARIABLE, GpuDevice, GpuError
from flyball_client.gpu.emulated import EmulatedGpuSettings
from flyball_client.gpu.emulated.choice import EmulatedChoice
from flyball_client.gpu.registry import check_rights, local_vendor, open_local_gpu, vendor_of
from flyball_client.profiling.transitions.bench import EmulatedLoops, LoopProcess, TransitionBench


@contextmanager
def opened_bench(device: int, environ: Mapping[str, str]) -> Generator[TransitionBench, None, None]:
    """Check that a GPU can be measured, and open it for a `with` block; its load is not started.

    Args:
        device: CUDA's number of the GPU.
        environ: Environment; `FLYBALL_GPU` chooses an emulated GPU, in virtual time.

    Raises:
        GpuError: The GPU cannot be opened, its clock cannot be set, or another process computes on
            it.
        ValueError: A variable cannot be used.
    """
    text = environ.get(GPU_VARIABLE)
    if text:
        yield _emulated(EmulatedChoice.parse(text))
        return
    with ExitStack() as stack:
        gpu = _open(device, environ, stack)
        if pids := _computing(gpu):
            raise GpuError(
                f"process {', '.join(map(str, pids))} computes on {gpu.name} ({gpu.uuid}); measure"
                " once it has ended, or choose another GPU with --device"
            )
        if gpu.address is not None:
            check_rights(gpu.address)
        yield TransitionBench(gpu, LoopProcess(device), other=_another(gpu, device, environ, stack))


def check_alone(gpu: GpuDevice) -> None:
    """Raise GpuError if another process than the load computes on the GPU, as the load does."""
    if gpu.is_emulated:
        return
    # Processes of other containers have other numbers there, so they are counted.
    pids = _computing(gpu)
    if len(pids) > 1:
        raise GpuError(
            f"another process began to compute on {gpu.name} ({gpu.uuid}) during the measurement,"
            f" which is void: one of {', '.join(map(str, pids))}"
        )


def _emulated(choice: EmulatedChoice) -> TransitionBench:
    loops = EmulatedLoops(
        choice.read_profile(),
        EmulatedGpuSettings(power_limit_w=choice.power_limit_w),
        product=f"GPU of {choice.profile.name}",
    )
    return TransitionBench(loops.gpu, loops, other=loops.other, sleep=loops.sleep)


def _open(device: int, environ: Mapping[str, str], stack: ExitStack) -> GpuDevice:
    gpu = open_local_gpu(device, environ)
    stack.callback(_close, gpu)
    return gpu


def _close(gpu: GpuDevice) -> None:
    with suppress(GpuError):  # the governor has restored the clock
        gpu.close()


def _another(
    gpu: GpuDevice, device: int, environ: Mapping[str, str], stack: ExitStack
) -> GpuDevice | None:
    """Open another free GPU of the same name; None: there is none."""
    for number in range(len(local_vendor(environ).visible(environ).uuids)):
        if number == device:
            continue
        with suppress(GpuError):
            other = _open(number, environ, stack)
            if other.name == gpu.name and not _computing(other):
                return other
    return None


def _computing(gpu: GpuDevice) -> tuple[int, ...]:
    return vendor_of(gpu.uuid).computing_processes(gpu.uuid)
