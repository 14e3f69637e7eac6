"""BERT with its masked-word head in a DeepSpeed pipeline: random weights, synthetic text.

torchrun --nproc-per-node 2 examples/train_bert_flyball.py --tiny
"""

from __future__ import annotations

from functools import partial

import torch
from transformers import BertConfig, BertForMaskedLM

import flyball_integrations.deepspeed as flyball
from emulated_gpu import emulated_gpu_on_cpu
from example_options import example_parser, parse_options
from pipeline_training import begin, end, pipeline_engine, train
from synthetic_data import masked_text

SEED = 1788
TINY = BertConfig(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=256,
    num_hidden_layers=4,
    num_attention_heads=4,
    tie_word_embeddings=False,
)
BASE = BertConfig(tie_word_embeddings=False)


def masked_word_loss(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross entropy of the hidden words; the label of all others is -100."""
    return torch.nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())


def main() -> None:
    """Train for the wanted steps; rank 0 prints the losses."""
    options = parse_options(example_parser(__doc__))
    config = TINY if options.tiny else BASE
    begin(SEED)
    model = BertForMaskedLM(config)
    # Without a padding mask each part takes one tensor, and the blocks look both ways.
    layers = [model.bert.embeddings, *model.bert.encoder.layer, model.cls]
    engine = pipeline_engine(
        layers,
        options,
        loss_fn=masked_word_loss,
        optimizer=partial(torch.optim.AdamW, lr=3e-4),
        microbatch_size=2,
    )
    gpu = emulated_gpu_on_cpu(engine.stage_id)
    flyball.attach(engine, job_id="bert", gpu_type="a100", gpu=gpu)
    samples = masked_text(
        config.vocab_size,
        length=64 if options.tiny else 512,
        seed=SEED + engine.grid.get_data_parallel_rank(),
    )
    train(engine, samples, num_steps=options.steps)
    flyball.detach(engine)
    end()


if __name__ == "__main__":
    main()
