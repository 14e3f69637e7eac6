"""Schedules of torch's on emulated GPUs, for test_emulated_schedules.py.

The loop is torchtitan's: gradients are clipped by a norm that all ranks share, so that the
optimizer's step begins on all of them when the last is done, and a step's time is the
iteration's on every rank.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Literal

import torch
import torch.distributed
from tests.integration.rank_server import Findings
from tests.integration.torch_hook_scenarios import SINGLE, stage_indices
from tests.integration.trainings import BLOCKING_POWER_W, MANY_BYTES
from tests.integration.virtual_training import (
    VirtualTime,
    emulated_gpu_in,
    profile_of,
    trained_until_planned,
)
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class

from flyball_integrations.torch.pipelining import attach, detach

_WIDTH = 4
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
    rank, num_ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    indices = stage_indices(name, rank, num_ranks)
    num_chunks = len(indices)
    # DualPipeV needs as many as there are parts of the model.
    num_microbatches = 8 if name == "DualPipeV" else 4
    stages = [
        PipelineStage(nn.Linear(_WIDTH, _WIDTH), index, num_ranks * num_chunks, torch.device("cpu"))
        for index in indices
    ]
    schedule = get_schedule_class(name)(
        stages[0] if name in SINGLE else stages, num_microbatches, loss_fn=nn.functional.mse_loss
    )
    parameters = [each for stage in stages for each in stage.submod.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.01)
    profile = profile_of(_FORWARD_S, num_chunks=num_chunks, whole_first_backward=num_chunks > 1)
    job_id = f"{name}-{order}"
    session = attach(
        schedule,
        job_id=job_id,
        optimizer=optimizer,
        planner_url=os.environ["PLANNER_URL"],
        gpu=emulated_gpu_in(virtual_time, profile),
        order=order,
        free_memory_bytes=MANY_BYTES if order == "envpipe" else None,
        blocking_power_w=[BLOCKING_POWER_W],
        effort="low",
    )
    batch = torch.ones(num_microbatches, _WIDTH)
    inputs = (batch,) if any(stage.is_first for stage in stages) else ()

    def step() -> None:
        optimizer.zero_grad()
        schedule.step(*inputs, target=batch)
        virtual_time.meet()
        optimizer.step()

    return trained_until_planned(
        session, step, job_id=job_id, profile=profile, detach=lambda: detach(schedule)
    )
