"""ResNet-50 in a DeepSpeed pipeline: random weights, synthetic images.

torchrun --nproc-per-node 2 examples/train_resnet.py --tiny
"""

from __future__ import annotations

from functools import partial

import torch
from transformers import ResNetConfig, ResNetForImageClassification

from example_options import example_parser, parse_options
from pipeline_training import begin, end, pipeline_engine, train
from synthetic_data import synthetic_images

SEED = 1788
NUM_CLASSES = 10
TINY = ResNetConfig(
    embedding_size=8,
    hidden_sizes=[8, 16, 32, 64],
    depths=[1, 1, 1, 1],
    layer_type="basic",
    num_labels=NUM_CLASSES,
)
RESNET_50 = ResNetConfig(num_labels=NUM_CLASSES)


def main() -> None:
    """Train for the wanted steps; rank 0 prints the losses."""
    options = parse_options(example_parser(__doc__))
    config = TINY if options.tiny else RESNET_50
    begin(SEED)
    model = ResNetForImageClassification(config)
    blocks = [block for stage in model.resnet.encoder.stages for block in stage.layers]
    layers = [model.resnet.embedder, *blocks, model.resnet.pooler, model.classifier]
    engine = pipeline_engine(
        layers,
        options,
        loss_fn=torch.nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.SGD, lr=1e-3, momentum=0.9),
        microbatch_size=4,
    )
    samples = synthetic_images(
        NUM_CLASSES,
        size=64 if options.tiny else 224,
        seed=SEED + engine.grid.get_data_parallel_rank(),
    )
    train(engine, samples, num_steps=options.steps)
    end()


if __name__ == "__main__":
    main()
