"""The demo's training script: DeepSpeed as a user would write it, and one line for Flyball.

The line is `attach(...)`; the rest beside DeepSpeed is for the demo: an emulated GPU, a record
of its clocks, and an end in the same step on all ranks.
"""

from __future__ import annotations

from collections.abc import Iterator

import deepspeed
import torch
import torch.distributed
from deepspeed.pipe import PipelineModule
from deepspeed.runtime.pipe.engine import PipelineEngine
from torch import nn

from flyball_client.gpu.emulated import EmulatedGpu, EmulatedGpuSettings, EmulatedNode
from flyball_integrations.deepspeed.pipeline import attach, detach
from flyball_lab.demo.options import (
    JOB_ID,
    DemoOptions,
    demo_blocking_power_w,
    demo_profile,
)
from flyball_lab.demo.run_folder import ClockWitness, RunFolder, TrainedStep

_NAME = "deepspeed_shm_comm"


def leave_out_deepspeed_helper() -> None:
    """Keep `deepspeed.init_distributed` from compiling for half a minute; call it before."""
    deepspeed.ops.__compatible_ops__[_NAME] = False


VOCABULARY_SIZE = 96
SEQUENCE_LENGTH = 24
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


class Block(nn.Module):  # type: ignore[misc] # torch is not typed here
    """Causal self-attention and a feed-forward layer, each with its norm in front."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(_WIDTH)
        self.query_key_value = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.attention_output = nn.Linear(_WIDTH, _WIDTH)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(_WIDTH),
            nn.Linear(_WIDTH, 4 * _WIDTH),
            nn.GELU(),
            nn.Linear(4 * _WIDTH, _WIDTH),
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Shapes: (batch, sequence, width) -> the same."""
        hidden = hidden + self._attention(self.attention_norm(hidden))
        return hidden + self.feed_forward(hidden)

    def _attention(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, sequence, width = hidden.shape
        heads = [
            part.view(batch, sequence, _NUM_HEADS, -1).transpose(1, 2)
            for part in self.query_key_value(hidden).chunk(3, dim=-1)
        ]
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        return self.attention_output(mixed.transpose(1, 2).reshape(batch, sequence, width))


class Head(nn.Module):  # type: ignore[misc] # torch is not typed here
    """Vectors to scores of the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(_WIDTH)
        self.scores = nn.Linear(_WIDTH, VOCABULARY_SIZE)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Shapes: (batch, sequence, width) -> (batch, sequence, vocabulary)."""
        return self.scores(self.norm(hidden))


def language_model_layers() -> list[nn.Module]:
    """Return the whole model, randomly initialised, as layers to cut into stages."""
    return [Embedding(), *(Block() for _ in range(_NUM_BLOCKS)), Head()]


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


_SEED = 1788  # the year of Watt's governor


def train(folder: RunFolder, options: DemoOptions, *, planner_url: str) -> None:
    """Train on default clocks until a plan is in force, then `num_steps` steps and one on it."""
    engine = _pipeline_engine(options)
    gpu = EmulatedGpu(
        demo_profile(),
        engine.stage_id,
        blocking_power_w=demo_blocking_power_w(),
        settings=EmulatedGpuSettings(seed=engine.global_rank),
        node=EmulatedNode(folder.node_file),
        time_scale=options.time_scale,
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
    )
    text = synthetic_text(_SEED)
    num_planned_steps = 0
    for step in range(options.max_steps):
        witness.begin_step()
        loss = engine.train_batch(text)
        version = session.active_version
        num_planned_steps += version is not None
        if engine.global_rank == 0:
            folder.add_trained_step(TrainedStep(step=step, plan_version=version, loss=float(loss)))
        # One step more than is measured: the first on the plan is a warm-up.
        if _rank_0_decides(num_planned_steps > options.num_steps):
            break
    witness.write(folder.rank_clocks(engine.global_rank))
    detach(engine)
    gpu.close()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def _pipeline_engine(options: DemoOptions) -> PipelineEngine:
    torch.set_num_threads(1)
    torch.manual_seed(_SEED)
    leave_out_deepspeed_helper()
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


def _rank_0_decides(decision: bool) -> bool:
    """Return rank 0's decision on every rank: all must leave the training loop together."""
    decided = torch.tensor([int(decision)])
    torch.distributed.broadcast(decided, src=0)
    return bool(decided.item())
