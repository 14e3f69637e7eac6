"""Times in which a rank waits for other ranks within a training step.

Every rank's step ends when the slowest rank's does, so the time of a step does not tell which rank
that is. Its computation does: the step without the waits for collectives.

- DistributedDataParallel waits once, at the end of each backward, and for buffers before a
  forward.
- FSDP2 (`fully_shard`) waits for parameters before each layer, and for gradients after it.

Other collectives, such as those of SyncBatchNorm or FullyShardedDataParallel, count as computation.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch.autograd import Variable
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from flyball_client.session.instruction_timings import Transfer
from flyball_client.session.rank_session import RankSession
from flyball_client.steps.agreement import Coupling
from flyball_integrations.shared.attachment import Overrides
from flyball_integrations.shared.device_hooks import DeviceHooks
from flyball_integrations.shared.transfer_timers import DeviceTransferTimer, TransferTimer

_logger = logging.getLogger(__name__)

# Private to torch: methods of an FSDP2 parameter group that wait, or launch what they wait for.
FSDP_WAITS = ("unshard", "wait_for_unshard", "post_backward", "finalize_backward")
DDP_WAITS = ("_sync_buffers",)

_MEETING_TIMEOUT = timedelta(seconds=30)


class RankWaits:
    """Timer of the waits within a rank's training steps; it raises nothing into training.

    Args:
        session: session that they are reported to.
        device: of the model; on the CPU a wait is over when it returns, elsewhere it is launched.
        hooks: of a step's instructions; None: the step is the only instruction.
    """

    def __init__(
        self, session: RankSession, *, device: torch.device, hooks: DeviceHooks | None = None
    ) -> None:
        self._session = session
        self._is_on_host = device.type == "cpu"
        self._is_in_step = False
        # Waits that have begun and not ended: only the outermost counts.
        self._depth = 0
        # Backwards of this step that averaged gradients, by autograd's number of each.
        self._averaging: set[int] = set()
        #: Greatest number of backwards in a step at whose ends ranks have met.
        self.most_averaging = 0
        #: Meets the other ranks, where GPUs are emulated.
        self.meet: Callable[[], None] = lambda: None
        #: Whether ranks meet in each forward and backward, and instructions end there.
        self.meets_in_forwards = False
        self._timer = TransferTimer(self._report, clock_s=session.clock_s)
        if hooks is not None:
            self._timer = hooks.transfer_timer(session, self._report)
        elif not self._is_on_host:
            make_event = torch.get_device_module(device).Event
            self._timer = DeviceTransferTimer(self._report, make_event=make_event)

    @property
    def is_in_step(self) -> bool:
        """Return whether waits are timed now."""
        return self._is_in_step

    @property
    def is_padded(self) -> bool:
        """Return whether the GPU is emulated, and pads computations."""
        return self._session.is_padded

    @property
    def step(self) -> int:
        """Number of the current step."""
        return self._session.current_step

    def complete(self) -> None:
        """Let an emulated GPU pad the step's computation."""
        self._session.complete_instruction()

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Time the block as a wait."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """Time the waits in the block, at whose end the device has finished its work."""
        self._is_in_step, self._depth = True, 0
        self._averaging.clear()
        try:
            yield
            self._timer.report()
        except BaseException:
            self._timer.discard()
            raise
        finally:
            self._is_in_step = False

    def report(self) -> None:
        """Report the waits that were launched, after a synchronization with the device."""
        self._timer.report()

    def note_averaging(self, backward: int) -> None:
        """Count a backward that averages gradients; each counts once."""
        self._averaging.add(backward)
        self.most_averaging = max(self.most_averaging, len(self._averaging))

    def begin(self) -> None:
        """Begin a wait; outside of a step it has no effect."""
        self._depth += 1
        if self._is_in_step and self._depth == 1:
            if self._is_on_host:
                self._session.on_wait_begin()
            self._timer.begin()

    def end(self) -> None:
        """End the wait that was begun last."""
        self._depth = max(0, self._depth - 1)
        if self._is_in_step and self._depth == 0:
            self._timer.end("receive", "step", None)

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its time as a wait."""

        def wait(*args: object, **kwargs: object) -> object:
            with self.timed():
                return function(*args, **kwargs)

        return wait

    def _report(
        self,
        transfer: Transfer,
        kind: str,
        *,
        time_s: float,
        microbatch: int | None = None,
        chunk: int = 0,
    ) -> None:
        del transfer, kind, microbatch, chunk
        if not self._is_on_host:
            self._session.on_wait_begin()
        self._session.on_wait_end(time_s=time_s)


