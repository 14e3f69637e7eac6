"""GPT-2, embeddings tied, in a DeepSpeed pipeline: random weights, synthetic text.

torchrun --nproc-per-node 2 examples/train_gpt2_flyball.py --tiny
"""

from __future__ import annotations

from functools import partial

import torch
from transformers import GPT2Config

import flyball_integrations.deepspeed as flyball
from emulated_gpu import emulated_gpu_on_cpu
from example_options import example_parser, parse_options
from flyball_integrations.huggingface import build_causal_lm, deepspeed_layers, next_token_loss
from pipeline_training import begin, end, pipeline_engine, train
from synthetic_data import synthetic_text

SEED = 1788
TINY = GPT2Config(
    vocab_size=256, n_embd=64, n_layer=4, n_head=4, bos_token_id=255, eos_token_id=255
)
SMALL = GPT2Config()  # GPT-2 of 124 million parameters


def main() -> None:
    """Train for the wanted steps; rank 0 prints the losses."""
    options = parse_options(example_parser(__doc__))
    config = TINY if options.tiny else SMALL
    begin(SEED)
    model = build_causal_lm(config, seed=SEED)
    # The embedding and the head share one weight: DeepSpeed keeps the copies of both stages alike.
    layers = deepspeed_layers(model, num_stages=options.stages)
    engine = pipeline_engine(
        layers,
        options,
        loss_fn=next_token_loss,
        optimizer=partial(torch.optim.AdamW, lr=3e-4),
        microbatch_size=2,
    )
    gpu = emulated_gpu_on_cpu(engine.stage_id)
    flyball.attach(engine, job_id="gpt2", gpu_type="a100", gpu=gpu)
    samples = synthetic_text(
        config.vocab_size,
        length=64 if options.tiny else 1024,
        seed=SEED + engine.grid.get_data_parallel_rank(),
    )
    train(engine, samples, num_steps=options.steps)
    flyball.detach(engine)
    end()


if __name__ == "__main__":
    main()
