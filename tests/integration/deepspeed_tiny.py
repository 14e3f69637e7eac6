"""A model so small that DeepSpeed's steps take milliseconds, its data and emulated GPUs for it."""

from __future__ import annotations

from collections.abc import Iterator

import deepspeed
import torch
from deepspeed.pipe import PipelineModule
from deepspeed.runtime.pipe.engine import PipelineEngine
from torch import nn

from flyball_client.gpu.emulated import EmulatedGpu
from flyball_profiles.stage_profile import InstructionKind, OperatingPoint, StageProfile

SAMPLES_PER_MICROBATCH = 2
_WIDTH = 8


def tiny_engine(
    *,
    num_stages: int,
    num_microbatches: int,
    checkpointing: bool = False,
    zero_stage: int = 0,
    dropout: float = 0.0,
) -> PipelineEngine:
    """Two layers of a stage, from the same seed as all others."""
    torch.manual_seed(7)
    model = PipelineModule(
        layers=[_layer(index, dropout) for index in range(2 * num_stages)],
        num_stages=num_stages,
        loss_fn=nn.functional.mse_loss,
        partition_method="uniform",
        activation_checkpoint_interval=int(checkpointing),
    )
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
        config={
            "train_micro_batch_size_per_gpu": SAMPLES_PER_MICROBATCH,
            "gradient_accumulation_steps": num_microbatches,
            "zero_optimization": {"stage": zero_stage},
            "steps_per_print": 10**9,
        },
    )
    return engine


def samples(seed: int = 0) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Microbatches without end, each with its labels."""
    generator = torch.Generator().manual_seed(11 + seed)
    while True:
        sample = torch.randn(SAMPLES_PER_MICROBATCH, _WIDTH, generator=generator)
        yield sample, sample.roll(1, dims=1)


def loss_of_step(engine: PipelineEngine, data: Iterator[tuple[torch.Tensor, torch.Tensor]]) -> str:
    """The loss of a training step, to the last bit."""
    return float(engine.train_batch(data)).hex()


def parameters_of(engine: PipelineEngine) -> list[str]:
    """This rank's, to the last bit."""
    return [
        value.hex()
        for parameter in engine.module.parameters()
        for value in parameter.detach().flatten().tolist()
    ]


def stage_profile(num_stages: int) -> StageProfile:
    """Backwards take twice as long as forwards: one extra forward on the first of two stages."""
    points = {
        InstructionKind.FORWARD: ((1410, 0.1, 30.0), (1200, 0.11, 20.0)),
        InstructionKind.BACKWARD: ((1410, 0.2, 60.0), (1200, 0.22, 40.0)),
    }
    return StageProfile(
        points={
            (stage, kind): tuple(
                OperatingPoint(frequency_mhz=mhz, time_s=time_s, energy_j=energy_j)
                for mhz, time_s, energy_j in rows
            )
            for stage in range(num_stages)
            for kind, rows in points.items()
        },
        num_ranks_per_stage=(1,) * num_stages,
    )


def emulated_gpu(engine: PipelineEngine, *, time_scale: float = 1e-4) -> EmulatedGpu:
    """This rank's, of that profile, whose times are multiplied by `time_scale`."""
    profile = stage_profile(engine.num_stages)
    return EmulatedGpu(profile, engine.stage_id, blocking_power_w=80.0, time_scale=time_scale)


def _layer(index: int, dropout: float) -> nn.Module:
    linear = nn.Linear(_WIDTH, _WIDTH)
    # An order that drew random numbers otherwise would show.
    has_dropout = dropout > 0 and index % 2 == 1
    return nn.Sequential(linear, nn.Dropout(dropout)) if has_dropout else linear