def hook_waits(
    model: torch.nn.Module,
    waits: RankWaits,
    overrides: Overrides,
    *,
    num_ranks: int,
    has_microbatches: bool = False,
) -> Callable[[], None]:
    """Time the waits of a model's DistributedDataParallel and FSDP2 modules.

    Args:
        model: module that the training loop calls.
        waits: their timer.
        overrides: restores the methods that are replaced.
        num_ranks: number of ranks; of several, a model without such modules is warned of.
        has_microbatches: True: each forward and backward is an instruction.

    Returns:
        Function that removes the model's hook.
    """
    modules = list(model.modules())
    replicated = [each for each in modules if isinstance(each, DistributedDataParallel)]
    for module in replicated:
        _override(module, DDP_WAITS, waits, overrides)
    groups = fsdp_groups(model)
    for group in groups:
        _override(group, FSDP_WAITS, waits, overrides)
    if num_ranks > 1 and not (replicated or groups):
        _logger.warning(
            "the model has no DistributedDataParallel or FSDP2 module, and there are %d ranks:"
            " waits for the others count as computation, and no straggler is found; attach the"
            " wrapped model",
            num_ranks,
        )
    meeting: _PaddedMeeting | None = None
    hooked = ExitStack()
    waits.meets_in_forwards = bool(groups) and has_microbatches
    if replicated or waits.meets_in_forwards:
        meeting = _PaddedMeeting.of_emulated(
            waits, model, replicated, num_ranks=num_ranks, is_last_alone=not has_microbatches
        )
    if meeting is not None:
        waits.meet = meeting.meet
        hooked.callback(meeting.close)
    if replicated:
        end = _BackwardEnd(waits, replicated, meeting)
        hooked.callback(model.register_forward_hook(end.hook, prepend=True).remove)
    return hooked.close


def coupling_of(
    model: torch.nn.Module, *, num_ranks: int, has_microbatches: bool = False
) -> Coupling:
    """Return where the ranks wait for each other.

    DDP is taken to average once a step, or with microbatches in each of them.
    """
    modules = list(model.modules())
    if any(isinstance(module, FSDPModule) for module in modules):
        return "instruction"
    if num_ranks == 1:
        return "step"
    if any(isinstance(module, DistributedDataParallel) for module in modules):
        return "backward" if has_microbatches else "step"
    return "unknown"


def fsdp_groups(model: torch.nn.Module) -> list[Any]:
    """Return the parameter groups of a model's FSDP2 modules."""
    return [group for module in model.modules() for group in _fsdp_groups(module)]


def _fsdp_groups(module: torch.nn.Module) -> list[Any]:
    """Return the parameter groups of an FSDP2 module; of others none."""
    if not isinstance(module, FSDPModule):
        return []
    state = module._get_fsdp_state()
    # Several from torch 2.13 on.
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        groups = [getattr(state, "_fsdp_param_group", None)]
    return [group for group in groups if group is not None]


def _override(
    target: object, names: tuple[str, ...], waits: RankWaits, overrides: Overrides
) -> None:
    missing = [name for name in names if not callable(getattr(target, name, None))]
    if missing:
        _logger.warning(
            "torch %s has no %s.%s, so waits for other ranks count as computation, and a straggler"
            " is not found",
            torch.__version__,
            type(target).__name__,
            missing[0],
        )
        return
    for name in names:
        overrides.set(target, name, waits.around(getattr(target, name)))


