"""Training steps as the forward and the backward of each microbatch, by hooks of the model.

Where ranks meet in every forward and backward, as FSDP2's do, one clock for a whole step makes
ranks wait: the rank with the least work in sum has the most in some microbatch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel

from flyball_integrations.data_parallel.rank_waits import RankWaits, differentiable, fsdp_groups
from flyball_integrations.shared.instruction_hooks import InstructionHooks

FORWARD, BACKWARD = "forward", "backward"


class Meetings:
    """Microbatches in which ranks have waited for each other so far.

    Attributes:
        are_known: True: a step has shown them.
        in_each: True: ranks have met in every microbatch.
        at_ends: True: ranks have met in the last microbatch of each step alone, as with `no_sync`.
    """

    def __init__(self) -> None:
        self.are_known, self.in_each, self.at_ends = False, True, True

    def add(self, met: Sequence[bool]) -> None:
        """Add a step, by whether ranks have met in each microbatch."""
        if met:
            self.are_known = True
            self.in_each &= all(met)
            self.at_ends &= met[-1] and not any(met[:-1])


class MicrobatchSteps:
    """Hooks around the forwards and backwards of one rank's training steps.

    A forward lasts from the model's first hook to its last, a backward from the gradient of the
    output to the end of what autograd runs. Forwards outside of a step or without gradients, and
    such as run within a backward to recompute activations, are not hooked.

    Args:
        model: module that the training loop calls.
        hooks: of the rank.
        waits: of the rank for others, within its instructions.
        synchronize: waits, where hooks need it, until the device has done what was launched.
        meets: returns, before a forward, whether ranks wait for each other in its microbatch.

    Attributes:
        meetings: of the ranks in its steps.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        hooks: InstructionHooks,
        waits: RankWaits,
        *,
        synchronize: Callable[[], None],
        meets: Callable[[], bool],
    ) -> None:
        self._hooks = hooks
        self._waits = waits
        self._synchronize = synchronize
        self._meets = meets
        self.meetings = Meetings()
        # Of the step: whether ranks meet in each microbatch.
        self._met: list[bool] = []
        # Of the step, so that a backward of an earlier step is not taken for its own.
        self._number = 0
        self._running: tuple[str, int] | None = None
        # Models within the running one's forward, as where it calls itself.
        self._depth = 0
        before = model.register_forward_pre_hook(self._before_forward, prepend=True)
        after = model.register_forward_hook(self._after_forward, prepend=True, always_call=True)
        self._handles = (before, after)

    def remove(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Run the block as one training step; within another step it has no effect."""
        if self._waits.is_in_step:
            yield
            return
        self._synchronize()
        self._met, self._running, self._depth = [], None, 0
        self._number += 1
        self._hooks.on_step_begin()
        try:
            with self._waits.in_step():
                yield
                self._synchronize()
        except BaseException:
            self._hooks.on_step_failed()
            raise
        self.meetings.add(self._met)
        self._hooks.on_step_end()

    # ------------------------------------------------------------------ torch's hooks

    def _before_forward(self, module: torch.nn.Module, inputs: object) -> None:
        del module, inputs
        if not self._waits.is_in_step:
            return
        if self._running is not None:
            self._depth += self._running[0] == FORWARD
        elif torch.is_grad_enabled():
            self._begin(FORWARD, len(self._met))
            self._met.append(self._meets())

    def _after_forward(self, module: torch.nn.Module, inputs: object, output: object) -> None:
        """End the forward, also of one that raised, and prepare its backward."""
        del module, inputs
        if self._running is None or self._running[0] != FORWARD:
            return
        if self._depth:
            self._depth -= 1
            return
        microbatch = self._running[1]
        tensor = differentiable(output)
        if tensor is not None:
            tensor.register_hook(partial(self._before_backward, self._number, microbatch))
        if tensor is not None and self._waits.meets_in_forwards:
            self._waits.meet()
        self._end()

    def _before_backward(self, step: int, microbatch: int, gradient: torch.Tensor) -> None:
        del gradient
        if self._waits.is_in_step and self._running is None and step == self._number:
            self._begin(BACKWARD, microbatch)
            self._queue(step, self._on_computed)

    def _on_computed(self) -> None:
        """Run before what DistributedDataParallel and FSDP2 have queued; end after it."""
        if self._waits.meets_in_forwards:
            self._waits.meet()
        self._queue(self._number, self._end)

    def _queue(self, step: int, function: Callable[[], None]) -> None:
        """Call a function at the end of autograd's run, where its step still runs."""

        def call() -> None:
            if self._waits.is_in_step and self._number == step:
                function()

        Variable._execution_engine.queue_callback(call)

    # ------------------------------------------------------------------ the session's hooks

    def _begin(self, kind: str, microbatch: int) -> None:
        self._synchronize()
        self._running = (kind, microbatch)
        self._hooks.on_instruction_begin(kind, microbatch=microbatch)

    def _end(self) -> None:
        if self._running is None:
            return
        self._synchronize()
        self._waits.report()
        (kind, microbatch), self._running = self._running, None
        self._hooks.on_instruction_end(kind, microbatch=microbatch)


def meets_in_microbatch(model: torch.nn.Module) -> Callable[[], bool]:
    """Return what tells, before a forward, whether ranks wait for each other in its microbatch."""
    groups = fsdp_groups(model)
    if groups:
        return lambda: any(map(_gathers, groups)) and any(map(_meets_in_backward, groups))
    replicated = [
        module for module in model.modules() if isinstance(module, DistributedDataParallel)
    ]
    return lambda: all(module.require_backward_grad_sync for module in replicated)


def _gathers(group: Any) -> bool:  # noqa: ANN401 - private to torch
    """Return whether the next forward gathers parameters, which may be whole already."""
    return not getattr(group, "is_unsharded", False)


def _meets_in_backward(group: Any) -> bool:  # noqa: ANN401 - private to torch
    """Return whether a backward gathers parameters again, or reduces gradients."""
    gathers_again = getattr(group, "_reshard_after_forward", True)
    return bool(getattr(group, "reduce_grads", True) or gathers_again)
