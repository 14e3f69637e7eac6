"""ResNet-50 in a DeepSpeed pipeline: random weights, synthetic images.

torchrun --nproc-per-node 2 examples/train_resnet_flyball.py --tiny
"""

from __future__ import annotations

import deepspeed
import torch
from deepspeed.pipe import PipelineModule
from transformers import ResNetConfig, ResNetForImageClassification

import flyball_integrations.deepspeed as flyball
from emulated_gpu import emulated_gpu_on_cpu
from example_options import example_parser, parse_options
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
    deepspeed.init_distributed()
    torch.manual_seed(SEED)
    model = ResNetForImageClassification(config)
    blocks = [block for stage in model.resnet.encoder.stages for block in stage.layers]
    layers = [model.resnet.embedder, *blocks, model.resnet.pooler, model.classifier]
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
    flyball.attach(engine, job_id="resnet", gpu_type="a100", gpu=gpu)
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
