"""A DeepSpeed schedule that runs a stage in an order that a plan gives, instead of 1F1B."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from deepspeed.runtime.pipe import schedule

from flyball_integrations.shared.stage_orders import (
    Action,
    Operation,
    StageOrder,
    check_orders,
    eager_actions,
    pulled_actions,
)

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
        orders: of every stage, the first first.
        stage_id: the stage whose part it is.
        p2p: how the sends will be made: `eager`, never waiting for the receiver, each stands
            right after what it sends; `pulled`, waiting, each stands where the neighbour
            receives.

    Raises:
        OrderError: the orders cannot run together.
    """

    def __init__(self, orders: Sequence[StageOrder], *, stage_id: int, p2p: OrderedP2P) -> None:
        super().__init__(orders[stage_id].num_microbatches, len(orders), stage_id)
        if p2p == "pulled":
            self._actions = pulled_actions(orders)[stage_id]
        else:
            check_orders(orders)
            self._actions = eager_actions(
                orders[stage_id], is_first=self.is_first_stage, is_last=self.is_last_stage
            )
        self._num_buffers = _num_buffers(self._actions)

    def num_pipe_buffers(self) -> int:
        """The most microbatches in flight, those included whose sends are still to come."""
        return self._num_buffers

    def steps(self) -> Iterator[list[schedule.PipeInstruction]]:
        """One list per forward or backward, with the transfers before it."""
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
    """The most buffers in use at once.

    One is in use from the first action on its microbatch to the last: activations and
    gradients are received just before they are used, and DeepSpeed frees a received input when
    its gradient is sent.
    """
    last_index = {microbatch: index for index, (_, microbatch) in enumerate(actions)}
    seen: set[int] = set()
    takes: list[bool] = []
    for index, (_, microbatch) in enumerate(actions):
        if microbatch not in seen:
            seen.add(microbatch)
            takes.append(True)
        if last_index[microbatch] == index:
            takes.append(False)
    return StageOrder.most_held(takes)
