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

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, replace
from datetime import timedelta
from typing import Literal, Unpack

import torch
import torch.distributed
from torch.distributed.device_mesh import DeviceMesh

from flyball_client.session.rank_session import RankSession
from flyball_integrations.shared.attach_options import AttachOptions, check_options
from flyball_integrations.shared.attachment import Overrides, RankEnds, RankLayout
from flyball_integrations.shared.order_agreement import RankPlace, open_negotiation
from flyball_integrations.shared.rank_memory import check_free_memory
from flyball_integrations.torch.order_switch import ForwardMeter, TorchOrderSwitch, rehearse
from flyball_integrations.torch.private_schedules import (
    PipelineSchedule,
    check_schedule,
    computations_of,
    has_pairs,
    name_of,
    num_microbatches_of,
    send_at_once,
    stages_of,
)
from flyball_integrations.torch.rank_places import ParallelPlace, find_place
from flyball_integrations.torch.schedule_patch import SchedulePatch, WaitTimes, check_optimizer
from flyball_wire.messages import JobRegistration

_logger = logging.getLogger(__name__)

_TIMEOUT_S = 120.0


@contextmanager
def on_all_ranks_or_none(*, timeout_s: float = _TIMEOUT_S) -> Iterator[None]:
    """Raise on all ranks if one of them fails in the block, so that each can undo its part.

    Every rank must enter it at the same time; it uses gloo, whatever training uses. An error of
    this rank is raised after the others are notified.

    Args:
        timeout_s: timeout in s of each of its two exchanges.

    Raises:
        ValueError: another rank has failed, or does not enter.
    """
    try:
        yield
    except Exception as error:
        _logger.warning(
            "Flyball is not attached to rank %d; the other ranks are notified: %s",
            torch.distributed.get_rank(),
            error,
        )
        try:
            _failed_ranks(has_failed=True, timeout_s=timeout_s)
        except RuntimeError as lost:
            _logger.warning("the other ranks could not be notified: %s", _first_line(lost))
        raise
    try:
        failed = _failed_ranks(has_failed=False, timeout_s=timeout_s)
    except RuntimeError as error:
        raise ValueError(
            f"not all ranks called attach within {timeout_s:g} s of each other, so it is undone"
            f" here: {_first_line(error)}"
        ) from error
    if failed:
        ranks = ", ".join(map(str, failed))
        raise ValueError(f"attach failed on rank {ranks}, so it is undone here; see the log there")


def _failed_ranks(*, has_failed: bool, timeout_s: float) -> list[int]:
    group = torch.distributed.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
    marks = torch.zeros(group.size(), dtype=torch.int64)
    marks[group.rank()] = int(has_failed)
    # Not freed after a failure: that would wait for the rank that has ended.
    torch.distributed.all_reduce(marks, group=group)
    torch.distributed.destroy_process_group(group)
    return [rank for rank, mark in enumerate(marks.tolist()) if mark]


def _first_line(error: RuntimeError) -> str:
    """Return the message without torch's C++ stack."""
    return str(error).partition("\n")[0]


_ATTACHMENT = "_flyball_attachment"
_ORDERS = ("own", "envpipe")


def attach(
    schedule: PipelineSchedule,
    *,
    job_id: str,
    optimizer: torch.optim.Optimizer | None = None,
    order: Literal["own", "envpipe"] = "own",
    free_memory_bytes: int | None = None,
    device_mesh: DeviceMesh | None = None,
    dp_rank: int | None = None,
    tp_rank: int | None = None,
    cp_rank: int | None = None,
    initial_step: int = 0,
    **options: Unpack[AttachOptions],
) -> RankSession:
    """Attach the planner's clocks to this rank, and return its session, already started.

    Call it once on every rank. Global rank 0 registers the job, with the order of all pipeline
    ranks as the schedule has it; every rank registers itself. Without planner or plan, training
    runs at the GPU's default clocks. `schedule.eval` is not hooked. A step is one `schedule.step`.

    Where the schedule has overlapped pairs, the order of messages changes with it: all ranks wait
    for each other, and where one fails, all do.

    Args:
        schedule: any of torch's that trains, its order final.
        job_id: the job's name at the planner; the same on all ranks.
        optimizer: where given, a step lasts until its `step` is over, or the next
            `schedule.step` begins, so that time and energy of the optimizer are measured too.
        order: `own` is the schedule's; `envpipe` is run once there is a plan with it, and 1F1B
            until then; for a `Schedule1F1B` only.
        free_memory_bytes: with `envpipe`: bytes of this rank's device free beside what 1F1B
            holds; default: found on a GPU, when two steps are over.
        device_mesh: mesh of all ranks, by which a rank's place in data, tensor and context
            parallelism is found; default: that of the parameters that are DTensors.
        dp_rank: rank in data parallelism, from 0, instead of a mesh; 0 if only tp or cp is given.
        tp_rank: likewise in tensor parallelism.
        cp_rank: likewise in context parallelism.
        initial_step: number of the first step, where training resumes.
        options: how to plan, and the rank's planner and GPU;
            `help("flyball_integrations.shared.attach_options")` describes them.

    Raises:
        ValueError: Flyball is already attached, or cannot be attached to this schedule; an argument
            or environment variable cannot be used; several pipelines have neither mesh nor ranks;
            with overlapped pairs, another rank failed or did not attach. Nothing stays open then.
        TypeError: there is no such option.
        GpuError, OSError: with `strict`, clocks of this rank's GPU cannot be set.
    """
    check_options(attach, options)
    given = {"dp_rank": dp_rank, "tp_rank": tp_rank, "cp_rank": cp_rank}
    with ExitStack() as opened:
        with on_all_ranks_or_none() if has_pairs(schedule) else nullcontext():
            _check(schedule, optimizer, order=order, free_memory_bytes=free_memory_bytes)
            place = find_place(stages_of(schedule), mesh=device_mesh, given=given)
            ends = _open_ends(
                opened, options, schedule, place, job_id=job_id, initial_step=initial_step
            )
            session = _open_session(ends, schedule, optimizer, order, free_memory_bytes)
        schedule.__dict__[_ATTACHMENT] = opened.pop_all()  # `detach` closes it, last first
    return session


