"""Sends that are posted at once, for DeepSpeed pipelines over gloo.

gloo's blocking send returns when the neighbour has received, so a stage that is ahead waits
for a slower neighbour although nothing it computes depends on it. That couples stages beyond
the dependency DAG: an iteration takes longer than a plan predicts, and orders with extra
warm-up forwards deadlock. Here sends are posted (isend), receives block as before, and each
direction has its process group, so that activations never queue behind gradients.

Not over NCCL: its sends are kernels that wait on the GPU for the receiver. NVIDIA's manual
("Using multiple NCCL communicators concurrently") says that any CUDA operation may wait for
all of them, and that operations of different communicators belong into different epochs; two
groups with sends under way are just what it warns of.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed
from deepspeed.runtime.pipe import p2p, schedule
from deepspeed.runtime.pipe.engine import PipelineEngine
from deepspeed.runtime.pipe.topology import PipelineParallelGrid

from flyball_integrations.shared.instruction_hooks import Execute, Instructions


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
                f"p2p='eager' is for gloo, and this run uses {backend}; use p2p='stock', or"
                " p2p='pulled' for orders other than 1F1B"
            )
        self._grid = grid
        self._activations = _Direction(torch.distributed.new_group())
        self._gradients = _Direction(torch.distributed.new_group())
        self.follow_one_f_one_b()

    def follow(self, *, num_in_flight: int, num_in_flight_before: int) -> None:
        """Run such an order from the next batch on: it tells which sends are over by now.

        When a microbatch's activation is sent, the gradient of the one so many before it has
        come back, so that one's activation had arrived. Likewise with a gradient and the next
        activation of the stage before.

        Args:
            num_in_flight: the most microbatches in flight on this stage.
            num_in_flight_before: on the stage before it.
        """
        self._activations.num_kept = num_in_flight
        self._gradients.num_kept = num_in_flight_before

    def follow_one_f_one_b(self) -> None:
        """Run DeepSpeed's own order from the next batch on."""
        in_flight = self._grid.pipe_parallel_size - self._grid.get_stage_id()
        self.follow(num_in_flight=in_flight, num_in_flight_before=in_flight + 1)

    def wrap(self, instructions: Instructions) -> Instructions:
        """The instructions, so that all tensors of one send are known to belong together."""
        sends = {
            schedule.SendActivation: self._activations,
            schedule.SendGrad: self._gradients,
        }
        wrapped = {kind: _in_one(instructions[kind], to) for kind, to in sends.items()}
        return {**instructions, **wrapped}

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Eager P2P inside the block; at its end all sends are over and stock P2P is back."""
        stock_send, stock_recv = p2p.send, p2p.recv
        p2p.send, p2p.recv = self._send, self._recv
        try:
            yield
            self._activations.finish(0)
            self._gradients.finish(0)
        finally:
            self._activations.posted.clear()
            self._gradients.posted.clear()
            p2p.send, p2p.recv = stock_send, stock_recv

    def close(self) -> None:
        """Free the two process groups; every rank must call it at the same time."""
        torch.distributed.destroy_process_group(self._activations.group)
        torch.distributed.destroy_process_group(self._gradients.group)

    def _send(self, tensor: torch.Tensor, dest_stage: int, async_op: bool = False) -> None:
        del async_op  # DeepSpeed's own send refuses True, so it is never asked for
        direction = self._direction(self._grid.get_stage_id(), dest_stage)
        direction.post(tensor, self._grid.stage_to_global(stage_id=dest_stage))

    def _recv(self, tensor: torch.Tensor, src_stage: int, async_op: bool = False) -> None:
        del async_op
        group = self._direction(src_stage, self._grid.get_stage_id()).group
        rank = self._grid.stage_to_global(stage_id=src_stage)
        torch.distributed.recv(tensor, rank, group=group)

    def _direction(self, src_stage: int, dest_stage: int) -> _Direction:
        return self._activations if src_stage < dest_stage else self._gradients


class _Direction:
    """Towards one neighbour: a process group, and the sends that may be under way.

    A posted send reads its tensor until the neighbour has received it, so both are kept. Over
    a whole batch that would be the outputs of all its microbatches; a send that must be over
    is therefore let go.
    """

    def __init__(self, group: torch.distributed.ProcessGroup) -> None:
        self.group = group
        self.num_kept = 1
        self.posted: deque[list[tuple[torch.distributed.Work, torch.Tensor]]] = deque()

    def begin_microbatch(self) -> None:
        """The next tensors are one microbatch's."""
        self.finish(max(0, self.num_kept - 1))
        self.posted.append([])

    def post(self, tensor: torch.Tensor, rank: int) -> None:
        """Send a tensor without waiting."""
        # Detached: its graph must not live on here.
        tensor = tensor.detach()
        work = torch.distributed.isend(tensor, rank, group=self.group)
        self.posted[-1].append((work, tensor))

    def finish(self, num_kept: int) -> None:
        """Let all but the last microbatches go, waiting where a send is not over."""
        while len(self.posted) > num_kept:
            for work, _ in self.posted[0]:
                work.wait()
            self.posted.popleft()


def _in_one(execute: Execute, direction: _Direction) -> Execute:
    def execute_as_one(engine: PipelineEngine, buffer_id: int, **kwargs: object) -> object:
        direction.begin_microbatch()
        return execute(engine, buffer_id=buffer_id, **kwargs)

    return execute_as_one
