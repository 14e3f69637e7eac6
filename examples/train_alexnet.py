"""AlexNet or VGG-19 in a DeepSpeed pipeline, after DeepSpeed's own tutorial: synthetic images.

torchrun --nproc-per-node 2 examples/train_alexnet.py --tiny
"""

from __future__ import annotations

from functools import partial

import torch

from example_options import example_parser, parse_options
from image_nets import alexnet_layers, vgg19_layers
from pipeline_training import begin, end, pipeline_engine, train
from synthetic_data import synthetic_images

SEED = 1138
NUM_CLASSES = 10
NETS = {"alexnet": alexnet_layers, "vgg19": vgg19_layers}


def main() -> None:
    """Train for the wanted steps; rank 0 prints the losses."""
    parser = example_parser(__doc__)
    parser.add_argument("--net", choices=NETS, default="alexnet", help="default: alexnet")
    options = parse_options(parser)
    begin(SEED)
    layers = NETS[options.net](NUM_CLASSES, narrower=16 if options.tiny else 1)
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
