"""Governor of a rank's SM clock: a process of its own that always restores it."""

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
    """The governor that this GPU needs: in a process of its own where it outlives this one."""
    if gpu.address is None:
        return InProcessGovernor(gpu, rank_name)
    return ProcessGovernor(gpu.address, rank_name, lease_s=lease_s)
