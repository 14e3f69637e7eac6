"""Order that a DeepSpeed engine runs in place of its own, and the sends that it needs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
import torch.distributed
from deepspeed.runtime.pipe import p2p, schedule
from deepspeed.runtime.pipe.engine import PipelineEngine
from deepspeed.runtime.pipe.topology import PipelineParallelGrid

from flyball_integrations.deepspeed.stage_actions import (
    Action,
    Operation,
    eager_actions,
    pulled_actions,
)
from flyball_integrations.shared.instruction_hooks import Execute, Instructions
from flyball_pipeline.schedule import Schedule


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
        """Bound the sends under way by an order that runs from the next batch on.

        When a microbatch's activation is sent, the gradient of the microbatch `num_in_flight`
        before it has come back, so the activation of that one has arrived. The same holds for a
        gradient and the next activation of the stage before.

        Args:
            num_in_flight: maximum number of microbatches in flight on this stage.
            num_in_flight_before: the same of the stage before.
        """
        self._activations.num_kept = num_in_flight
        self._gradients.num_kept = num_in_flight_before

    def follow_one_f_one_b(self) -> None:
        """Bound them by DeepSpeed's own order."""
        in_flight = self._grid.pipe_parallel_size - self._grid.get_stage_id()
        self.follow(num_in_flight=in_flight, num_in_flight_before=in_flight + 1)

    def wrap(self, instructions: Instructions) -> Instructions:
        """Return the instructions, with all tensors of one send as one group."""
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
    """Process group towards one neighbour, and the sends that may be under way.

    A posted send reads its tensor until the neighbour has received it, so both are kept. Over
    a whole batch that would be the outputs of all its microbatches; a send that must be over
    is therefore released.
    """

    def __init__(self, group: torch.distributed.ProcessGroup) -> None:
        self.group = group
        self.num_kept = 1
        self.posted: deque[list[tuple[torch.distributed.Work, torch.Tensor]]] = deque()

    def begin_microbatch(self) -> None:
        """Begin the group of a microbatch's tensors."""
        self.finish(max(0, self.num_kept - 1))
        self.posted.append([])

    def post(self, tensor: torch.Tensor, rank: int) -> None:
        """Send a tensor without waiting."""
        # Detached: its graph must not live on here.
        tensor = tensor.detach()
        work = torch.distributed.isend(tensor, rank, group=self.group)
        self.posted[-1].append((work, tensor))

    def finish(self, num_kept: int) -> None:
        """Wait for the sends of all but the last microbatches, and release their tensors."""
        while len(self.posted) > num_kept:
            for work, _ in self.posted[0]:
                work.wait()
            self.posted.popleft()


def _in_one(execute: Execute, direction: _Direction) -> Execute:
    def execute_as_one(engine: PipelineEngine, buffer_id: int, **kwargs: object) -> object:
        direction.begin_microbatch()
        return execute(engine, buffer_id=buffer_id, **kwargs)

    return execute_as_one


OrderedP2P = Literal["eager", "pulled"]

_COMPUTES = {Operation.FORWARD, Operation.BACKWARD}
_INSTRUCTIONS = {
    Operation.RECEIVE_GRADIENT: schedule.RecvGrad,
    Operation.RECEIVE_ACTIVATION: schedule.RecvActivation,
    Operation.SEND_GRADIENT: schedule.SendGrad,
    Operation.SEND_ACTIVATION: schedule.SendActivation,
    Operation.FORWARD: schedule.ForwardPass,
    Operation.BACKWARD: schedule.BackwardPass,
}


class PlannedSchedule(schedule.PipeSchedule):  # type: ignore[misc] # DeepSpeed has no types
    """One stage's part of an order of the whole pipeline.

    Args:
        order: order of the pipeline, without model chunks; each stage runs its microbatches'
            forwards, and their backwards, in rising order.
        stage_id: the stage whose part it is.
        p2p: how the sends will be made: `eager`, never waiting for the receiver, each stands
            right after what it sends; `pulled`, waiting, each stands where the neighbour
            receives.

    Raises:
        PipelineError: the order deadlocks.
    """

    def __init__(self, order: Schedule, *, stage_id: int, p2p: OrderedP2P) -> None:
        super().__init__(order.num_microbatches, order.num_stages, stage_id)
        actions_of = pulled_actions if p2p == "pulled" else eager_actions
        self._actions = actions_of(order, stage_id)
        self._num_buffers = _num_buffers(self._actions)

    def num_pipe_buffers(self) -> int:
        """Maximum number of microbatches in flight, including those with sends still to come."""
        return self._num_buffers

    def steps(self) -> Iterator[list[schedule.PipeInstruction]]:
        """Yield one list per forward or backward, with the transfers before it."""
        commands: list[schedule.PipeInstruction] = []
        for action in self._actions:
            commands += self._instructions(action)
            if action[0] in _COMPUTES:
                yield commands
                commands = []
        yield [
            *commands,
            schedule.ReduceTiedGrads(),
            schedule.ReduceGrads(),
            schedule.OptimizerStep(),
        ]

    def _instructions(self, action: Action) -> list[schedule.PipeInstruction]:
        operation, microbatch = action
        buffer_id = self._buffer_idx(microbatch)
        instruction = _INSTRUCTIONS[operation](buffer_id)
        if operation is Operation.FORWARD and (self.is_first_stage or self.is_last_stage):
            return [schedule.LoadMicroBatch(buffer_id), instruction]
        return [instruction]


