"""Hooks on one schedule of torch.distributed.pipelining.

All of torch's schedules compute through three methods of their stage objects, so attributes on
these instances see every computation, each half of an overlapped pair too. The loss of a last
stage is computed by the schedule right after the forward, and counts as part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch

from flyball_client.session.instruction_timings import Transfer
from flyball_integrations.shared.attachment import Overrides
from flyball_integrations.shared.instruction_hooks import InstructionHooks
from flyball_integrations.shared.transfer_timers import TransferTimer
from flyball_integrations.torch.private_schedules import (
    PipelineSchedule,
    PipelineStage,
    Wait,
    is_training,
    stages_of,
    waits_replaced,
)


class PatchedInstruction(NamedTuple):
    """One computation, as hooks are called with it."""

    kind: str
    microbatch: int
    chunk: int


class WaitTimes:
    """Timer of the waits of one schedule's steps, reported as receives and sends.

    torch waits for a list of transfers without their directions. So waits before a computation
    count as its receive, from the first wait on, and waits after the last computation of a step
    as its send.
    """

    def __init__(self, timer: TransferTimer) -> None:
        self.timer = timer
        self._last = PatchedInstruction("forward", 0, 0)
        self._is_waiting = False

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Time the waits of a step of the schedule."""
        self._is_waiting = False
        with waits_replaced(self._timed):
            yield
        self._end("send", self._last)

    def before(self, instruction: PatchedInstruction) -> None:
        """Call before a computation; its input has arrived, or is launched."""
        self._last = instruction
        self._end("receive", instruction)

    def _timed(self, wait: Wait) -> Wait:
        def timed_wait(work: Sequence[Any]) -> None:
            if work and not self._is_waiting:
                self._is_waiting = True
                self.timer.begin()
            wait(work)

        return timed_wait

    def _end(self, transfer: Transfer, instruction: PatchedInstruction) -> None:
        if self._is_waiting:
            self._is_waiting = False
            kind, microbatch, chunk = instruction
            self.timer.end(transfer, kind, microbatch, chunk=chunk)


Execute = Callable[..., Any]


def check_optimizer(optimizer: object) -> None:
    """Check that the optimizer has hooks for its steps, or is None.

    Raises:
        ValueError: it has none.
    """
    if optimizer is not None and not callable(getattr(optimizer, "register_step_post_hook", None)):
        raise ValueError(
            "optimizer must be one object with register_step_post_hook, as a torch optimizer is,"
            f" not {type(optimizer).__name__}; of several give the one that steps last"
        )