def detach(schedule: PipelineSchedule) -> None:
    """Restore the clock, schedule and stages exactly; call it on every rank.

    Without an attachment it has no effect.
    """
    attachment: ExitStack | None = schedule.__dict__.pop(_ATTACHMENT, None)
    if attachment is not None:
        attachment.close()


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
    )
    if name is not None:
        return registration
    by_rank = computations_of(schedule)
    places = tuple(tuple(sorted({one.virtual_stage for one in own})) for own in by_rank)
    if places == tuple((stage,) for stage in range(len(by_rank))):
        order = tuple(tuple((one.kind, one.microbatch) for one in own) for own in by_rank)
        return replace(registration, order=order)
    with_chunks = tuple(
        tuple((one.kind, one.microbatch, chunks.index(one.virtual_stage)) for one in own)
        for own, chunks in zip(by_rank, places, strict=True)
    )
    return replace(registration, order=with_chunks, virtual_stages=places)


def _check(
    schedule: PipelineSchedule,
    optimizer: torch.optim.Optimizer | None,
    *,
    order: str,
    free_memory_bytes: int | None,
) -> None:
    check_schedule(schedule)
    if _ATTACHMENT in schedule.__dict__:
        raise ValueError("Flyball is already attached to this schedule; call detach first")
    check_optimizer(optimizer)
    _check_order(schedule, order=order, free_memory_bytes=free_memory_bytes)


def _check_order(schedule: PipelineSchedule, *, order: str, free_memory_bytes: int | None) -> None:
    if order not in _ORDERS:
        raise ValueError(f"order must be one of {', '.join(_ORDERS)}, not {order!r}")
    if order == "own":
        return
    if name_of(schedule) != "1f1b":
        raise ValueError(
            f"order={order!r} is 1F1B with more forwards in front, for a Schedule1F1B, not for"
            f" {type(schedule).__name__}"
        )
    check_free_memory(f"order={order!r}", free_memory_bytes, stages_of(schedule)[0].device)
    rehearse(schedule)


def _open_ends(
    opened: ExitStack,
    options: AttachOptions,
    schedule: PipelineSchedule,
    place: ParallelPlace,
    *,
    job_id: str,
    initial_step: int,
) -> RankEnds:
    stages = stages_of(schedule)
    rank, stage = torch.distributed.get_rank(), stages[0].group_rank
    return RankEnds(
        opened,
        options,
        job_id=job_id,
        layout=RankLayout(rank=rank, stage=stage, **asdict(place)),
        initial_step=initial_step,
        num_chunks=len(stages),
    )


def _open_session(
    ends: RankEnds,
    schedule: PipelineSchedule,
    optimizer: torch.optim.Optimizer | None,
    order: str,
    free_memory_bytes: int | None,
) -> RankSession:
    """Return the started session, hooked into the schedule, and register the job."""
    registration = registration_of(schedule)
    if order != "own":
        registration = replace(registration, schedule=order)
    registering = ends.registering(registration)
    (stage, *_) = stages_of(schedule)
    meter = ForwardMeter(stage.device)
    orders = None
    # Checks come first; collective calls of all ranks come last.
    if order != "own":
        negotiation = open_negotiation(
            RankPlace(
                rank=torch.distributed.get_rank(),
                stage=stage.group_rank,
                num_stages=stage.group_size,
                num_microbatches=num_microbatches_of(schedule),
            ),
            meter,
            free_memory_bytes=free_memory_bytes,
            on_memory=registering.begin,
        )
        orders = TorchOrderSwitch(schedule, negotiation=negotiation, meter=meter)
        ends.opened.callback(orders.close)
    hooks = ends.device_hooks(stage.device, is_own_order=orders is None)
    session = ends.open_session(None if orders is None else orders.choose_plan, hooks=hooks)
    patch = SchedulePatch(
        schedule,
        hooks.of(session),
        synchronize=hooks.synchronize,
        around_step=nullcontext if orders is None else orders.around_step,
        wrap_forward=meter.wrap,
        waits=WaitTimes(hooks.transfer_timer(session)),
        optimizer=optimizer,
    )
    ends.opened.callback(patch.remove)
    in_pieces = Overrides()
    ends.opened.callback(in_pieces.remove)
    send_at_once(schedule, in_pieces)
    session.start()
    if orders is None:
        registering.begin()
    return session
