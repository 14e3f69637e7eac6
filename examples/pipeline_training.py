"""Parts that all DeepSpeed examples share: the engine of a pipeline, and its training loop."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import deepspeed
import torch
from deepspeed.pipe import PipelineModule

Samples = Iterator[tuple[torch.Tensor, torch.Tensor]]


def begin(seed: int) -> None:
    """Join the other ranks; all of them draw the same random weights."""
    deepspeed.init_distributed()
    torch.manual_seed(seed)


def pipeline_engine(
    layers: Sequence[object],
    options: argparse.Namespace,
    *,
    loss_fn: Callable[..., torch.Tensor],
    optimizer: Callable[[Iterator[torch.nn.Parameter]], torch.optim.Optimizer],
    microbatch_size: int,
) -> Any:  # noqa: ANN401 - DeepSpeed has no types
    """Return DeepSpeed's engine of these layers, cut into stages.

    Args:
        layers: of the model.
        options: of the command line.
        loss_fn: of the last layer's output and the labels.
        optimizer: makes the optimizer of the stage's parameters.
        microbatch_size: samples of a microbatch.
    """
    pipeline = PipelineModule(
        layers=layers,
        num_stages=options.stages,
        loss_fn=loss_fn,
        partition_method="parameters",
    )
    engine, *_ = deepspeed.initialize(
        model=pipeline,
        optimizer=optimizer(pipeline.parameters()),
        config={
            "train_micro_batch_size_per_gpu": microbatch_size,
            "gradient_accumulation_steps": options.microbatches,
            "gradient_clipping": 1.0,
            "steps_per_print": 10**9,
        },
    )
    return engine


def train(engine: Any, samples: Samples, *, num_steps: int) -> None:  # noqa: ANN401 - as above
    """Train for so many steps; rank 0 prints the losses."""
    for step in range(num_steps):
        loss = engine.train_batch(samples)
        if engine.global_rank == 0:
            print(f"step {step}: loss {loss.item():.9f}", flush=True)


def end() -> None:
    """Leave together with the other ranks."""
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