class SchedulePatch:
    """Hooks of one schedule, in force from construction until `remove`.

    A step is one `step` of the schedule, until it returns, or with an optimizer until that has
    stepped or the next step begins. A computation inside another is left out: there is one clock.

    Args:
        schedule: one that `check_schedule` accepts.
        hooks: called in the order of execution, with the microbatch and the chunk: which of
            this rank's stages it is, in the order of the model.
        synchronize: waits until the device has finished what was launched; called before each
            hook of an instruction, so that clocks and times are those of the computation and
            not of its launch.
        waits: times the waits for messages; None: they are not timed.
        optimizer: optimizer that ends a training step by its next step; None: the schedule's
            step ends it.

    Raises:
        ValueError: the optimizer has no hooks for its steps. Nothing is hooked then.
    """

    def __init__(
        self,
        schedule: PipelineSchedule,
        hooks: InstructionHooks,
        *,
        synchronize: Callable[[], None],
        waits: WaitTimes | None = None,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        self._schedule = schedule
        self._hooks = hooks
        self._synchronize = synchronize
        self._waits = waits
        self._is_stepping = self._is_step_open = False
        self._running: PatchedInstruction | None = None
        self._awaits_loss = False
        self._overrides = Overrides()
        check_optimizer(optimizer)
        self._ends_with_optimizer = optimizer is not None
        self._optimizer_hook = (
            None
            if optimizer is None
            else optimizer.register_step_post_hook(lambda *_: self._end_step())
        )
        try:
            self._hook_schedule()
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Restore schedule, stages and optimizer."""
        if self._optimizer_hook is not None:
            self._optimizer_hook.remove()
        self._overrides.remove()

    # ------------------------------------------------------------------ steps

    def _hooked_step(self, step: Execute) -> Execute:
        def step_on_planned_clocks(*args: object, **kwargs: object) -> object:
            if not is_training(self._schedule):  # `eval` comes here too
                return step(*args, **kwargs)
            self._end_step()  # where the optimizer did not: gradients are accumulated
            self._hooks.on_step_begin()
            self._is_stepping = self._is_step_open = True
            try:
                with nullcontext() if self._waits is None else self._waits.in_force():
                    result = step(*args, **kwargs)
            except BaseException:
                self._fail_step()
                raise
            finally:
                self._is_stepping = self._awaits_loss = False
                self._running = None
            if not self._ends_with_optimizer:
                self._end_step()
            return result

        return step_on_planned_clocks

    def _end_step(self) -> None:
        if self._is_step_open and not self._is_stepping:
            self._is_step_open = False
            if self._waits is not None:
                self._waits.timer.end_step()
            self._hooks.on_step_end()

    def _fail_step(self) -> None:
        self._is_step_open = False
        if self._waits is not None:
            self._waits.timer.discard()
        self._hooks.on_step_failed()

    # ------------------------------------------------------------------ instructions

    def _hook_schedule(self) -> None:
        schedule = self._schedule
        for chunk, stage in enumerate(stages_of(schedule)):
            self._hook_stage(stage, chunk)
        self._overrides.set(
            schedule, "_maybe_compute_loss", self._ending_forward(schedule._maybe_compute_loss)
        )
        self._overrides.set(schedule, "step", self._hooked_step(schedule.step))

    def _hook_stage(self, stage: PipelineStage, chunk: int) -> None:
        hooked = {
            "forward_one_chunk": self._hooked(
                "forward", chunk, stage.forward_one_chunk, has_loss=stage.is_last
            ),
            "backward_one_chunk": self._hooked_backward(chunk, stage.backward_one_chunk),
            "backward_weight_one_chunk": self._hooked(
                "backward_weight", chunk, stage.backward_weight_one_chunk
            ),
        }
        for name, value in hooked.items():
            self._overrides.set(stage, name, value)

    def _hooked(
        self, kind: str, chunk: int, execute: Execute, *, has_loss: bool = False
    ) -> Execute:
        def execute_between_hooks(microbatch: int, *args: object, **kwargs: object) -> object:
            if self._awaits_loss:  # which was not computed by the schedule's own method
                self._end()
            if not self._is_stepping or self._running is not None:
                return execute(microbatch, *args, **kwargs)
            self._begin(PatchedInstruction(kind, microbatch, chunk))
            result = execute(microbatch, *args, **kwargs)
            if has_loss:
                self._awaits_loss = True
            else:
                self._end()
            return result

        return execute_between_hooks

    def _hooked_backward(self, chunk: int, execute: Execute) -> Execute:
        whole = self._hooked("backward", chunk, execute)
        of_input = self._hooked("backward_input", chunk, execute)

        def backward(microbatch: int, *args: object, **kwargs: object) -> object:
            is_whole = kwargs.get("full_backward", True)
            return (whole if is_whole else of_input)(microbatch, *args, **kwargs)

        return backward

    def _ending_forward(self, compute_loss: Execute) -> Execute:
        def compute_loss_in_forward(stage: PipelineStage, *args: object) -> object:
            result = compute_loss(stage, *args)
            if self._awaits_loss and stage.is_last:
                self._end()
            return result

        return compute_loss_in_forward

    def _begin(self, instruction: PatchedInstruction) -> None:
        self._running = instruction
        if self._waits is not None:
            self._waits.before(instruction)
        self._synchronize()
        if self._waits is not None:
            self._waits.timer.report()
        kind, microbatch, chunk = instruction
        self._hooks.on_instruction_begin(kind, microbatch=microbatch, chunk=chunk)

    def _end(self) -> None:
        instruction, self._running = self._running, None
        self._awaits_loss = False
        if instruction is None:
            return
        self._synchronize()
        kind, microbatch, chunk = instruction
        self._hooks.on_instruction_end(kind, microbatch=microbatch, chunk=chunk)
