"""Sets the hooks on one DeepSpeed engine object, and takes them off again.

`PipelineEngine._exec_schedule` looks every instruction up in `self._INSTRUCTION_MAP`, so a map
on the instance overrides the class's; `train_batch` is overridden in the same way, and
`_exec_schedule` itself where another order is to be run: all versions of DeepSpeed from 0.15.4
on pass it the schedule, wherever they make it. Nothing of DeepSpeed's modules or classes is
changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import ParamSpec, TypeVar

from deepspeed.runtime.pipe import schedule
from deepspeed.runtime.pipe.engine import PipelineEngine

from flyball_client.session.instruction_timings import Transfer
from flyball_integrations.shared.attachment import Overrides
from flyball_integrations.shared.instruction_hooks import (
    BufferMicrobatches,
    Execute,
    InstructionHooks,
    Instructions,
    InstructionWrapper,
)
from flyball_integrations.shared.transfer_timers import TransferTimer

P = ParamSpec("P")
T = TypeVar("T")
ScheduleChoice = Callable[[schedule.PipeSchedule], schedule.PipeSchedule]

# Which way each goes, and whose input or result it carries.
_TRANSFERS: dict[type, tuple[Transfer, str]] = {
    schedule.RecvActivation: ("receive", "forward"),
    schedule.RecvGrad: ("receive", "backward"),
    schedule.SendActivation: ("send", "forward"),
    schedule.SendGrad: ("send", "backward"),
}


class EnginePatch:
    """The hooks of one engine, in force from its making until `remove`.

    Args:
        engine: DeepSpeed's `PipelineEngine`.
        hooks: called in the order of execution.
        synchronize: waits until the device has finished what was launched; called before each
            hook of an instruction, so that clocks and times are those of the computation and
            not of its launch.
        around_step: made anew for every training step, in force while it runs.
        around_hooks: likewise, and before the hooks are told of the step.
        wrappers: of the instructions, between DeepSpeed's and the hooks, the innermost first.
        schedule_for: what is run in the place of a schedule of DeepSpeed's.
        transfers: times receives and sends; None: they are not timed.
    """

    def __init__(
        self,
        engine: PipelineEngine,
        hooks: InstructionHooks,
        *,
        synchronize: Callable[[], None],
        around_step: Callable[[], AbstractContextManager[None]],
        around_hooks: Callable[[], AbstractContextManager[None]] = nullcontext,
        wrappers: Sequence[InstructionWrapper] = (),
        schedule_for: ScheduleChoice | None = None,
        transfers: TransferTimer | None = None,
    ) -> None:
        self._engine = engine
        self._hooks = hooks
        self._synchronize = synchronize
        self._around_step = around_step
        self._around_hooks = around_hooks
        self._transfers = transfers
        self._microbatches = BufferMicrobatches()
        self._is_training = False
        self._overrides = Overrides()
        instructions = dict(engine._INSTRUCTION_MAP)
        for wrap in wrappers:
            instructions = wrap(instructions)
        instructions[schedule.ForwardPass] = self._hooked(
            "forward", instructions[schedule.ForwardPass], self._microbatches.of_forward
        )
        instructions[schedule.BackwardPass] = self._hooked(
            "backward", instructions[schedule.BackwardPass], self._microbatches.of_backward
        )
        if transfers is not None:
            instructions |= self._timed_transfers(instructions, transfers)
        train_batch = self._wrapped_train_batch(engine.train_batch)
        self._overrides.set(engine, "_INSTRUCTION_MAP", instructions)
        self._overrides.set(engine, "train_batch", train_batch)
        if schedule_for is not None:
            exec_schedule = self._wrapped_exec_schedule(engine._exec_schedule, schedule_for)
            self._overrides.set(engine, "_exec_schedule", exec_schedule)

    def remove(self) -> None:
        """Leave the engine's attributes as they were before."""
        self._overrides.remove()

    def _wrapped_train_batch(self, train_batch: Callable[P, T]) -> Callable[P, T]:
        def train_batch_on_planned_clocks(*args: P.args, **kwargs: P.kwargs) -> T:
            with self._around_hooks():
                self._microbatches.clear()
                self._hooks.on_step_begin()
                self._is_training = True
                try:
                    with self._around_step():
                        loss = train_batch(*args, **kwargs)
                except BaseException:
                    if self._transfers is not None:
                        self._transfers.forget()
                    self._hooks.on_step_failed()
                    raise
                finally:
                    self._is_training = False
                if self._transfers is not None:
                    self._transfers.end_step()
                self._hooks.on_step_end()
            return loss

        return train_batch_on_planned_clocks

    @staticmethod
    def _wrapped_exec_schedule(
        exec_schedule: Callable[[schedule.PipeSchedule], T], schedule_for: ScheduleChoice
    ) -> Callable[[schedule.PipeSchedule], T]:
        def exec_chosen_schedule(pipe_schedule: schedule.PipeSchedule) -> T:
            return exec_schedule(schedule_for(pipe_schedule))

        return exec_chosen_schedule

    def _hooked(
        self, kind: str, execute: Callable[..., T], microbatch_of: Callable[[int], int | None]
    ) -> Callable[..., T]:
        def execute_between_hooks(engine: PipelineEngine, buffer_id: int, **kwargs: object) -> T:
            if not self._is_training:  # eval_batch runs the same ForwardPass
                return execute(engine, buffer_id=buffer_id, **kwargs)
            microbatch = microbatch_of(buffer_id)
            self._synchronize()
            if self._transfers is not None:
                self._transfers.tell()
            self._hooks.on_instruction_begin(kind, microbatch=microbatch)
            result = execute(engine, buffer_id=buffer_id, **kwargs)
            self._synchronize()
            self._hooks.on_instruction_end(kind, microbatch=microbatch)
            return result

        return execute_between_hooks

    def _timed_transfers(
        self, instructions: Instructions, transfers: TransferTimer
    ) -> Instructions:
        return {
            pipe_instruction: self._timed(instructions[pipe_instruction], transfers, *names)
            for pipe_instruction, names in _TRANSFERS.items()
        }

    def _timed(
        self, execute: Execute, transfers: TransferTimer, transfer: Transfer, kind: str
    ) -> Execute:
        def execute_timed(engine: PipelineEngine, buffer_id: int, **kwargs: object) -> object:
            if not self._is_training:
                return execute(engine, buffer_id=buffer_id, **kwargs)
            transfers.begin()
            result = execute(engine, buffer_id=buffer_id, **kwargs)
            # What is received belongs to the next instruction of its kind, whatever the buffer.
            is_send = transfer == "send"
            microbatch = self._microbatches.of_sent(kind, buffer_id) if is_send else None
            transfers.end(transfer, kind, microbatch)
            return result

        return execute_timed
