"""Flyball in torch.distributed.pipelining: one line in a training script, nothing forked.

    schedule = ScheduleInterleaved1F1B(stages, num_microbatches, loss_fn=loss_fn)
    session = flyball_integrations.torch.pipelining.attach(schedule, job_id="llama")
    for batch in batches:
        schedule.step(batch)
        optimizer.step()
    flyball_integrations.torch.pipelining.detach(schedule)

Only attributes of this schedule and its stages are set, and `detach` removes them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Any, Literal, NamedTuple, TypeVar, Unpack

import torch
import torch.distributed
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from flyball_client.session.rank_session import RankSession
from flyball_client.steps.agreement import Coupling
from flyball_integrations.shared.attach_options import (
    AttachOptions,
    announced_text,
    check_options,
)
from flyball_integrations.shared.attachment import Overrides, RankEnds, RankLayout
from flyball_integrations.shared.device_hooks import DeviceHooks
from flyball_integrations.shared.loading.step_loader import StepLoader
from flyball_integrations.shared.loading.step_work import (
    MicrobatchLengths,
    WholeBatchAnnouncer,
    split_lengths,
)
from flyball_integrations.shared.one_order import on_all_ranks_or_none, order_text
from flyball_integrations.shared.rank_places import find_place
from flyball_integrations.shared.run_order import order_to_run
from flyball_integrations.torch.private_schedules import (
    Computation,
    PipelineSchedule,
    check_schedule,
    computations_of,
    name_of,
    num_microbatches_of,
    rehearse,
    run_in_order,
    send_at_once,
    stages_of,
)
from flyball_integrations.torch.schedule_patch import SchedulePatch, WaitTimes, check_optimizer
from flyball_pipeline.schedules.envpipe import default_extra_forwards
from flyball_wire.messages import JobRegistration
from flyball_wire.orders import OtherOrder

B = TypeVar("B")


class _Attachment(NamedTuple):
    """State that `detach` closes and `steps` uses."""

    #: `detach` closes all of it, the last first.
    opened: ExitStack
    #: None: the work of steps is not announced.
    announcer: WholeBatchAnnouncer | None


_ATTACHMENT = "_flyball_attachment"
_ORDERS = ("own", "envpipe")
# The planner compares those that leave a rank's chunks where they are.
_CLASSES = {
    "1f1b": "Schedule1F1B(stage, ...)",
    "envpipe": 'Schedule1F1B(stage, ...), attach(..., order="envpipe",'
    " extra_forwards=[{extra_forwards}])",
    "zb-h1": "ScheduleInterleavedZeroBubble([stage], ...)",
    "interleaved-1f1b": "ScheduleInterleaved1F1B(stages, ...)",
    "interleaved-zb": "ScheduleInterleavedZeroBubble(stages, ...)",
    "zbv": "ScheduleZBVZeroBubble(stages, ...)",
    "dualpipev": "ScheduleDualPipeV(stages, ...)",
}
_OTHER_ORDERS = tuple(OtherOrder(schedule=name, line=line) for name, line in _CLASSES.items())


def attach(
    schedule: PipelineSchedule,
    *,
    job_id: str,
    optimizer: torch.optim.Optimizer | None = None,
    order: Literal["own", "envpipe"] = "own",
    extra_forwards: Sequence[int] | None = None,
    device_mesh: DeviceMesh | None = None,
    dp_rank: int | None = None,
    tp_rank: int | None = None,
    cp_rank: int | None = None,
    initial_step: int = 0,
    **options: Unpack[AttachOptions],
) -> RankSession:
    """Attach the planner's clocks to this rank, and return its session, already started.

    Call it once on every rank; all wait here and compare their orders. Global rank 0 registers the
    job and its order, every rank itself. Without planner or plan, training runs at the GPU's
    default clocks. A step is one `schedule.step`; `schedule.eval` is not hooked.

    Args:
        schedule: any of torch's that trains, its order final.
        job_id: the job's name at the planner; the same on all ranks.
        optimizer: where given, a step lasts until its `step` is over, or the next step begins.
        order: `own`, or for a `Schedule1F1B` also `envpipe`: 1F1B with more forwards in front.
        extra_forwards: with `envpipe`, for each stage: forwards before its first backward beyond
            those of 1F1B, each of which holds activations; default: one for each later stage.
        device_mesh: mesh of all ranks; default: that of the parameters that are DTensors.
        dp_rank: rank in data parallelism, from 0, instead of a mesh; 0 if only tp or cp is given.
        tp_rank: likewise in tensor parallelism.
        cp_rank: likewise in context parallelism.
        initial_step: number of the first step, where training resumes.
        options: how to plan, and the rank's planner and GPU;
            `help("flyball_integrations.shared.attach_options")` describes them.

    Raises:
        ValueError: Flyball is already attached; the schedule, an argument or environment variable
            cannot be used; several pipelines have neither mesh nor ranks; another rank has failed,
            runs another order or has not called this within 10 minutes. Nothing stays open then.
        TypeError: there is no such option.
        GpuError, OSError: with `strict`, clocks of this rank's GPU cannot be set.
    """
    given = {"dp_rank": dp_rank, "tp_rank": tp_rank, "cp_rank": cp_rank}
    with ExitStack() as opened:
        with on_all_ranks_or_none() as joining:
            check_options(attach, options)
            _check(schedule, optimizer, order=order, extra_forwards=extra_forwards)
            registration, orders = _registration_and_orders(schedule, order, extra_forwards)
            joining.order = order_text(registration, beside=announced_text(options))
            stages = stages_of(schedule)
            place = find_place(stages, mesh=device_mesh, given=given)
            rank, stage = torch.distributed.get_rank(), stages[0].group_rank
            ends = RankEnds(
                opened,
                options,
                device=stages[0].device,
                job_id=job_id,
                layout=RankLayout(rank=rank, stage=stage, **asdict(place)),
                initial_step=initial_step,
                num_chunks=len(stages),
            )
            hooks = ends.device_hooks()
            session = ends.open_session(hooks=hooks)
        with on_all_ranks_or_none():
            ends.start(session, coupling=_coupling_of(schedule))
        _hook(opened, schedule, session, hooks, optimizer=optimizer, orders=orders)
        ends.register(registration, session)
        announcer = WholeBatchAnnouncer(session, hooks) if ends.announces_work else None
        schedule.__dict__[_ATTACHMENT] = _Attachment(opened.pop_all(), announcer)
    return session


def detach(schedule: PipelineSchedule) -> None:
    """Restore the clock, schedule and stages exactly; call it on every rank.

    Without an attachment it has no effect.
    """
    attachment: _Attachment | None = schedule.__dict__.pop(_ATTACHMENT, None)
    if attachment is not None:
        attachment.opened.close()


def steps(
    schedule: PipelineSchedule, loader: Iterable[B], *, lengths: Callable[[B], Any]
) -> StepLoader[B]:
    """Return the loader's batches, each announced while the step before it runs.

    Give `announces_work=True` to `attach` on all ranks, and call this where a rank has batches;
    the others learn of them. Ranks of a pipeline that have batches must have the same. Batches and
    their order are the loader's; one is read ahead. `state_dict` of the loader, and of what this
    returns, is the position before that one.

    Args:
        schedule: that Flyball is attached to; a step is one batch.
        loader: of batches; may be passed over again for each epoch.
        lengths: returns the lengths of the batch's sequences in tokens, a list or a CPU tensor,
            which are split as torch splits the batch; or a list with those of each microbatch; or
            a float, the time of the batch over that in the profile.
    """

    def find_announcer() -> WholeBatchAnnouncer | None:
        attachment: _Attachment | None = schedule.__dict__.get(_ATTACHMENT)
        return None if attachment is None else attachment.announcer

    def split(batch: B) -> MicrobatchLengths:
        return split_lengths(lengths(batch), num_microbatches_of(schedule))

    return StepLoader(loader, lengths=split, find_announcer=find_announcer)


def registration_of(schedule: PipelineSchedule) -> JobRegistration:
    """Return the registration of the pipeline, without planning options.

    GPipe and 1F1B are registered by name; any other schedule as `explicit`, with the order of
    every pipeline rank and the places of its chunks in the model.
    """
    name = name_of(schedule)
    registration = JobRegistration(
        num_stages=stages_of(schedule)[0].group_size,
        num_microbatches=num_microbatches_of(schedule),
        num_ranks=torch.distributed.get_world_size(),
        schedule="explicit" if name is None else name,
        other_orders=_OTHER_ORDERS,
    )
    if name is not None:
        return registration
    by_rank = computations_of(schedule)
    places = tuple(
        tuple(sorted({instruction.virtual_stage for instruction in own})) for own in by_rank
    )
    if places == tuple((stage,) for stage in range(len(by_rank))):
        order = tuple(
            tuple((instruction.kind, instruction.microbatch) for instruction in own)
            for own in by_rank
        )
        return replace(registration, order=order)
    with_chunks = tuple(
        tuple(
            (instruction.kind, instruction.microbatch, chunks.index(instruction.virtual_stage))
            for instruction in own
        )
        for own, chunks in zip(by_rank, places, strict=True)
    )
    return replace(registration, order=with_chunks, virtual_stages=places)


def _registration_and_orders(
    schedule: PipelineSchedule, order: str, extra_forwards: Sequence[int] | None
) -> tuple[JobRegistration, Sequence[Sequence[Computation]]]:
    """Return the registration, and the orders to run in place of the schedule's own; empty: none.

    Raises:
        PipelineError: the stages cannot run them.
    """
    registration = registration_of(schedule)
    if order != "own":
        default = default_extra_forwards(registration.num_stages, registration.num_microbatches)
        extra = default if extra_forwards is None else tuple(extra_forwards)
        registration = replace(registration, schedule=order, extra_forwards=extra)
    planned = order_to_run(registration)
    if planned is None:
        return registration, ()
    orders = tuple(
        tuple(Computation(kind.value, microbatch, stage) for kind, microbatch, _ in instructions)
        for stage, instructions in enumerate(planned.stages)
    )
    rehearse(schedule, orders)
    return registration, orders


def _check(
    schedule: PipelineSchedule,
    optimizer: torch.optim.Optimizer | None,
    *,
    order: str,
    extra_forwards: Sequence[int] | None,
) -> None:
    check_schedule(schedule)
    if _ATTACHMENT in schedule.__dict__:
        raise ValueError("Flyball is already attached to this schedule; call detach first")
    check_optimizer(optimizer)
    if order not in _ORDERS:
        raise ValueError(f"order must be one of {', '.join(_ORDERS)}, not {order!r}")
    if order == "own" and extra_forwards is not None:
        raise ValueError("extra_forwards is for order='envpipe', not 'own'")
    if order != "own" and name_of(schedule) != "1f1b":
        raise ValueError(
            f"order={order!r} is 1F1B with more forwards in front, for a Schedule1F1B, not for"
            f" {type(schedule).__name__}"
        )


def _coupling_of(schedule: PipelineSchedule) -> Coupling:
    """Return where data-parallel ranks meet: torch averages gradients once a step."""
    modules = (module for stage in stages_of(schedule) for module in stage.submod.modules())
    return "instruction" if any(isinstance(module, FSDPModule) for module in modules) else "step"


def _hook(
    opened: ExitStack,
    schedule: PipelineSchedule,
    session: RankSession,
    hooks: DeviceHooks,
    *,
    optimizer: torch.optim.Optimizer | None,
    orders: Sequence[Sequence[Computation]],
) -> None:
    """Hook the schedule, its stages and the optimizer, and set the order.

    Without orders the schedule keeps its own, and the sends of overlapped pairs are split.
    """
    patch = SchedulePatch(
        schedule,
        hooks.of(session),
        synchronize=hooks.synchronize,
        waits=WaitTimes(hooks.transfer_timer(session)),
        optimizer=optimizer,
    )
    opened.callback(patch.remove)
    overrides = Overrides()
    opened.callback(overrides.remove)
    if orders:
        run_in_order(schedule, orders, overrides)
    send_at_once(schedule, overrides)
