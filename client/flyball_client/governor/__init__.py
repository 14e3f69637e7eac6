"""Governor of a rank's SM clock: a separate process that always restores it."""

from __future__ import annotations

from flyball_client.governor._base import ClockGovernor
from flyball_client.governor.in_process import InProcessGovernor
from flyball_client.governor.process_governor import DEFAULT_LEASE_S, ProcessGovernor
from flyball_client.gpu._base import GpuDevice


def make_governor(
    gpu: GpuDevice,
    rank_name: str,
    *,
    lease_s: float = DEFAULT_LEASE_S,
) -> ClockGovernor:
    """Create the governor for this GPU: a separate process, unless the GPU is emulated."""
    if gpu.address is None:
        return InProcessGovernor(gpu, rank_name)
    return ProcessGovernor(gpu.address, rank_name, lease_s=lease_s)
