"""Llama in a DeepSpeed pipeline: random weights, synthetic text.

torchrun --nproc-per-node 2 examples/train_llama_flyball.py --tiny
"""

from __future__ import annotations

import deepspeed
import torch
from deepspeed.pipe import PipelineModule
from transformers import LlamaConfig

import flyball_integrations.deepspeed as flyball
from emulated_gpu import emulated_gpu_on_cpu
from example_options import example_parser, parse_options
from flyball_integrations.huggingface import build_causal_lm, deepspeed_layers, next_token_loss
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
    deepspeed.init_distributed()
    torch.manual_seed(SEED)
    model = build_causal_lm(config, seed=SEED)
    layers = deepspeed_layers(model, num_stages=options.stages)
    pipeline = PipelineModule(
        layers=layers,
        num_stages=options.stages,
        loss_fn=next_token_loss,
        partition_method="parameters",
    )
    engine, *_ = deepspeed.initialize(
        model=pipeline,
        optimizer=torch.optim.AdamW(pipeline.parameters(), lr=3e-4),
        config={
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": options.microbatches,
            "gradient_clipping": 1.0,
            "steps_per_print": 10**9,
        },
    )
    gpu = emulated_gpu_on_cpu(engine.stage_id)
    flyball.attach(engine, job_id="llama", gpu_type="a100", gpu=gpu)
    samples = synthetic_text(
        config.vocab_size,
        length=64 if options.tiny else 1024,
        seed=SEED + engine.grid.get_data_parallel_rank(),
    )
    for step in range(options.steps):
        loss = engine.train_batch(samples)
        if engine.global_rank == 0:
            print(f"step {step}: loss {loss.item():.9f}", flush=True)
    flyball.detach(engine)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
