"""Runs DeepSpeed's instruction lists of all stages without DeepSpeed, and finds what is wrong.

It knows what the engine does with its buffers, and nothing of how the lists were made.
Messages carry the microbatch that they belong to, so a list that mixes two up is found.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from deepspeed.runtime.pipe import schedule

Sends = Literal["waiting", "posted"]


class ScheduleFault(AssertionError):  # noqa: N818 - of a list, not of the program
    """The lists cannot be run, or would compute something else."""


class Deadlock(ScheduleFault):
    """Every stage that is not over waits for another."""


@dataclass(kw_only=True)
class Window:
    """Most sends under way towards each neighbour; None: any number."""

    activations: int | None = None
    gradients: int | None = None


@dataclass
class _Stage:
    """One rank: its list, and what its buffers hold, by microbatch."""

    commands: list[schedule.PipeInstruction]
    num_buffers: int
    position: int = 0
    num_loaded: int = 0
    inputs: dict[int, int] = field(default_factory=dict)
    labels: dict[int, int] = field(default_factory=dict)
    outputs: dict[int, int] = field(default_factory=dict)
    input_gradients: dict[int, int] = field(default_factory=dict)
    forwarded: list[int] = field(default_factory=list)
    backwarded: list[int] = field(default_factory=list)
    # Activations are received into the same memory as gradients.
    received_gradient: int | None = None
    loss: int | None = None
    most_in_flight: int = 0

    @property
    def is_over(self) -> bool:
        return self.position == len(self.commands)

    @property
    def command(self) -> schedule.PipeInstruction:
        return self.commands[self.position]


class PipelineChecker:
    """One training step of a pipeline.

    Args:
        schedules: of each stage, the first first.
        sends: `waiting` until the neighbour receives, as gloo's and NCCL's are; or `posted`.
        windows: of each stage, where they are posted; a full one waits for its oldest.
        has_loss_per_buffer: the last stage keeps one for each buffer; DeepSpeed has one only.
    """

    def __init__(
        self,
        schedules: Sequence[schedule.PipeSchedule],
        *,
        sends: Sends,
        windows: Sequence[Window] | None = None,
        has_loss_per_buffer: bool = False,
    ) -> None:
        self._stages = [
            _Stage([command for step in each.steps() for command in step], each.num_pipe_buffers())
            for each in schedules
        ]
        self._num_microbatches = schedules[0].num_micro_batches
        self._sends = sends
        self._windows = windows or [Window()] * len(self._stages)
        self._has_loss_per_buffer = has_loss_per_buffer
        # By receiver: what is under way to it.
        self._activations: list[deque[int]] = [deque() for _ in self._stages]
        self._gradients: list[deque[int]] = [deque() for _ in self._stages]

    def run(self) -> None:
        """Run it to its end.

        Raises:
            Deadlock: it has none.
            ScheduleFault: a buffer is overwritten, or used without what it should hold.
        """
        moved = True
        while moved:
            moved = False
            for number, stage in enumerate(self._stages):
                while not stage.is_over and self._can_move(number):
                    self._move(number)
                    moved = True
        waiting = [
            f"stage {number} at {stage.command!r}"
            for number, stage in enumerate(self._stages)
            if not stage.is_over
        ]
        if waiting:
            raise Deadlock(", ".join(waiting))
        self._check_end()

    @property
    def most_in_flight(self) -> list[int]:
        """Per stage, the most microbatches that were forwarded and not yet backwarded."""
        return [stage.most_in_flight for stage in self._stages]

    # ------------------------------------------------------------------ messages

    def _can_move(self, number: int) -> bool:
        match self._stages[number].command:
            case schedule.RecvActivation():
                return bool(self._activations[number])
            case schedule.RecvGrad():
                return bool(self._gradients[number])
            case schedule.SendActivation():
                under_way, kind = self._activations[number + 1], schedule.RecvActivation
                window = self._windows[number].activations
            case schedule.SendGrad():
                under_way, kind = self._gradients[number - 1], schedule.RecvGrad
                window = self._windows[number].gradients
            case _:
                return True
        if self._sends == "posted":
            return window is None or len(under_way) < window
        receiver = self._stages[number + (1 if kind is schedule.RecvActivation else -1)]
        return not under_way and not receiver.is_over and type(receiver.command) is kind

    def _move(self, number: int) -> None:
        stage = self._stages[number]
        command = stage.command
        buffer_id = command.kwargs.get("buffer_id")
        if buffer_id is not None:
            _require(0 <= buffer_id < stage.num_buffers, f"{command!r}: no such buffer")
        match command:
            case schedule.LoadMicroBatch():
                self._load(number, stage, buffer_id)
            case schedule.RecvActivation():
                _require(stage.received_gradient is None, f"{command!r}: over a gradient")
                _require(buffer_id not in stage.inputs, f"{command!r}: over an input in use")
                stage.inputs[buffer_id] = self._activations[number].popleft()
            case schedule.ForwardPass():
                self._forward(number, stage, buffer_id)
            case schedule.SendActivation():
                _require(buffer_id in stage.outputs, f"{command!r}: no output")
                self._activations[number + 1].append(stage.outputs[buffer_id])
            case schedule.RecvGrad():
                _require(stage.received_gradient is None, f"{command!r}: over a gradient")
                stage.received_gradient = self._gradients[number].popleft()
            case schedule.BackwardPass():
                self._backward(number, stage, buffer_id)
            case schedule.SendGrad():
                _require(buffer_id in stage.input_gradients, f"{command!r}: no gradient")
                self._gradients[number - 1].append(stage.input_gradients.pop(buffer_id))
                del stage.inputs[buffer_id]
        stage.position += 1

    # ------------------------------------------------------------------ computations

    def _load(self, number: int, stage: _Stage, buffer_id: int) -> None:
        if number == 0:
            _require(buffer_id not in stage.inputs, f"input {stage.num_loaded} over one in use")
            stage.inputs[buffer_id] = stage.num_loaded
        if number == len(self._stages) - 1:
            stage.labels[buffer_id] = stage.num_loaded
        stage.num_loaded += 1

    def _forward(self, number: int, stage: _Stage, buffer_id: int) -> None:
        _require(buffer_id in stage.inputs, f"forward in {buffer_id}: no input")
        _require(buffer_id not in stage.outputs, f"forward in {buffer_id}: over an output in use")
        microbatch = stage.inputs[buffer_id]
        if number == len(self._stages) - 1:
            label = stage.labels.pop(buffer_id, None)
            _require(label == microbatch, f"forward {microbatch} with label {label}")
        stage.outputs[buffer_id] = microbatch
        stage.loss = microbatch
        stage.forwarded.append(microbatch)
        in_flight = len(stage.forwarded) - len(stage.backwarded)
        stage.most_in_flight = max(stage.most_in_flight, in_flight)

    def _backward(self, number: int, stage: _Stage, buffer_id: int) -> None:
        _require(buffer_id in stage.outputs, f"backward in {buffer_id}: no output")
        microbatch = stage.outputs.pop(buffer_id)
        if number == len(self._stages) - 1:
            loss = microbatch if self._has_loss_per_buffer else stage.loss
            _require(loss == microbatch, f"backward {microbatch} from loss {loss}")
        else:
            gradient, stage.received_gradient = stage.received_gradient, None
            _require(gradient == microbatch, f"backward {microbatch} from gradient {gradient}")
        stage.backwarded.append(microbatch)
        if number == 0:
            del stage.inputs[buffer_id]
        else:
            stage.input_gradients[buffer_id] = microbatch

    def _check_end(self) -> None:
        wanted = list(range(self._num_microbatches))
        for number, stage in enumerate(self._stages):
            _require(stage.forwarded == wanted, f"stage {number} forwarded {stage.forwarded}")
            _require(stage.backwarded == wanted, f"stage {number} backwarded {stage.backwarded}")
            last = [type(command) for command in stage.commands[-3:]]
            ends = [schedule.ReduceTiedGrads, schedule.ReduceGrads, schedule.OptimizerStep]
            _require(last == ends, f"stage {number} ends with {last}")
            _require(not stage.inputs, f"stage {number} keeps {stage.inputs}")
        _require(not any(self._activations) and not any(self._gradients), "messages are left")


def _require(is_so: bool, fault: str) -> None:
    if not is_so:
        raise ScheduleFault(fault)
