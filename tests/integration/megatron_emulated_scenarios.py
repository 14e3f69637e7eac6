"""Both of Megatron's schedules on emulated GPUs, for test_emulated_schedules.py."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Literal

from tests.integration.megatron_cpu import Training, cuda_is_cpu
from tests.integration.rank_server import Findings
from tests.integration.trainings import BLOCKING_POWER_W
from tests.integration.virtual_training import (
    VirtualTime,
    emulated_gpu_in,
    profile_of,
    trained_until_planned,
)

from flyball_integrations.megatron.pipeline import attach, detach, training_step

_NUM_MICROBATCHES = 6
# In the heaviest stage.
_FORWARD_S = 0.1


def scenarios() -> Iterator[tuple[str, Findings]]:
    """1F1B hooked by timers; interleaved hooked by a patch, with overlapped sends."""
    virtual_time = VirtualTime()
    with cuda_is_cpu(), virtual_time.in_force():
        yield "1f1b", _trained(virtual_time, num_chunks=1, hooks="timers")
        yield "interleaved", _trained(virtual_time, num_chunks=2, hooks="patch")


def _trained(
    virtual_time: VirtualTime, *, num_chunks: int, hooks: Literal["patch", "timers"]
) -> Findings:
    training = Training(
        num_microbatches=_NUM_MICROBATCHES,
        num_chunks=num_chunks,
        overlap_p2p=num_chunks > 1,
        overlap_warmup=num_chunks > 1,
    )
    job_id = f"megatron-{num_chunks}"
    profile = profile_of(_FORWARD_S, num_chunks=num_chunks)
    session = attach(
        training.config,
        job_id=job_id,
        num_microbatches=_NUM_MICROBATCHES,
        hooks=hooks,
        planner_url=os.environ["PLANNER_URL"],
        gpu=emulated_gpu_in(virtual_time, profile),
        blocking_power_w=[BLOCKING_POWER_W],
        effort="low",
    )

    def step() -> None:
        with training_step():
            training.run()
            virtual_time.meet()

    return trained_until_planned(session, step, job_id=job_id, profile=profile, detach=detach)
