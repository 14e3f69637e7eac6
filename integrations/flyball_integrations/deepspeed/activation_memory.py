"""Activation memory in bytes of a microbatch in flight on this rank, in buffers and beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch
from deepspeed.runtime.pipe import schedule
from deepspeed.runtime.pipe.engine import PipelineEngine

from flyball_integrations.shared.instruction_hooks import Execute, Instructions
from flyball_integrations.shared.rank_memory import SavedStorages

_FILLING = (schedule.RecvActivation, schedule.LoadMicroBatch, schedule.ForwardPass)


class MemoryMeter(Protocol):
    """Collects the bytes that are taken, and still held, while a block runs."""

    num_bytes: int

    def measuring(self, engine: PipelineEngine, buffer_id: int) -> AbstractContextManager[None]:
        """Add what the block takes for the microbatch in this buffer."""
        ...


class CudaMeter:
    """Asks PyTorch's allocator."""

    def __init__(self) -> None:
        self.num_bytes = 0

    @contextmanager
    def measuring(self, engine: PipelineEngine, buffer_id: int) -> Iterator[None]:
        """Add what the allocator has given out more than before."""
        del engine, buffer_id
        before = torch.cuda.memory_allocated()
        yield
        self.num_bytes += torch.cuda.memory_allocated() - before


class SavedTensorsMeter:
    """Counts the storages that autograd saves, and those of the buffer; for the CPU."""

    def __init__(self) -> None:
        self.num_bytes = 0

    @contextmanager
    def measuring(self, engine: PipelineEngine, buffer_id: int) -> Iterator[None]:
        """Add each storage once, those of parameters and model buffers not."""
        storages = SavedStorages(engine.module)
        with storages.of_autograd():
            yield
        outputs = _tensors(engine.pipe_buffers["outputs"][buffer_id])
        for tensor in (*_tensors(engine.pipe_buffers["inputs"][buffer_id]), *outputs):
            storages.add(tensor)
        for tensor in _checkpointed(outputs):
            storages.add(tensor)
        self.num_bytes += storages.num_bytes


class ActivationMeter:
    """Measures what a microbatch in flight holds, over the first training step.

    It is the most of the step's microbatches. The first one is left out where there are
    others: with it come workspaces and receive buffers that stay.

    Args:
        meter: of the device.
        measured: the instructions around which it measures.
    """

    def __init__(self, meter: MemoryMeter, *, measured: Sequence[type]) -> None:
        self._meter = meter
        self._measured = measured
        self._is_on = False
        self._by_microbatch: list[int] = []

    @classmethod
    def of_device(cls, device: torch.device) -> ActivationMeter:
        """The one for a GPU, or for the CPU."""
        if device.type == "cuda":
            return cls(CudaMeter(), measured=_FILLING)
        return cls(SavedTensorsMeter(), measured=(schedule.ForwardPass,))

    @contextmanager
    def measuring_step(self) -> Iterator[None]:
        """Measure inside the block."""
        self._is_on = True
        try:
            yield
        finally:
            self._is_on = False

    @property
    def activation_bytes(self) -> int:
        """Of a microbatch in flight, with its input's gradient; 0: nothing was measured."""
        return max(self._by_microbatch[1:] or self._by_microbatch, default=0)

    def wrap(self, instructions: Instructions) -> Instructions:
        """The instructions, measured while it is on."""
        measured = {kind: self._wrapped(kind, instructions[kind]) for kind in self._measured}
        return {**instructions, **measured}

    def _wrapped(self, kind: type, execute: Execute) -> Execute:
        def execute_measured(engine: PipelineEngine, buffer_id: int, **kwargs: object) -> object:
            if not self._is_on:
                return execute(engine, buffer_id=buffer_id, **kwargs)
            with self._meter.measuring(engine, buffer_id):
                result = execute(engine, buffer_id=buffer_id, **kwargs)
            if kind is schedule.ForwardPass:
                # Until its gradient is sent, an input that was received has one as large.
                inputs = engine.pipe_buffers["inputs"][buffer_id]
                gradients = [tensor for tensor in _tensors(inputs) if tensor.requires_grad]
                num_bytes = self._meter.num_bytes + sum(tensor.nbytes for tensor in gradients)
                self._by_microbatch.append(num_bytes)
                self._meter.num_bytes = 0
            return result

        return execute_measured


def _tensors(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, tuple | list):
        return [tensor for part in value for tensor in _tensors(part)]
    return []


def _checkpointed(outputs: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Return what DeepSpeed's reentrant checkpointing keeps on its nodes, where no hook sees it."""
    waiting: list[Any] = [tensor.grad_fn for tensor in outputs]
    seen: set[object] = {None}
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            yield from _tensors(getattr(node, "deepspeed_saved_tensors", None))
            waiting += [following for following, _ in node.next_functions]
