"""Order of a torch schedule: its own until all ranks have agreed on a plan's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from flyball_integrations.shared.attachment import Overrides
from flyball_integrations.shared.order_agreement import OrderNegotiation
from flyball_integrations.shared.rank_memory import MicrobatchMeter, SavedStorages
from flyball_integrations.shared.stage_orders import StageOrder, one_f_one_b
from flyball_integrations.torch.private_schedules import (
    TESTED_TORCH,
    Computation,
    PipelineSchedule,
    PipelineStage,
    in_order,
    is_training,
    num_microbatches_of,
    stages_of,
)


class ForwardMeter(MicrobatchMeter):
    """Meter of a stage's forwards.

    Buffers to receive into are not counted: torch keeps one for each microbatch of the step in
    any order.

    Args:
        device: of the stage: a GPU, measured by PyTorch's allocator, or the CPU, where the
            storages are counted that autograd saves.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._is_cuda = device.type == "cuda"

    def wrap(self, stage: PipelineStage, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Return the stage's `forward_one_chunk`, measured while it is on."""

        def forward_measured(*args: object, **kwargs: object) -> object:
            if not self.is_on:
                return forward(*args, **kwargs)
            if self._is_cuda:
                before = torch.cuda.memory_allocated()
                output = forward(*args, **kwargs)
                self.add(torch.cuda.memory_allocated() - before)
                return output
            storages = SavedStorages(stage.submod)
            with storages.of_autograd():
                output = forward(*args, **kwargs)
            for tensor in output if isinstance(output, tuple | list) else (output,):
                if isinstance(tensor, torch.Tensor):
                    storages.add(tensor)
            self.add(storages.num_bytes)
            return output

        return forward_measured


class TorchOrderSwitch:
    """Order of one schedule with one stage per rank; every rank must create it.

    torch's own runtime runs an agreed order: it makes the sends and receives that the order
    needs, and none of them waits for the neighbour. Stage, losses and `step` stay the
    schedule's, so evaluations do too.

    Args:
        schedule: a `Schedule1F1B`.
        negotiation: with the other ranks; closed here.
        meter: of what a microbatch in flight holds; on in the step that counts.
    """

    def __init__(
        self, schedule: PipelineSchedule, *, negotiation: OrderNegotiation, meter: ForwardMeter
    ) -> None:
        self.choose_plan = negotiation.choose_plan
        self._schedule = schedule
        self._negotiation = negotiation
        self._meter = meter
        self._runtime: PipelineSchedule | None = None
        self._overrides = Overrides()
        (stage,) = stages_of(schedule)
        # torch's runtime puts an equal one in its place.
        self._overrides.set(stage, "stage_index_to_group_rank", stage.stage_index_to_group_rank)
        self._overrides.set(
            schedule, "_step_microbatches", self._in_force(schedule._step_microbatches)
        )

    @contextmanager
    def around_step(self) -> Iterator[None]:
        """Context of a training step; entered before the session's hook."""
        orders = self._negotiation.on_step_begin()
        if orders is not None:
            self._runtime = in_order(self._schedule, computations(orders))
        is_measured = self._negotiation.is_measured_step
        with self._meter.measuring_step() if is_measured else nullcontext():
            yield

    def close(self) -> None:
        """Restore the schedule's own order; every rank must call it at the same time."""
        self._overrides.remove()
        self._negotiation.close()

    def _in_force(self, own: Callable[..., Any]) -> Callable[..., Any]:
        def step_microbatches(*args: object, **kwargs: object) -> object:
            if self._runtime is None or not is_training(self._schedule):
                return own(*args, **kwargs)
            return self._runtime._step_microbatches(*args, **kwargs)

        return step_microbatches


def rehearse(schedule: PipelineSchedule) -> None:
    """Check before training that this version of torch can run another order.

    Args:
        schedule: a `Schedule1F1B`; it does not change.

    Raises:
        ValueError: this torch cannot.
    """
    (stage,) = stages_of(schedule)
    num_microbatches, num_stages = num_microbatches_of(schedule), stage.group_size
    stock = [one_f_one_b(num_microbatches, num_stages, number) for number in range(num_stages)]
    overrides = Overrides()
    overrides.set(stage, "stage_index_to_group_rank", stage.stage_index_to_group_rank)
    try:
        in_order(schedule, computations(stock))
    except Exception as error:
        # Any exception: another version may differ in its private parts.
        problem = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise ValueError(
            f"torch {torch.__version__} cannot run another order of this schedule ({problem});"
            f" use order='own', or torch {TESTED_TORCH}, with which it is tested"
        ) from error
    finally:
        overrides.remove()


def computations(orders: Sequence[StageOrder]) -> tuple[tuple[Computation, ...], ...]:
    """Return the computations of each pipeline rank in these orders, with one stage a rank."""
    return tuple(
        tuple(
            Computation("forward" if unit.is_forward else "backward", unit.microbatch, stage)
            for unit in order.units
        )
        for stage, order in enumerate(orders)
    )
