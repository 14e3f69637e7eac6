"""torchtitan's own pipeline and training step on the CPU, for test_torchtitan.py.

Its Llama, its `pipeline_llm` and its Trainer's `train_step` are the real ones. What its modules
import and a CPU run does not use is replaced: Triton's kernels, TensorBoard and data sets.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.distributed
from tests.integration.rank_server import Findings
from tests.integration.trainings import emulated_gpu, numbers_of, plan_of

import flyball_integrations.torch as flyball

_UNUSED = {
    "torchtitan.models.moe.kernels": ("generate_permute_indices",),
    "torch.utils.tensorboard": ("SummaryWriter",),
    "datasets": ("Dataset", "load_dataset"),
    "datasets.distributed": ("split_dataset_by_node",),
}
NUM_MICROBATCHES = 4
_NUM_STEPS = 3
_SEQUENCE = 16
_VOCABULARY = 64


def scenarios() -> Iterator[tuple[str, Findings]]:
    """The trainer's steps without Flyball, and with the line of the documentation."""
    sys.path.append(os.environ["TORCHTITAN"])
    for module, names in _UNUSED.items():
        unused = ModuleType(module)
        vars(unused).update(dict.fromkeys(names))
        sys.modules[module] = unused
    # It takes a machine without any GPU for one with CUDA.
    from torchtitan.distributed import parallel_dims  # noqa: PLC0415

    parallel_dims.device_type = "cpu"
    for schedule in ("1F1B", "GPipe"):
        yield f"{schedule} stock", _trained(schedule, is_attached=False)
        yield f"{schedule} flyball", _trained(schedule, is_attached=True)


def _trained(schedule: str, *, is_attached: bool) -> Findings:
    trainer = _trainer(schedule)
    session = None
    if is_attached:
        gpu = emulated_gpu(torch.distributed.get_rank(), 2)
        session = flyball.attach(
            trainer.pp_schedule, job_id="titan", optimizer=trainer.optimizers, gpu=gpu
        )
        if schedule == "1F1B":
            num_in_front = 2 - torch.distributed.get_rank()
            session.plans.put(plan_of(num_in_front, NUM_MICROBATCHES), 1)
    batches = _batches()
    for _ in range(_NUM_STEPS):
        trainer.train_step(batches)
        trainer.step += 1
    found: Findings = {
        # Before the first step torch runs a loss on memory that nobody has written.
        "losses": trainer.losses[1:],
        "parameters": numbers_of(iter(trainer.model_parts[0].parameters())),
    }
    if session is not None:
        found["steps"] = [(one.plan_version, one.num_unplanned) for one in session.history]
        found["ran"] = [one.kind for one in session.last_step_timings]
        flyball.detach(trainer.pp_schedule)
    return found


def _batches() -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    while True:
        tokens = torch.randint(
            0, _VOCABULARY, (NUM_MICROBATCHES, _SEQUENCE + 1), generator=generator
        )
        yield {"input": tokens[:, :-1].contiguous()}, tokens[:, 1:].contiguous()


def _trainer(schedule: str) -> Any:  # noqa: ANN401 - torchtitan's Trainer
    """Return a Trainer with all that `train_step` needs, in a pipeline of two ranks."""
    from torchtitan.components.loss import build_cross_entropy_loss  # noqa: PLC0415
    from torchtitan.components.lr_scheduler import build_lr_schedulers  # noqa: PLC0415
    from torchtitan.components.optimizer import build_optimizers  # noqa: PLC0415
    from torchtitan.config import JobConfig  # noqa: PLC0415
    from torchtitan.distributed import ParallelDims  # noqa: PLC0415
    from torchtitan.distributed.pipeline_parallel import pipeline_llm  # noqa: PLC0415
    from torchtitan.models.llama3 import Transformer, TransformerModelArgs  # noqa: PLC0415
    from torchtitan.train import Trainer  # noqa: PLC0415

    config = JobConfig()
    config.parallelism.pipeline_parallel_degree = 2
    config.parallelism.pipeline_parallel_schedule = schedule
    config.training.local_batch_size = NUM_MICROBATCHES
    config.optimizer.implementation = "for-loop"
    dims = ParallelDims(dp_replicate=1, dp_shard=1, cp=1, tp=1, pp=2, ep=1, etp=1, world_size=2)
    torch.manual_seed(7)
    arguments = TransformerModelArgs(
        dim=16, n_layers=4, n_heads=2, vocab_size=_VOCABULARY, max_seq_len=_SEQUENCE
    )
    model = Transformer(arguments)
    with torch.no_grad():
        model.init_weights()
    loss_fn = build_cross_entropy_loss(config)
    losses: list[str] = []

    def noted_loss(*given: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = loss_fn(*given)
        losses.append(loss.item().hex())
        return loss

    trainer: Any = Trainer.__new__(Trainer)
    (
        trainer.pp_schedule,
        trainer.model_parts,
        trainer.pp_has_first_stage,
        trainer.pp_has_last_stage,
    ) = pipeline_llm(
        model, dims, config, torch.device("cpu"), arguments, lambda part, *_: part, noted_loss
    )
    trainer.losses = losses
    trainer.optimizers = build_optimizers(trainer.model_parts, config.optimizer, dims)
    trainer.lr_schedulers = build_lr_schedulers(trainer.optimizers, config.lr_scheduler, 10)
    trainer.job_config, trainer.parallel_dims = config, dims
    trainer.device, trainer.step = torch.device("cpu"), 0
    trainer.gradient_accumulation_steps = 1
    trainer.train_context = nullcontext
    trainer.checkpointer = SimpleNamespace(maybe_wait_for_staging=lambda: None)
    trainer.metrics_processor = SimpleNamespace(should_log=lambda step: False)
    trainer.model_args, trainer.tokenizer = arguments, None
    return trainer
