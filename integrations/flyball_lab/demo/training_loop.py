"""The demo's training script: DeepSpeed as a user would write it, and one line for Flyball.

The line is `attach(...)`; the rest beside DeepSpeed is for the demo: an emulated GPU, a record
of its clocks, and an end in the same step on all ranks.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import deepspeed
import torch
import torch.distributed
from deepspeed.pipe import PipelineModule
from deepspeed.runtime.pipe.engine import PipelineEngine
from torch import nn

from flyball_client.gpu.emulated import EmulatedGpu, EmulatedGpuSettings, EmulatedNode
from flyball_integrations.deepspeed.pipeline import attach, detach, microbatches
from flyball_lab.demo.lengths import MOST_TOKENS, num_tokens, work_factor
from flyball_lab.demo.options import (
    JOB_ID,
    DemoOptions,
    demo_blocking_power_w,
    demo_profile,
)
from flyball_lab.demo.run_folder import RunFolder, TrainedStep

# Class of labels that cross entropy leaves out.
_PADDING = -100


def leave_out_deepspeed_helper() -> None:
    """Keep `deepspeed.init_distributed` from compiling for half a minute; call it before."""
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


VOCABULARY_SIZE = 96
SEQUENCE_LENGTH = MOST_TOKENS
_WIDTH = 48
_NUM_HEADS = 4
_NUM_BLOCKS = 8


class Embedding(nn.Module):  # type: ignore[misc] # torch is not typed here
    """Tokens and their positions, as vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY_SIZE, _WIDTH)
        self.positions = nn.Embedding(SEQUENCE_LENGTH, _WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Shapes: (batch, sequence) -> (batch, sequence, width)."""
        return self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))


class DemoBlock(nn.TransformerEncoderLayer):  # type: ignore[misc] # torch is not typed here
    """Causal self-attention and a feed-forward layer, each with its norm in front."""

    def __init__(self) -> None:
        super().__init__(
            _WIDTH,
            _NUM_HEADS,
            dim_feedforward=4 * _WIDTH,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Shapes: (batch, sequence, width) -> the same."""
        mask = nn.Transformer.generate_square_subsequent_mask(hidden.shape[1])
        return super().forward(hidden, src_mask=mask, is_causal=True)


def language_model_layers() -> list[nn.Module]:
    """Return the whole model, randomly initialised, as layers to cut into stages."""
    head = nn.Sequential(nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, VOCABULARY_SIZE))
    return [Embedding(), *(DemoBlock() for _ in range(_NUM_BLOCKS)), head]


def next_token_loss(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross entropy of the next token; ln(96) = 4.56 for an untrained model."""
    return nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())


def synthetic_text(seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Endless microbatches of one sequence each: counting on by a step of 1, 2 or 3."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        start = torch.randint(VOCABULARY_SIZE, (1, 1), generator=generator)
        stride = torch.randint(1, 4, (1, 1), generator=generator)
        text = (start + stride * torch.arange(SEQUENCE_LENGTH + 1)) % VOCABULARY_SIZE
        yield text[:, :-1], text[:, 1:]


def padded_text(seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Return `synthetic_text` cut to `num_tokens`, and padded: labels are left out there."""
    for number, (tokens, labels) in enumerate(synthetic_text(seed)):
        is_padding = torch.arange(SEQUENCE_LENGTH) >= num_tokens(number)
        yield tokens.masked_fill(is_padding, 0), labels.masked_fill(is_padding, _PADDING)


class ClockWitness:
    """Observer between session and device: notes the requested clock, then lets the device pad.

    The demo compares these notes with the plan, so that an applied plan is proven by the device
    and not by the session that set it. The clock in force may follow a few ms later.
    """

    def __init__(self, device: EmulatedGpu) -> None:
        self._device = device
        self._steps: list[list[tuple[str, int]]] = []

    def begin_step(self) -> None:
        """Begin the notes of the next training step."""
        self._steps.append([])

    def on_instruction_begin(self, kind: str, chunk: int = 0) -> None:
        """Note the requested clock, and begin the emulated instruction."""
        if self._steps:
            self._steps[-1].append((kind, self._device.requested_sm_clock_mhz))
        self._device.on_instruction_begin(kind, chunk)

    def on_instruction_end(self, kind: str, chunk: int = 0) -> None:
        """End the emulated instruction."""
        self._device.on_instruction_end(kind, chunk)

    def write(self, file: Path) -> None:
        """Write the notes of all steps, in order, as JSON."""
        file.write_text(json.dumps(self._steps))


_SEED = 1788  # the year of Watt's governor


def main() -> None:
    """Train on default clocks until a plan is in force, then `num_steps` steps and one on it.

    The arguments are the folder, the planner's URL and the options.
    """
    path, planner_url, values = sys.argv[1:]
    folder, options = RunFolder(Path(path)), DemoOptions(**json.loads(values))
    engine = _pipeline_engine(folder, options)
    gpu = EmulatedGpu(
        demo_profile(),
        engine.stage_id,
        blocking_power_w=demo_blocking_power_w(),
        settings=EmulatedGpuSettings(seed=engine.global_rank),
        node=EmulatedNode(folder.node_file),
        time_scale=options.time_scale,
        work=partial(_work, options.num_microbatches) if options.lengths else None,
        product="A100",
    )
    witness = ClockWitness(gpu)
    session = attach(
        engine,
        job_id=JOB_ID,
        planner_url=planner_url,
        gpu=gpu,
        observer=witness,
        p2p="eager",
        blocking_power_w=[demo_blocking_power_w()],
        announces_work=options.lengths,
    )
    text = synthetic_text(_SEED)
    if options.lengths:
        text = microbatches(
            engine, padded_text(_SEED), lengths=lambda batch: int((batch[1] != _PADDING).sum())
        )
    num_planned_steps = 0
    for step in range(options.max_steps):
        witness.begin_step()
        loss = engine.train_batch(text)
        version = session.active_version
        num_planned_steps += version is not None
        if engine.global_rank == 0:
            folder.add_trained_step(TrainedStep(step=step, plan_version=version, loss=float(loss)))
        # One step more than is measured: the first on the plan is a warm-up.
        is_over = num_planned_steps > options.num_steps
        if _rank_0_decides(folder.end_file.exists() if options.lengths else is_over):
            break
    witness.write(folder.rank_clocks(engine.global_rank))
    detach(engine)
    gpu.close()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def _pipeline_engine(folder: RunFolder, options: DemoOptions) -> PipelineEngine:
    torch.set_num_threads(1)
    torch.manual_seed(_SEED)
    leave_out_deepspeed_helper()
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder.store_file}",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    deepspeed.init_distributed("gloo")
    model = PipelineModule(
        layers=language_model_layers(),
        num_stages=torch.distributed.get_world_size(),
        loss_fn=next_token_loss,
        partition_method="uniform",
    )
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=2e-3),
        config={
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": options.num_microbatches,
            "gradient_clipping": 1.0,
            "steps_per_print": 10**9,
        },
    )
    return engine


def _work(num_microbatches: int, step: int, microbatch: int) -> float:
    """Return the factor of a microbatch's instructions."""
    return work_factor(num_tokens(step * num_microbatches + microbatch))


def _rank_0_decides(decision: bool) -> bool:
    """Return rank 0's decision on every rank: all must leave the training loop together."""
    decided = torch.tensor([int(decision)])
    torch.distributed.broadcast(decided, src=0)
    return bool(decided.item())


if __name__ == "__main__":
    main()
