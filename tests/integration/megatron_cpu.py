"""Megatron's real schedules on the CPU over gloo: a shim for CUDA's names, and a small model.

The shim turns the device `cuda` into `cpu` wherever torch is asked for it, and makes
`torch.cuda.current_device` and `synchronize` harmless. Nothing of Megatron is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed
from megatron.core import parallel_state
from megatron.core.enums import ModelType
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import nn
from torch.overrides import TorchFunctionMode

WIDTH = 8
SEQUENCE_LENGTH = 3
MICROBATCH_SIZE = 2

ForwardBackward = Callable[..., list[dict[str, Any]]]


class _CudaIsCpu(TorchFunctionMode):  # type: ignore[misc]  # torch is not typed here
    def __torch_function__(
        self,
        function: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        given = dict(kwargs or {})
        if str(given.get("device", "")).startswith("cuda"):
            given["device"] = "cpu"
        return function(*args, **given)


@contextmanager
def cuda_is_cpu() -> Iterator[None]:
    """While it lasts, what Megatron puts on its GPU is on the CPU."""
    current_device, synchronize = torch.cuda.current_device, torch.cuda.synchronize
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.synchronize = lambda device=None: None
    try:
        with _CudaIsCpu():
            yield
    finally:
        torch.cuda.current_device, torch.cuda.synchronize = current_device, synchronize


class Chunk(nn.Module):  # type: ignore[misc]  # torch is not typed here
    """One layer of the model, with what Megatron's schedules ask of a model chunk."""

    def __init__(self, config: TransformerConfig, virtual_stage: int) -> None:
        super().__init__()
        self.config = config
        self.model_type = ModelType.encoder_or_decoder
        torch.manual_seed(100 + virtual_stage)
        self.layer = nn.Linear(WIDTH, WIDTH)
        self._input: torch.Tensor | None = None

    def set_input_tensor(self, tensors: list[torch.Tensor | None]) -> None:
        """Megatron gives what came from the stage before; None: this is the first."""
        (self._input,) = tensors

    def forward(self, sample: torch.Tensor) -> torch.Tensor:
        """The layer's output, [SEQUENCE_LENGTH, MICROBATCH_SIZE, WIDTH]."""
        return torch.tanh(self.layer(sample if self._input is None else self._input))


class Training:
    """One rank's model chunks and Megatron's own schedule over them.

    Args:
        num_microbatches: of a step.
        num_chunks: of the model on this rank; 1: plain 1F1B, more: interleaved.
        overlap_p2p: with chunks only: sends are posted as soon as there is something to send.
        overlap_warmup: with `overlap_p2p` only: so they are before and after the alternation of
            forwards and backwards, too. Not for evaluations over gloo: the last sends of one are
            forgotten while they are under way, which only a GPU's stream makes up for.
    """

    def __init__(
        self,
        *,
        num_microbatches: int,
        num_chunks: int = 1,
        overlap_p2p: bool = False,
        overlap_warmup: bool = False,
    ) -> None:
        self.num_microbatches = num_microbatches
        self.num_chunks = num_chunks
        num_stages = torch.distributed.get_world_size()
        is_interleaved = num_chunks > 1
        parallel_state.destroy_model_parallel()
        parallel_state.initialize_model_parallel(
            pipeline_model_parallel_size=num_stages,
            virtual_pipeline_model_parallel_size=num_chunks if is_interleaved else None,
        )
        self.stage = parallel_state.get_pipeline_model_parallel_rank()
        self.config = TransformerConfig(
            num_layers=num_stages * num_chunks,
            hidden_size=WIDTH,
            num_attention_heads=1,
            pipeline_model_parallel_size=num_stages,
            virtual_pipeline_model_parallel_size=num_chunks if is_interleaved else None,
            pipeline_dtype=torch.float32,
            batch_p2p_comm=not overlap_p2p,
            overlap_p2p_comm=overlap_p2p,
            overlap_p2p_comm_warmup_flush=overlap_warmup,
        )
        self.chunks = [
            Chunk(self.config, chunk * num_stages + self.stage) for chunk in range(num_chunks)
        ]

    def run(
        self,
        forward_backward: ForwardBackward | None = None,
        *,
        forward_only: bool = False,
        data: Any = None,  # noqa: ANN401 - what Megatron takes
    ) -> list[float]:
        """One step without an optimizer's; the losses on the last stage, elsewhere nothing."""
        function = get_forward_backward_func() if forward_backward is None else forward_backward
        is_interleaved = self.num_chunks > 1
        losses = function(
            forward_step_func=_forward_step,
            data_iterator=self.data() if data is None else data,
            model=self.chunks if is_interleaved else self.chunks[0],
            num_microbatches=self.num_microbatches,
            seq_length=SEQUENCE_LENGTH,
            micro_batch_size=MICROBATCH_SIZE,
            forward_only=forward_only,
        )
        return [float(of_microbatch["loss"]) for of_microbatch in losses]

    def data(self) -> Any:  # noqa: ANN401 - what Megatron takes
        """Return the samples from the first one on: an iterator, or one for each chunk."""
        return [samples() for _ in self.chunks] if self.num_chunks > 1 else samples()

    def gradients(self) -> list[list[float]]:
        """Of each chunk's parameters, summed over the steps so far; then zero."""
        flat = [
            torch.cat([parameter.grad.flatten() for parameter in chunk.parameters()])
            for chunk in self.chunks
        ]
        for chunk in self.chunks:
            chunk.zero_grad()
        return [gradient.tolist() for gradient in flat]


def samples() -> Iterator[torch.Tensor]:
    """The microbatches of a step, the same in every step."""
    generator = torch.Generator().manual_seed(5)
    while True:
        yield torch.randn(SEQUENCE_LENGTH, MICROBATCH_SIZE, WIDTH, generator=generator)


def _forward_step(data: Iterator[torch.Tensor], model: Chunk) -> tuple[torch.Tensor, Any]:
    return model(next(data)), _loss


def _loss(output: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    loss = output.square().mean()
    return loss, {"loss": loss.detach().clone()}
