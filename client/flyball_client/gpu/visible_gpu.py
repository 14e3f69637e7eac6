"""Which GPU a rank's CUDA device number means, by CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flyball_client.gpu._base import GpuError, GpuNotFoundError, GpuNotSupportedError


def select_visible(
    local_rank: int, environ: Mapping[str, str], gpus: Sequence[tuple[str, str]]
) -> str:
    """UUID of the GPU that CUDA calls `cuda:local_rank`.

    As CUDA does, the list of CUDA_VISIBLE_DEVICES ends before its first entry that names no
    GPU; entries are indices, or UUIDs of which the beginning is enough.

    Args:
        local_rank: CUDA's device number, from 0.
        environ: with CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER, if set.
        gpus: (name, UUID) of each GPU in NVML's order.

    Raises:
        GpuNotFoundError: fewer GPUs are visible.
        GpuNotSupportedError: the list names MIG instances.
        GpuError: indices are used among different GPUs, and CUDA's order is not NVML's.
    """
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    entries = [str(i) for i in range(len(gpus))] if listed is None else listed.split(",")
    visible: list[str] = []
    for entry in (entry.strip() for entry in entries):
        uuid = _named_gpu(entry, environ, gpus)
        if uuid is None:
            break
        visible.append(uuid)
    if not 0 <= local_rank < len(visible):
        setting = "is not set" if listed is None else f"is {listed!r}"
        raise GpuNotFoundError(
            f"local rank {local_rank} has no GPU: {len(visible)} of {len(gpus)} are visible"
            f" (CUDA_VISIBLE_DEVICES {setting})"
        )
    return visible[local_rank]


def _named_gpu(
    entry: str, environ: Mapping[str, str], gpus: Sequence[tuple[str, str]]
) -> str | None:
    if entry.startswith("MIG-"):
        raise GpuNotSupportedError(
            "CUDA_VISIBLE_DEVICES names a MIG instance, whose clock cannot be set alone;"
            " name whole GPUs"
        )
    if entry.startswith("GPU-"):
        matching = [uuid for _, uuid in gpus if uuid.startswith(entry)]
        return matching[0] if len(matching) == 1 else None
    if not (entry.isascii() and entry.isdigit() and int(entry) < len(gpus)):
        return None
    _check_order(environ, gpus)
    return gpus[int(entry)][1]


def _check_order(environ: Mapping[str, str], gpus: Sequence[tuple[str, str]]) -> None:
    # By default CUDA puts the fastest GPU first and NVML goes by PCI bus; among equal GPUs
    # both go by PCI bus.
    is_mixed = len({name for name, _ in gpus}) > 1
    if is_mixed and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        raise GpuError(
            "the GPUs of this machine differ, so CUDA numbers them its own way;"
            " set CUDA_DEVICE_ORDER=PCI_BUS_ID"
        )