class _PaddedMeeting:
    """Meeting of data-parallel ranks on emulated GPUs, which pad a step's computation.

    The last gradients are on their way before the padding, so no rank would wait for one that pads
    longer, and its time would come to the next step. So each rank pads as its computation ends, and
    then meets the others. A step has as many backwards that exchange gradients as the step before;
    where it is one instruction, it pads at the last of them.

    Args:
        waits: timer of the wait for the others.
        modules: all DistributedDataParallel modules of the model.
        group: group of all ranks, of its own.
        is_last_alone: True: the step is one instruction; False: each backward is.
    """

    def __init__(
        self,
        waits: RankWaits,
        modules: Sequence[DistributedDataParallel],
        group: torch.distributed.ProcessGroup,
        *,
        is_last_alone: bool,
    ) -> None:
        self._waits = waits
        self._modules = modules
        self._is_last_alone = is_last_alone
        self._group: torch.distributed.ProcessGroup | None = group
        self._step = -1
        self._num_backwards = self._num_before = 1

    @classmethod
    def of_emulated(
        cls,
        waits: RankWaits,
        model: torch.nn.Module,
        modules: Sequence[DistributedDataParallel],
        *,
        num_ranks: int,
        is_last_alone: bool,
    ) -> _PaddedMeeting | None:
        """Return a meeting of all ranks; None: GPUs are real, or not all ranks meet."""
        sizes = [module.process_group.size() for module in modules] or [
            parameter.device_mesh.size()
            for parameter in model.parameters()
            if isinstance(parameter, DTensor)
        ]
        if not waits.is_padded or sizes[:1] != [num_ranks]:
            return None
        group = torch.distributed.new_group(backend="gloo", timeout=_MEETING_TIMEOUT)
        return cls(waits, modules, group, is_last_alone=is_last_alone)

    def backward_ends(self) -> None:
        """Pad, and meet the others, where this backward ends an instruction and averages."""
        if not all(module.require_backward_grad_sync for module in self._modules):
            return
        if self._is_last_alone:
            if self._waits.step != self._step:
                self._step, self._num_before = self._waits.step, self._num_backwards
                self._num_backwards = 0
            self._num_backwards += 1
            if self._num_backwards != self._num_before:
                return
        self.meet()

    def meet(self) -> None:
        """Pad, and meet the others."""
        group = self._group
        if group is None:
            return
        self._waits.complete()
        try:
            with self._waits.timed():
                torch.distributed.barrier(group)
        except RuntimeError as error:  # as where ranks have other numbers of steps
            self._group = None
            _logger.warning("emulated ranks do not meet any more: %s", error)

    def close(self) -> None:
        """Free the group; every rank must call it."""
        group, self._group = self._group, None
        # With the default group, all others are freed.
        if group is not None and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group(group)


class _BackwardEnd:
    """Wait of DistributedDataParallel at the end of each backward.

    It is one of autograd's final callbacks, which run in the order in which they were queued. So
    one that is queued when the backward begins runs before it, and one that this queues, after it.
    """

    def __init__(
        self,
        waits: RankWaits,
        modules: Sequence[DistributedDataParallel],
        meeting: _PaddedMeeting | None,
    ) -> None:
        self._waits = waits
        self._modules = modules
        self._meeting = meeting

    def hook(self, module: torch.nn.Module, inputs: object, output: object) -> None:
        """Prepare the backward of a forward's output."""
        del module, inputs
        tensor = differentiable(output)
        if tensor is not None and self._waits.is_in_step:
            # no_sync counts at the forward.
            averages = all(each.require_backward_grad_sync for each in self._modules)
            tensor.register_hook(partial(self._on_backward, averages))

    def _on_backward(self, averages: bool, gradient: torch.Tensor) -> None:
        del gradient
        if averages:
            self._waits.note_averaging(torch._C._current_graph_task_id())
        Variable._execution_engine.queue_callback(self._on_computed)

    def _on_computed(self) -> None:
        if self._meeting is not None:
            self._meeting.backward_ends()
        self._waits.begin()
        Variable._execution_engine.queue_callback(self._waits.end)


def differentiable(value: object) -> torch.Tensor | None:
    """Return the first tensor with a gradient in nested lists, tuples, mappings and dataclasses."""
    if isinstance(value, torch.Tensor):
        return value if value.requires_grad else None
    parts: list[object] = []
    if isinstance(value, Mapping):
        parts = list(value.values())
    elif isinstance(value, list | tuple):
        parts = list(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, field.name) for field in dataclasses.fields(value)]
    return next((found for part in parts if (found := differentiable(part)) is not None), None)