def _num_buffers(actions: Sequence[Action]) -> int:
    """Return the maximum number of buffers in use at once.

    One is in use from the first action on its microbatch to the last: activations and
    gradients are received just before they are used, and DeepSpeed frees a received input when
    its gradient is sent.
    """
    last_index = {microbatch: index for index, (_, microbatch) in enumerate(actions)}
    in_use: set[int] = set()
    most = 0
    for index, (_, microbatch) in enumerate(actions):
        in_use.add(microbatch)
        most = max(most, len(in_use))
        if last_index[microbatch] == index:
            in_use.remove(microbatch)
    return most


class EngineOrder:
    """An order of one engine in place of DeepSpeed's own, from the first step on.

    Args:
        engine: DeepSpeed's `PipelineEngine`.
        order: of every stage; every rank must have the same.
        eager: sends without waiting; None: DeepSpeed's own P2P, with pulled sends (see
            `PlannedSchedule`).
    """

    def __init__(
        self,
        engine: PipelineEngine,
        order: Schedule,
        *,
        eager: EagerP2P | None = None,
    ) -> None:
        self._engine = engine
        self._num_in_flight = order.peak_activations
        self._eager = eager
        self._loss_of_buffer: dict[int, Any] = {}
        self._num_pipe_buffers = engine.num_pipe_buffers
        self._schedule = PlannedSchedule(
            order, stage_id=engine.stage_id, p2p="pulled" if eager is None else "eager"
        )

    def schedule_for(self, stock: schedule.PipeSchedule) -> schedule.PipeSchedule:
        """Return the schedule to run instead of DeepSpeed's.

        Evaluations stay, and so do steps with another number of microbatches.
        """
        if type(stock) is not schedule.TrainSchedule:
            return stock
        is_own = stock.num_micro_batches != self._schedule.num_micro_batches
        if self._eager is not None:
            self._limit_sends(self._eager, is_own=is_own)
        return stock if is_own else self._schedule

    def wrap(self, instructions: Instructions) -> Instructions:
        """Keep a loss for each buffer of the last stage.

        DeepSpeed has one loss, which is enough where each backward follows its forward at once.
        """
        if not self._engine.is_last_stage():
            return instructions
        wrapped = {
            schedule.ForwardPass: self._keeping_loss(instructions[schedule.ForwardPass]),
            schedule.BackwardPass: self._with_its_loss(instructions[schedule.BackwardPass]),
        }
        return {**instructions, **wrapped}

    def close(self) -> None:
        """Restore DeepSpeed's buffers."""
        for slots in self._engine.pipe_buffers.values():
            del slots[self._num_pipe_buffers :]
        self._engine.num_pipe_buffers = self._num_pipe_buffers

    def _limit_sends(self, eager: EagerP2P, *, is_own: bool) -> None:
        """Limit the sends under way, which follow from the microbatches in flight."""
        if is_own:
            eager.follow_one_f_one_b()
            return
        stage = self._engine.stage_id
        eager.follow(
            num_in_flight=self._num_in_flight[stage],
            num_in_flight_before=self._num_in_flight[max(0, stage - 1)],
        )

    def _keeping_loss(self, execute: Execute) -> Execute:
        def execute_and_keep(engine: PipelineEngine, buffer_id: int, **kwargs: object) -> object:
            result = execute(engine, buffer_id=buffer_id, **kwargs)
            self._loss_of_buffer[buffer_id] = engine.loss
            return result

        return execute_and_keep

    def _with_its_loss(self, execute: Execute) -> Execute:
        def execute_with_loss(engine: PipelineEngine, buffer_id: int, **kwargs: object) -> object:
            engine.loss = self._loss_of_buffer.pop(buffer_id, engine.loss)
            return execute(engine, buffer_id=buffer_id, **kwargs)

        return execute_with_loss
