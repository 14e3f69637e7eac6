"""Schedules of torch's on emulated GPUs, for test_emulated_schedules.py.

The loop is torchtitan's: gradients are clipped by a norm that all ranks share, so that the
optimizer's step begins on all of them when the last is done, and a step's time is the
iteration's on every rank.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Literal

from tests.integration.rank_server import Findings
from tests.integration.torch_hook_scenarios import Training
from tests.integration.trainings import BLOCKING_POWER_W
from tests.integration.virtual_training import (
    VirtualTime,
    emulated_gpu_in,
    profile_of,
    trained_until_planned,
)

from flyball_integrations.torch.pipelining import attach, detach

# In the heaviest stage.
_FORWARD_S = 0.1


def scenarios() -> Iterator[tuple[str, Findings]]:
    """Plain, V-shaped and overlapping schedules, and 1F1B with EnvPipe's order."""
    virtual_time = VirtualTime()
    with virtual_time.in_force():
        for name in ("1F1B", "ZBVZeroBubble", "DualPipeV"):
            yield name, _trained(name, virtual_time)
        yield "envpipe", _trained("1F1B", virtual_time, order="envpipe")


def _trained(
    name: str, virtual_time: VirtualTime, *, order: Literal["own", "envpipe"] = "own"
) -> Findings:
    training = Training(name)
    num_chunks = len(training.stages)
    profile = profile_of(_FORWARD_S, num_chunks=num_chunks, whole_first_backward=num_chunks > 1)
    job_id = f"{name}-{order}"
    session = attach(
        training.schedule,
        job_id=job_id,
        optimizer=training.optimizer,
        planner_url=os.environ["PLANNER_URL"],
        gpu=emulated_gpu_in(virtual_time, profile),
        order=order,
        blocking_power_w=[BLOCKING_POWER_W],
        effort="low",
    )

    def step() -> None:
        training.optimizer.zero_grad()
        training.step_of_schedule()
        virtual_time.meet()
        training.optimizer.step()

    return trained_until_planned(
        session, step, job_id=job_id, profile=profile, detach=lambda: detach(training.schedule)
    )
