"""Scenarios run by both ranks of test_huggingface_stages.py.

Each model is trained whole, as two stages of DeepSpeed and as two stages of torch, from the
same weights on the same text.
"""

from __future__ import annotations

from collections.abc import Iterator

import deepspeed
import torch
import torch.distributed
from deepspeed.pipe import PipelineModule
from tests.integration.rank_server import Findings
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from transformers import GPT2Config, LlamaConfig, PretrainedConfig

from flyball_integrations.huggingface import (
    build_causal_lm,
    deepspeed_layers,
    next_token_loss,
    stage_module,
    sum_tied_gradients,
)
from flyball_lab.demo.training_loop import leave_out_deepspeed_helper

_NUM_STAGES = 2
_NUM_MICROBATCHES = 3
_NUM_STEPS = 3
_SEED = 7
_VOCABULARY_SIZE = 48
_LEARNING_RATE = 0.5


def configs() -> dict[str, PretrainedConfig]:
    """Models without dropout, which would differ from one cut to the next."""
    return {
        "llama": LlamaConfig(
            vocab_size=_VOCABULARY_SIZE,
            hidden_size=32,
            intermediate_size=40,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
        ),
        "tied-gpt2": GPT2Config(
            vocab_size=_VOCABULARY_SIZE,
            n_embd=32,
            n_layer=4,
            n_head=4,
            bos_token_id=0,
            eos_token_id=0,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        ),
    }


def trained_whole(config: PretrainedConfig) -> Findings:
    """Losses of the uncut model, by its own loss, and its weights afterwards."""
    model = build_causal_lm(config, seed=_SEED)
    optimizer = torch.optim.SGD(model.parameters(), lr=_LEARNING_RATE)
    text = _text()
    losses = []
    for _ in range(_NUM_STEPS):
        optimizer.zero_grad()
        loss = torch.zeros(())
        for tokens, _ in (next(text) for _ in range(_NUM_MICROBATCHES)):
            part = model(tokens, labels=tokens).loss / _NUM_MICROBATCHES
            part.backward()
            loss += part.detach()
        optimizer.step()
        losses.append(loss.item())
    return {
        "losses": losses,
        "embedding": _numbers(model.get_input_embeddings().weight),
        "head": _numbers(model.get_output_embeddings().weight),
    }


def trained_by_deepspeed(config: PretrainedConfig) -> Findings:
    """The same in DeepSpeed's pipeline; each rank has the weight of its own end."""
    model = build_causal_lm(config, seed=_SEED)
    pipeline = PipelineModule(
        layers=deepspeed_layers(model, num_stages=_NUM_STAGES),
        num_stages=_NUM_STAGES,
        loss_fn=next_token_loss,
        partition_method="parameters",
    )
    engine, *_ = deepspeed.initialize(
        model=pipeline,
        optimizer=torch.optim.SGD(pipeline.parameters(), lr=_LEARNING_RATE),
        config={
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": _NUM_MICROBATCHES,
            "gradient_clipping": 0.0,
            "steps_per_print": 10**9,
        },
    )
    text = _text()
    losses = [engine.train_batch(text).item() for _ in range(_NUM_STEPS)]
    parameters = dict(pipeline.named_parameters())
    tied = [value for name, value in parameters.items() if name.startswith("tied_modules.")]
    ends = tied or [value for value in parameters.values() if value.shape[0] == _VOCABULARY_SIZE]
    return {"losses": losses, "ends": [_numbers(value) for value in ends]}


def trained_by_torch(config: PretrainedConfig) -> Findings:
    """The same in torch's 1F1B; only the last stage knows the losses."""
    rank = torch.distributed.get_rank()
    model = build_causal_lm(config, seed=_SEED)
    module = stage_module(model, stage=rank, num_stages=_NUM_STAGES)
    schedule = Schedule1F1B(
        PipelineStage(module, rank, _NUM_STAGES, torch.device("cpu")),
        _NUM_MICROBATCHES,
        loss_fn=next_token_loss,
    )
    optimizer = torch.optim.SGD(module.parameters(), lr=_LEARNING_RATE)
    ends = torch.distributed.new_group([0, _NUM_STAGES - 1])
    text = _text()
    losses = []
    for _ in range(_NUM_STEPS):
        batch = torch.cat([next(text)[0] for _ in range(_NUM_MICROBATCHES)])
        optimizer.zero_grad()
        parts: list[torch.Tensor] = []
        if rank == 0:
            schedule.step(batch)
        else:
            schedule.step(target=batch, losses=parts)
        sum_tied_gradients(module, ends)
        optimizer.step()
        losses += [torch.stack(parts).mean().item()] if parts else []
    end = module[0] if rank == 0 else module[-1]
    return {"losses": losses, "ends": [_numbers(end.weight)]}


def scenarios() -> Iterator[tuple[str, Findings]]:
    """Each model in all three ways."""
    leave_out_deepspeed_helper()
    deepspeed.init_distributed("gloo")
    for name, config in configs().items():
        yield (
            name,
            {
                "whole": trained_whole(config),
                "deepspeed": trained_by_deepspeed(config),
                "torch": trained_by_torch(config),
            },
        )


def _text() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(11)
    while True:
        tokens = torch.randint(_VOCABULARY_SIZE, (2, 12), generator=generator)
        yield tokens, tokens


def _numbers(weight: torch.Tensor) -> list[float]:
    numbers: list[float] = weight.detach().flatten().tolist()
    return numbers
