"""A training script as EnvPipe's users have it, its import changed; each rank writes findings.

Its phases are those of EnvPipe's own examples, and end when all ranks run a plan.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deepspeed as stock
import torch
import torch.distributed
from torch import nn

import flyball_integrations.envpipe as deepspeed
from flyball_lab.demo.training_loop import leave_out_deepspeed_helper

_WIDTH = 8
_NUM_COMPARED_STEPS = 3
_NUM_GOVERNED_STEPS = 3
_LAYER_TIME_S = 0.005


class _SlowLinear(nn.Linear):  # type: ignore[misc]  # torch has no types here
    """Slow as on a GPU: of clocks asked for in a moment only the last is set."""

    def forward(self, sample: torch.Tensor) -> torch.Tensor:
        time.sleep(_LAYER_TIME_S)
        return super().forward(sample)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--findings", type=Path, required=True)
    args = deepspeed.add_config_arguments(parser).parse_args()

    torch.set_num_threads(1)
    leave_out_deepspeed_helper()
    deepspeed.init_distributed("gloo")
    model = _model()
    plain, *_ = stock.initialize(args, model=model, model_parameters=model.parameters())
    plain_losses = _losses(plain)

    model = _model()
    engine, *_ = deepspeed.initialize(args, model=model, model_parameters=model.parameters())
    losses = _losses(engine)
    samples = _samples()
    while True:  # EnvPipe's profiling phase
        engine.train_batch(data_iter=samples)
        if not engine.energy_profiler.is_profiling:
            break
    while True:  # EnvPipe's phase of reconfiguring
        engine.train_batch(data_iter=samples)
        if engine.execution_grid.finish_reconfigure():
            break
    governed_from = int(engine.global_steps)
    for _ in range(_NUM_GOVERNED_STEPS):
        engine.train_batch(data_iter=samples)

    history = engine.flyball_session.history
    findings = {
        "plain_losses": plain_losses,
        "losses": losses,
        "governed_from": governed_from,
        "versions": {step.step: step.plan_version for step in history},
        "num_unplanned": sum(step.num_unplanned for step in history),
    }
    rank = torch.distributed.get_rank()
    (args.findings / f"rank-{rank}.json").write_text(json.dumps(findings))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def _model() -> Any:  # noqa: ANN401 - DeepSpeed has no types
    torch.manual_seed(7)
    return deepspeed.PipelineModule(
        layers=[_SlowLinear(_WIDTH, _WIDTH) for _ in range(4)],
        num_stages=2,
        loss_fn=nn.functional.mse_loss,
        partition_method="custom",
        custom_partitions=[0, 2, 4],
    )


def _samples() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(11)
    while True:
        sample = torch.randn(2, _WIDTH, generator=generator)
        yield sample, sample.roll(1, dims=1)


def _losses(engine: Any) -> list[str]:  # noqa: ANN401 - likewise
    samples = _samples()
    return [float(engine.train_batch(data_iter=samples)).hex() for _ in range(_NUM_COMPARED_STEPS)]


if __name__ == "__main__":
    main()
