"""A training loop without a pipeline, under DDP or FSDP2, with Flyball; GPUs, or gloo on the CPU.

torchrun --nproc-per-node 2 examples/data_parallel_loop.py --tiny
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from itertools import islice

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import flyball_integrations.data_parallel as flyball
from example_options import count, share

SEED = 1788
ROWS = 8


def build_model(device: torch.device, *, width: int, is_sharded: bool) -> nn.Module:
    """Return a stack of layers under FSDP2, or else under DDP; the same on every rank."""
    torch.manual_seed(SEED)
    layers = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(4)]
    model = nn.Sequential(*layers, nn.Linear(width, width)).to(device)
    if not is_sharded:
        return DistributedDataParallel(model)
    for layer in layers:
        fully_shard(layer)
    fully_shard(model)
    return model


def read_batches(width: int, *, differ: bool) -> Iterator[torch.Tensor]:
    """Yield batches of rows without end; where they differ, a few are much larger."""
    generator = torch.Generator().manual_seed(SEED + dist.get_rank())
    while True:
        scatter = torch.randn(1, generator=generator).item() if differ else 0.0
        yield torch.randn(round(ROWS * 2**scatter), width, generator=generator)


def train(model: nn.Module, device: torch.device, options: argparse.Namespace) -> None:
    """Train the model to repeat its input; rank 0 prints the losses."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = read_batches(options.width, differ=options.lengths)
    loader = islice(loader, options.steps * options.accumulate)
    steps: Iterable[list[torch.Tensor]] = iter(lambda: list(islice(loader, options.accumulate)), [])
    if options.lengths:
        # Rows stand for sequences of one token.
        steps = flyball.steps(
            loader, lengths=lambda batch: [1] * len(batch), accumulate=options.accumulate
        )
    for step, batches in enumerate(steps):
        with flyball.training_step(model):
            for number, batch in enumerate(batches):
                is_last = options.fsdp or number + 1 == len(batches)
                with nullcontext() if is_last else model.no_sync():
                    rows = batch.to(device)
                    loss = nn.functional.mse_loss(model(rows), rows) / len(batches)
                    loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.6f}", flush=True)


def parse_options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=count, default=20, help="default: 20")
    parser.add_argument("--accumulate", type=count, default=1, help="batches of a step; default: 1")
    parser.add_argument("--fsdp", action="store_true", help="FSDP2 (fully_shard) instead of DDP")
    parser.add_argument(
        "--lengths", action="store_true", help="batches differ, and each step is announced"
    )
    parser.add_argument("--tiny", action="store_true", help="a model small enough for any CPU")
    parser.add_argument("--job", default="data-parallel", help="default: data-parallel")
    parser.add_argument("--target", default="slowdown:5%", help="default: slowdown:5%%")
    parser.add_argument(
        "--profiling",
        choices=("given", "online"),
        default="given",
        help="given: a profile is sent to the planner; online: this training measures it;"
        " default: given",
    )
    parser.add_argument(
        "--profiling-slowdown",
        type=share,
        default=0.3,
        help="how much slower a step may be while it is measured; default: 0.3",
    )
    options = parser.parse_args()
    options.width = 64 if options.tiny else 4096
    if "RANK" not in os.environ:
        parser.error("start it with torchrun, as examples/README.md shows")
    return options


def main() -> None:
    """Train for the given number of steps."""
    options = parse_options()
    has_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if has_gpu else torch.device("cpu")
    if has_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if has_gpu else "gloo")
    model = build_model(device, width=options.width, is_sharded=options.fsdp)
    flyball.attach(
        model,
        job_id=options.job,
        target=options.target,
        profiling=options.profiling,
        profiling_slowdown=options.profiling_slowdown,
        gpu_type="a100",
        announces_work=options.lengths,
    )
    train(model, device, options)
    flyball.detach(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
