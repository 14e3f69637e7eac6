"""Schedules of torch's in this process alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe, schedules

CPU = torch.device("cpu")
WIDTH = 4


@contextmanager
def world_of_one() -> Iterator[None]:
    """A process group of this process alone."""
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


def stage_of_one(index: int = 0, num_stages: int = 1) -> PipelineStage:
    """One of this process's stages."""
    return PipelineStage(nn.Linear(WIDTH, WIDTH), index, num_stages, CPU)


def schedule_of_one(
    make: Callable[..., Any] = ScheduleGPipe,
    num_microbatches: int = 2,
) -> Any:  # noqa: ANN401 - torch's
    """A schedule with one stage."""
    return make(stage_of_one(), num_microbatches, loss_fn=nn.functional.mse_loss)


def schedule_in_chunks() -> Any:  # noqa: ANN401 - torch's
    """Two chunks, whose backwards are split."""
    stages = [stage_of_one(index, 2) for index in range(2)]
    make = schedules.ScheduleInterleavedZeroBubble
    return make(stages, 2, loss_fn=nn.functional.mse_loss)


def train(schedule: Any) -> None:  # noqa: ANN401 - torch's
    """One step of the schedule."""
    batch = torch.ones(4, WIDTH)
    schedule.step(batch, target=batch)
