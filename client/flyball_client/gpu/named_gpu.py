"""GPUs that a command was given by index or UUID, opened as the environment says."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping

from flyball_client.gpu._base import GpuDevice, GpuNotFoundError
from flyball_client.gpu.nvml_facts import index_of, num_gpus, uuid_at
from flyball_client.gpu.open_gpu import open_gpu_by_uuid

_INDEX_OR_UUID = re.compile(r"[0-9]{1,4}|GPU-[0-9A-Za-z-]{1,80}")


def gpu_argument(text: str) -> str:
    """An index or a UUID, as argparse's `type`."""
    if _INDEX_OR_UUID.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a GPU's index nor its UUID; nvidia-smi -L lists both"
        )
    return text


def uuid_of(named: str) -> str:
    """UUID of the GPU that an argument names; within `nvml_session`.

    Raises:
        GpuNotFoundError: there is no such GPU.
        GpuError: it cannot be asked.
    """
    if not named.isdigit():
        index_of(named)
        return named
    num_here = num_gpus()
    if int(named) >= num_here:
        raise GpuNotFoundError(f"there is no GPU {named}; NVML counts {num_here}, from 0")
    return uuid_at(int(named))


def open_by_uuid(uuid: str, environ: Mapping[str, str]) -> GpuDevice:
    """The GPU of this UUID, its clocks set by whom the environment names.

    Raises:
        ValueError: a variable cannot be used; the text names it.
        GpuError: the GPU cannot be found or opened.
    """
    if not uuid.startswith("GPU-"):
        raise GpuNotFoundError(f"{uuid!r} is no GPU's UUID; nvidia-smi -L lists them")
    return open_gpu_by_uuid(uuid, environ)
