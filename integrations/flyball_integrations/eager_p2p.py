"""Sends that are posted at once, for DeepSpeed pipelines over gloo.

gloo's blocking send returns when the neighbour has received, so a stage that is ahead waits
for a slower neighbour although nothing it computes depends on it. That couples stages beyond
the dependency DAG: an iteration takes longer than a plan predicts, and orders with extra
warm-up forwards deadlock. Here sends are posted (isend), receives block as before, and each
direction has its process group, so that activations never queue behind gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed
from deepspeed.runtime.pipe import p2p
from deepspeed.runtime.pipe.topology import PipelineParallelGrid


class EagerP2P:
    """Replaces `p2p.send` and `p2p.recv` while a batch runs.

    Every rank must create it at the same time: it makes two process groups.

    Raises:
        ValueError: the default process group is not gloo's.
    """

    def __init__(self, grid: PipelineParallelGrid) -> None:
        backend = torch.distributed.get_backend()
        if backend != "gloo":
            raise ValueError(
                f"p2p='eager' is for gloo, and this run uses {backend}; use p2p='stock'"
            )
        self._grid = grid
        self._activations = torch.distributed.new_group()
        self._gradients = torch.distributed.new_group()
        # A posted send reads its tensor until the neighbour has received it: keep both.
        self._posted: list[tuple[torch.distributed.Work, torch.Tensor]] = []

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Eager P2P inside the block; at its end all sends are over and stock P2P is back."""
        stock_send, stock_recv = p2p.send, p2p.recv
        p2p.send, p2p.recv = self._send, self._recv
        try:
            yield
            for work, _ in self._posted:
                work.wait()
        finally:
            self._posted.clear()
            p2p.send, p2p.recv = stock_send, stock_recv

    def close(self) -> None:
        """Free the two process groups; every rank must call it at the same time."""
        torch.distributed.destroy_process_group(self._activations)
        torch.distributed.destroy_process_group(self._gradients)

    def _send(self, tensor: torch.Tensor, dest_stage: int, async_op: bool = False) -> None:
        del async_op  # DeepSpeed's own send refuses True, so it is never asked for
        group = self._group(self._grid.get_stage_id(), dest_stage)
        rank = self._grid.stage_to_global(stage_id=dest_stage)
        self._posted.append((torch.distributed.isend(tensor, rank, group=group), tensor))

    def _recv(self, tensor: torch.Tensor, src_stage: int, async_op: bool = False) -> None:
        del async_op
        group = self._group(src_stage, self._grid.get_stage_id())
        rank = self._grid.stage_to_global(stage_id=src_stage)
        torch.distributed.recv(tensor, rank, group=group)

    def _group(self, src_stage: int, dest_stage: int) -> torch.distributed.ProcessGroup:
        return self._activations if src_stage < dest_stage else self._gradients
