"""Registration of a rank at the planner: its place, its GPU, and the run that it belongs to."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flyball_client.gpu._base import GpuDevice
from flyball_wire.command import flyball_version
from flyball_wire.messages import RankRegistration

# torchrun's name of a run that has none.
_UNNAMED = "none"
_RUNS = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")
_RESTART_COUNTS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
_MAX_CHARACTERS = 256
# The same in all containers of a machine, unlike its name.
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# Name and UUID in the registration of a rank without a GPU.
_NO_GPU = "none"


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Run of a job, as its launcher names it; None: not known.

    Attributes:
        run: Name of the run.
        restart_count: Number of automatic restarts of that run.
    """

    run: str | None = None
    restart_count: int | None = None


def launch_of(environ: Mapping[str, str]) -> Launch:
    """Return the run that torchrun, Slurm, PBS or LSF name; unusable values are left out."""
    runs = (environ.get(name, "") for name in _RUNS)
    usable = (run for run in runs if run not in {"", _UNNAMED} and run.isprintable())
    counts = (environ.get(name, "") for name in _RESTART_COUNTS)
    digits = (count for count in counts if count.isascii() and count.isdigit() and len(count) < 10)
    run, count = next(usable, None), next(digits, None)
    return Launch(
        run=None if run is None else run[:_MAX_CHARACTERS],
        restart_count=None if count is None else int(count),
    )


def registration_of_rank(
    gpu: GpuDevice | None,
    supported_mhz: tuple[int, ...],
    stage: int,
    layout: tuple[int, int, int],
) -> RankRegistration:
    """Return the registration of the rank of this process.

    Args:
        gpu: Its GPU; None: it has none that can be used.
        supported_mhz: SM clocks of the GPU in MHz, falling; empty: not known.
        stage: Stage that it runs.
        layout: Its ranks in data, tensor and context parallelism.
    """
    dp_rank, tp_rank, cp_rank = layout
    launch = launch_of(os.environ)
    return RankRegistration(
        stage=stage,
        host=socket.gethostname(),
        gpu_name=_NO_GPU if gpu is None else gpu.name,
        gpu_uuid=_NO_GPU if gpu is None else gpu.uuid,
        emulated=gpu is not None and gpu.is_emulated,
        client_version=flyball_version(),
        dp_rank=dp_rank,
        tp_rank=tp_rank,
        cp_rank=cp_rank,
        node=_boot_id(),
        sm_clocks_mhz=supported_mhz or None,
        run=launch.run,
        restart_count=launch.restart_count,
    )


def _boot_id() -> str | None:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None
