"""Number of microbatches that each stage's memory can still hold, equal on all ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import torch
import torch.distributed

# Share of the device: fragments, and memory that only other steps need.
_KEPT_FREE = 0.1


@dataclass(frozen=True, kw_only=True)
class RankMemory:
    """Bounds on the microbatches in flight on one rank.

    Attributes:
        activation_bytes: held by one of them, at least 1.
        free_bytes: free beside what 1F1B holds.
    """

    activation_bytes: int
    free_bytes: int

    @property
    def num_more(self) -> int:
        """Microbatches that may be in flight beyond those of 1F1B."""
        return self.free_bytes // self.activation_bytes


class MicrobatchMeter:
    """Bytes held by a microbatch in flight: the most of the microbatches of one step.

    The first microbatch is left out where there are others: with it come workspaces and receive
    buffers that stay.
    """

    def __init__(self) -> None:
        self.is_on = False
        self._by_microbatch: list[int] = []

    @contextmanager
    def measuring_step(self) -> Iterator[None]:
        """Measure inside the block."""
        self.is_on = True
        try:
            yield
        finally:
            self.is_on = False

    def add(self, num_bytes: int) -> None:
        """Add a microbatch."""
        self._by_microbatch.append(num_bytes)

    @property
    def activation_bytes(self) -> int:
        """Bytes of a microbatch in flight; 0: not measured."""
        return max(self._by_microbatch[1:] or self._by_microbatch, default=0)


class SavedStorages:
    """Counts each storage once that is kept for a backward, without a module's own; for the CPU.

    Args:
        module: module with parameters and buffers that do not count.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        kept = [*module.parameters(), *module.buffers()]
        self._known = {tensor.untyped_storage().data_ptr() for tensor in kept}
        self._held: dict[int, int] = {}

    @property
    def num_bytes(self) -> int:
        """Bytes of all counted storages."""
        return sum(self._held.values())

    def of_autograd(self) -> AbstractContextManager[None]:
        """Count the tensors that autograd saves inside the block."""
        saved: AbstractContextManager[None] = torch.autograd.graph.saved_tensors_hooks(
            self.add, lambda tensor: tensor
        )
        return saved

    def add(self, tensor: torch.Tensor) -> torch.Tensor:
        """Count a tensor, and return it without the graph behind it."""
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._known:
            self._held[storage.data_ptr()] = storage.nbytes()
        # An output that is saved by its own function would never be freed.
        return tensor.detach()


def free_cuda_bytes() -> int:
    """Return the bytes that this process can still take beside its maximum so far, less a tenth.

    Bytes that PyTorch has reserved and not allocated count as free. Call it after two whole
    steps: the first one makes the optimizer's states, the second holds them and the activations
    of 1F1B together.
    """
    free: int = torch.cuda.mem_get_info()[0]
    reserved: int = torch.cuda.memory_reserved()
    most_held: int = torch.cuda.max_memory_allocated()
    return max(0, math.floor((free + reserved) * (1 - _KEPT_FREE)) - most_held)


def check_free_memory(option: str, free_memory_bytes: int | None, device: torch.device) -> None:
    """Check the memory that is given for an order other than the framework's.

    Raises:
        ValueError: it is negative, or not given where it cannot be read from a GPU.
    """
    if free_memory_bytes is None and device.type != "cuda":
        raise ValueError(
            f"{option} needs the number of free bytes, which can be read from a GPU only; give"
            " free_memory_bytes"
        )
    if free_memory_bytes is not None and free_memory_bytes < 0:
        raise ValueError(f"free_memory_bytes must not be negative, not {free_memory_bytes}")


def gather_memory(
    memory: RankMemory, *, stage: int, num_stages: int, group: torch.distributed.ProcessGroup
) -> tuple[RankMemory, ...]:
    """Return every stage's memory (`memory_by_stage`); a collective call of the group."""
    mine = torch.tensor([stage, memory.activation_bytes, memory.free_bytes])
    rows = [torch.empty_like(mine) for _ in range(group.size())]
    torch.distributed.all_gather(rows, mine, group=group)
    return memory_by_stage([row.tolist() for row in rows], num_stages=num_stages)


def memory_by_stage(rows: Sequence[Sequence[int]], *, num_stages: int) -> tuple[RankMemory, ...]:
    """Return for each stage the largest activation and the least free memory.

    Args:
        rows: of each rank its stage, activation bytes and free bytes; each stage has a rank.
        num_stages: of the pipeline.
    """
    by_stage: list[list[Sequence[int]]] = [[] for _ in range(num_stages)]
    for row in rows:
        by_stage[row[0]].append(row)
    return tuple(
        RankMemory(
            activation_bytes=max(activation_bytes for _, activation_bytes, _ in of_stage),
            free_bytes=min(free_bytes for _, _, free_bytes in of_stage),
        )
        for of_stage in by_stage
    )


def registered_memory(memory: RankMemory, *, num_microbatches: int) -> RankMemory:
    """Return the memory rounded to the resolution of plans, so that a restart gives the same value.

    Only how many more microbatches fit counts, and more than all of them is no more. Bytes of
    activations are raised by at most a sixty-fourth, to a round number.
    """
    granule = 1 << max(0, memory.activation_bytes.bit_length() - 7)
    activation_bytes = -(-memory.activation_bytes // granule) * granule
    num_more = min(memory.free_bytes // activation_bytes, num_microbatches)
    return RankMemory(activation_bytes=activation_bytes, free_bytes=num_more * activation_bytes)
