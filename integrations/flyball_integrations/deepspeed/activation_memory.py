"""Activation memory in bytes of a microbatch in flight on this rank, in buffers and beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from deepspeed.runtime.pipe import schedule
from deepspeed.runtime.pipe.engine import PipelineEngine

from flyball_integrations.shared.instruction_hooks import Execute, Instructions
from flyball_integrations.shared.rank_memory import MicrobatchMeter, SavedStorages

# Measures a block for the microbatch in a buffer; the list gets the bytes that it still holds.
Measuring = Callable[[PipelineEngine, int], AbstractContextManager[list[int]]]

_FILLING = (schedule.RecvActivation, schedule.LoadMicroBatch, schedule.ForwardPass)


@contextmanager
def allocated(engine: PipelineEngine, buffer_id: int) -> Iterator[list[int]]:
    """Measure by PyTorch's allocator, on a GPU."""
    del engine, buffer_id
    taken: list[int] = []
    before = torch.cuda.memory_allocated()
    yield taken
    taken.append(torch.cuda.memory_allocated() - before)


@contextmanager
def saved(engine: PipelineEngine, buffer_id: int) -> Iterator[list[int]]:
    """Count the storages that autograd saves, and those of the buffer, each once; on the CPU."""
    taken: list[int] = []
    storages = SavedStorages(engine.module)
    with storages.of_autograd():
        yield taken
    outputs = _tensors(engine.pipe_buffers["outputs"][buffer_id])
    inputs = _tensors(engine.pipe_buffers["inputs"][buffer_id])
    for tensor in (*inputs, *outputs, *_checkpointed(outputs)):
        storages.add(tensor)
    taken.append(storages.num_bytes)


class ActivationMeter(MicrobatchMeter):
    """Meter of the instructions that fill a buffer.

    Args:
        measuring: of the device.
        measured: the instructions around which it measures.
    """

    def __init__(self, measuring: Measuring, *, measured: Sequence[type]) -> None:
        super().__init__()
        self._measuring = measuring
        self._measured = measured
        self._num_bytes = 0

    @classmethod
    def of_device(cls, device: torch.device) -> ActivationMeter:
        """Return the meter for a GPU, or for the CPU."""
        if device.type == "cuda":
            return cls(allocated, measured=_FILLING)
        return cls(saved, measured=(schedule.ForwardPass,))

    def wrap(self, instructions: Instructions) -> Instructions:
        """Return the instructions, measured while it is on."""
        measured = {kind: self._wrapped(kind, instructions[kind]) for kind in self._measured}
        return {**instructions, **measured}

    def _wrapped(self, kind: type, execute: Execute) -> Execute:
        def execute_measured(engine: PipelineEngine, buffer_id: int, **kwargs: object) -> object:
            if not self.is_on:
                return execute(engine, buffer_id=buffer_id, **kwargs)
            with self._measuring(engine, buffer_id) as taken:
                result = execute(engine, buffer_id=buffer_id, **kwargs)
            self._num_bytes += sum(taken)
            if kind is schedule.ForwardPass:
                # Until its gradient is sent, an input that was received has one as large.
                inputs = _tensors(engine.pipe_buffers["inputs"][buffer_id])
                gradients = sum(tensor.nbytes for tensor in inputs if tensor.requires_grad)
                self.add(self._num_bytes + gradients)
                self._num_bytes = 0
            return result

        return execute_measured


def _tensors(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, tuple | list):
        return [tensor for part in value for tensor in _tensors(part)]
    return []


def _checkpointed(outputs: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield the tensors that DeepSpeed's reentrant checkpointing keeps on its autograd nodes."""
    waiting: list[Any] = [tensor.grad_fn for tensor in outputs]
    visited: set[object] = {None}
    while waiting:
        node = waiting.pop()
        if node not in visited:
            visited.add(node)
            yield from _tensors(getattr(node, "deepspeed_saved_tensors", None))
            waiting += [following for following, _ in node.next_functions]
