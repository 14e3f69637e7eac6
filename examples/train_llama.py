"""Llama in a DeepSpeed pipeline: random weights, synthetic text.

torchrun --nproc-per-node 2 examples/train_llama.py --tiny
"""

from __future__ import annotations

from functools import partial

import torch
from transformers import LlamaConfig

from example_options import example_parser, parse_options
from flyball_integrations.huggingface import build_causal_lm, deepspeed_layers, next_token_loss
from pipeline_training import begin, end, pipeline_engine, train
from synthetic_data import synthetic_text

SEED = 1788
TINY = LlamaConfig(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=160,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
)
SMALL = LlamaConfig(
    hidden_size=1024,
    intermediate_size=2816,
    num_hidden_layers=16,
    num_attention_heads=16,
    num_key_value_heads=8,
)


def main() -> None:
    """Train for the wanted steps; rank 0 prints the losses."""
    options = parse_options(example_parser(__doc__))
    config = TINY if options.tiny else SMALL
    begin(SEED)
    model = build_causal_lm(config, seed=SEED)
    layers = deepspeed_layers(model, num_stages=options.stages)
    engine = pipeline_engine(
        layers,
        options,
        loss_fn=next_token_loss,
        optimizer=partial(torch.optim.AdamW, lr=3e-4),
        microbatch_size=2,
    )
    samples = synthetic_text(
        config.vocab_size,
        length=64 if options.tiny else 1024,
        seed=SEED + engine.grid.get_data_parallel_rank(),
    )
    train(engine, samples, num_steps=options.steps)
    end()


if __name__ == "__main__":
    main()
