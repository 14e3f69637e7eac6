"""AlexNet or VGG-19 in a DeepSpeed pipeline, after DeepSpeed's own tutorial: synthetic images.

torchrun --nproc-per-node 2 examples/train_alexnet_flyball.py --tiny
"""

from __future__ import annotations

import deepspeed
import torch
from deepspeed.pipe import PipelineModule

import flyball_integrations.deepspeed as flyball
from emulated_gpu import emulated_gpu_on_cpu
from example_options import example_parser, parse_options
from image_nets import alexnet_layers, vgg19_layers
from synthetic_data import synthetic_images

SEED = 1138
NUM_CLASSES = 10
NETS = {"alexnet": alexnet_layers, "vgg19": vgg19_layers}


def main() -> None:
    """Train for the wanted steps; rank 0 prints the losses."""
    parser = example_parser(__doc__)
    parser.add_argument("--net", choices=NETS, default="alexnet", help="default: alexnet")
    options = parse_options(parser)
    deepspeed.init_distributed()
    torch.manual_seed(SEED)
    layers = NETS[options.net](NUM_CLASSES, narrower=16 if options.tiny else 1)
    pipeline = PipelineModule(
        layers=layers,
        num_stages=options.stages,
        loss_fn=torch.nn.CrossEntropyLoss(),
        partition_method="parameters",
    )
    engine, *_ = deepspeed.initialize(
        model=pipeline,
        optimizer=torch.optim.SGD(pipeline.parameters(), lr=1e-3, momentum=0.9),
        config={
            "train_micro_batch_size_per_gpu": 4,
            "gradient_accumulation_steps": options.microbatches,
            "gradient_clipping": 1.0,
            "steps_per_print": 10**9,
        },
    )
    gpu = emulated_gpu_on_cpu(engine.stage_id)
    flyball.attach(engine, job_id="alexnet", gpu_type="a100", gpu=gpu)
    samples = synthetic_images(
        NUM_CLASSES,
        size=64 if options.tiny else 224,
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
