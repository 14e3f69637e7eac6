"""torchtitan's own pipeline and training step on the CPU, for test_torchtitan.py.

Its Llama, its `pipeline_llm` and its Trainer's `train_step` are the real ones, of 0.2.2 or 0.3.0.
What its modules import and a CPU run does not use is replaced: Triton's kernels, TensorBoard and
data sets; and in 0.3.0 attention, which there has kernels for GPUs only, by torch's own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.distributed
from tests.integration.rank_server import Findings
from tests.integration.trainings import emulated_gpu, numbers_of, plan_of

import flyball_integrations.torch as flyball

_UNUSED = {
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
    folder = Path(os.environ["TORCHTITAN"])
    sys.path.append(str(folder))
    is_newer = (folder / "torchtitan" / "trainer.py").exists()
    unused_modules = dict(_UNUSED)
    if not is_newer:
        unused_modules["torchtitan.models.moe.kernels"] = ("generate_permute_indices",)
    for module, names in unused_modules.items():
        unused = ModuleType(module)
        vars(unused).update(dict.fromkeys(names))
        sys.modules[module] = unused
    # It takes a machine without any GPU for one with CUDA.
    from torchtitan.distributed import parallel_dims  # noqa: PLC0415

    parallel_dims.device_type = "cpu"
    make_trainer = _newer_trainer if is_newer else _trainer
    yield "stock", _trained(make_trainer(), is_attached=False)
    yield "flyball", _trained(make_trainer(), is_attached=True)


def _trained(trainer: Any, *, is_attached: bool) -> Findings:  # noqa: ANN401 - torchtitan's Trainer
    session = None
    if is_attached:
        gpu = emulated_gpu(torch.distributed.get_rank(), 2)
        session = flyball.attach(
            trainer.pp_schedule, job_id="titan", optimizer=trainer.optimizers, gpu=gpu
        )
        num_in_front = 2 - torch.distributed.get_rank()
        session.plans.put(plan_of(num_in_front, NUM_MICROBATCHES), 1)
    batches = _batches(trainer.sequences_per_batch)
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
        flyball.detach(trainer.pp_schedule)
    return found


def _batches(num_sequences: int) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    while True:
        tokens = torch.randint(0, _VOCABULARY, (num_sequences, _SEQUENCE + 1), generator=generator)
        yield {"input": tokens[:, :-1].contiguous()}, tokens[:, 1:].contiguous()


def _trainer() -> Any:  # noqa: ANN401 - torchtitan's Trainer
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
    config.parallelism.pipeline_parallel_schedule = "1F1B"
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
    _finish(trainer, losses)
    trainer.optimizers = build_optimizers(trainer.model_parts, config.optimizer, dims)
    trainer.lr_schedulers = build_lr_schedulers(trainer.optimizers, config.lr_scheduler, 10)
    trainer.job_config, trainer.parallel_dims = config, dims
    trainer.model_args, trainer.tokenizer = arguments, None
    trainer.sequences_per_batch = NUM_MICROBATCHES
    return trainer


def _newer_trainer() -> Any:  # noqa: ANN401 - torchtitan's Trainer
    """Return the same of torchtitan 0.3.0, whose batches are microbatches."""
    from torchtitan.components.loss import CrossEntropyLoss  # noqa: PLC0415
    from torchtitan.components.optimizer import (  # noqa: PLC0415
        LRSchedulersContainer,
        default_adamw,
    )
    from torchtitan.config.configs import (  # noqa: PLC0415
        CompileConfig,
        ParallelismConfig,
        TrainingConfig,
    )
    from torchtitan.distributed import ParallelDims  # noqa: PLC0415
    from torchtitan.distributed.pipeline_parallel import pipeline_llm  # noqa: PLC0415
    from torchtitan.trainer import Trainer  # noqa: PLC0415

    parallelism = ParallelismConfig(
        pipeline_parallel_degree=2,
        pipeline_parallel_schedule="1F1B",
        pipeline_parallel_microbatch_size=1,
    )
    training = TrainingConfig(local_batch_size=NUM_MICROBATCHES, seq_len=_SEQUENCE, steps=10)
    dims = ParallelDims(dp_replicate=1, dp_shard=1, cp=1, tp=1, pp=2, ep=1, world_size=2)
    compile_config, model_config = CompileConfig(), _newer_llama()
    torch.manual_seed(7)
    model = model_config.build()
    with torch.no_grad():
        model.init_weights(buffer_device=None)
    loss_fn = CrossEntropyLoss.Config().build(compile_config=compile_config)
    losses: list[str] = []

    def noted_loss(*given: torch.Tensor, **named: torch.Tensor) -> Any:  # noqa: ANN401
        loss = loss_fn(*given, **named)
        losses.append(loss[0].item().hex())
        return loss

    trainer: Any = Trainer.__new__(Trainer)
    (
        trainer.pp_schedule,
        trainer.model_parts,
        trainer.pp_has_first_stage,
        trainer.pp_has_last_stage,
    ) = pipeline_llm(
        model,
        parallel_dims=dims,
        training=training,
        parallelism=parallelism,
        compile_config=compile_config,
        ac_config=None,
        dump_folder="",
        device=torch.device("cpu"),
        model_config=model_config,
        parallelize_fn=lambda part, **_: part,
        loss_fn=noted_loss,
    )
    _finish(trainer, losses)
    trainer.optimizers = default_adamw().build(model_parts=trainer.model_parts)
    trainer.lr_schedulers = LRSchedulersContainer.Config().build(
        optimizers=trainer.optimizers, training_steps=10
    )
    trainer.config = SimpleNamespace(training=training, parallelism=parallelism)
    trainer.model_config, trainer.parallel_dims = model_config, dims
    trainer.ntokens_seen = 0
    trainer.num_pipeline_parallel_microbatches = NUM_MICROBATCHES
    trainer.sequences_per_batch = 1
    return trainer


def _finish(trainer: Any, losses: list[str]) -> None:  # noqa: ANN401 - torchtitan's Trainer
    """Set what the trainers of both versions have."""
    trainer.losses = losses
    trainer.device, trainer.step = torch.device("cpu"), 0
    trainer.gradient_accumulation_steps = 1
    trainer.train_context = nullcontext
    trainer.checkpointer = SimpleNamespace(maybe_wait_for_staging=lambda: None)
    trainer.metrics_processor = SimpleNamespace(should_log=lambda step: False)


def _newer_llama() -> Any:  # noqa: ANN401 - the configuration of torchtitan's Llama
    from torchtitan.models import llama3  # noqa: PLC0415
    from torchtitan.models.common import (  # noqa: PLC0415
        ComplexRoPE,
        Embedding,
        Linear,
        RMSNorm,
        attention,
    )

    llama3.get_attention_config = lambda _: attention.ScaledDotProductAttention.Config()
    width, num_heads = 16, 2
    return llama3.Llama3Model.Config(
        dim=width,
        vocab_size=_VOCABULARY,
        tok_embeddings=Embedding.Config(
            num_embeddings=_VOCABULARY,
            embedding_dim=width,
            param_init=llama3._EMBEDDING_INIT,
        ),
        norm=RMSNorm.Config(normalized_shape=width, param_init=llama3._NORM_INIT),
        lm_head=Linear.Config(
            in_features=width,
            out_features=_VOCABULARY,
            param_init=llama3._output_linear_init(width),
        ),
        layers=llama3._build_llama3_layers(
            n_layers=4,
            dim=width,
            n_heads=num_heads,
            hidden_dim=2 * width,
            rope=ComplexRoPE.Config(dim=width // num_heads, max_seq_len=_SEQUENCE),
            attn_backend="sdpa",
        ),
    )
