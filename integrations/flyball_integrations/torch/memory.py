"""How many bytes the forward of a microbatch leaves behind for its backward, on this rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from flyball_integrations.shared.rank_memory import SavedStorages
from flyball_integrations.torch.private_schedules import PipelineStage


class ForwardMeter:
    """Measures what a microbatch in flight holds, while it is on.

    It is the most of the microbatches of a step. The first one is left out where there are
    others: with it come workspaces that stay. Buffers to receive into are not counted: torch
    keeps one for each microbatch of the step in any order.

    Args:
        device: of the stage: a GPU, whose allocator is asked, or the CPU, where the storages
            are counted that autograd saves.
    """

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._is_on = False
        self._by_microbatch: list[int] = []

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
        """Of a microbatch in flight; 0: nothing was measured."""
        return max(self._by_microbatch[1:] or self._by_microbatch, default=0)

    def wrap(self, stage: PipelineStage, forward: Callable[..., Any]) -> Callable[..., Any]:
        """The stage's `forward_one_chunk`, measured while it is on."""

        def forward_measured(*args: object, **kwargs: object) -> object:
            if not self._is_on:
                return forward(*args, **kwargs)
            measured = self._allocated if self._is_cuda else self._counted
            return measured(stage.submod, lambda: forward(*args, **kwargs))

        return forward_measured

    def _allocated(self, module: torch.nn.Module, forward: Callable[[], Any]) -> object:
        del module
        before = torch.cuda.memory_allocated()
        output = forward()
        self._by_microbatch.append(torch.cuda.memory_allocated() - before)
        return output

    def _counted(self, module: torch.nn.Module, forward: Callable[[], Any]) -> object:
        storages = SavedStorages(module)
        with storages.of_autograd():
            output = forward()
        for tensor in output if isinstance(output, tuple | list) else (output,):
            if isinstance(tensor, torch.Tensor):
                storages.add(tensor)
        self._by_microbatch.append(storages.num_bytes)
        return output
