"""Governor of a rank's SM clock: a separate process that restores it."""

from __future__ import annotations

import logging

from flyball_client.governor._base import ClockGovernor, NoGovernor, log_given_up
from flyball_client.governor.in_process import InProcessGovernor
from flyball_client.governor.process_governor import DEFAULT_LEASE_S, ProcessGovernor
from flyball_client.gpu._base import GpuDevice

_logger = logging.getLogger(__name__)


def make_governor(
    gpu: GpuDevice | None,
    rank_name: str,
    *,
    lease_s: float = DEFAULT_LEASE_S,
    strict: bool = False,
) -> ClockGovernor:
    """Create the governor for this GPU: a separate process, unless the GPU is emulated.

    Args:
        gpu: GPU of the rank; None: there is none, and no clock is set.
        rank_name: Job and rank, for the log.
        lease_s: Time in s without a hook after which the clock is restored until the next hook.
        strict: False: where the machine lacks what a governor needs, log that, and set no clock.

    Raises:
        ValueError: The lease is not positive.
        OSError, AttributeError: With `strict`, the machine or this Python lacks something.
    """
    if gpu is None:
        return NoGovernor("it has no GPU that can be used; its log says why")
    if gpu.address is None:
        return InProcessGovernor(gpu, rank_name)
    try:
        return ProcessGovernor(gpu.address, rank_name, lease_s=lease_s)
    except (OSError, AttributeError) as error:  # the latter: a Python built without eventfd
        if strict:
            raise
        return NoGovernor(log_given_up(_logger, rank_name, error))
