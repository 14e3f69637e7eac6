"""Flyball in torch.distributed.pipelining: one line in a training script, nothing forked.

    schedule = ScheduleInterleaved1F1B(stages, num_microbatches, loss_fn=loss_fn)
    session = flyball_integrations.torch_pipelining.attach(schedule, job_id="llama")
    for batch in batches:
        schedule.step(batch)
        optimizer.step()
    flyball_integrations.torch_pipelining.detach(schedule)

Only attributes of this schedule and its stages are set, and `detach` removes them again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from typing import Literal

import torch
import torch.distributed

from flyball_client.gpu._base import GpuDevice, InstructionObserver
from flyball_client.rank_session import RankSession
from flyball_client.rank_settings import WithoutPlanner
from flyball_client.wire import JobRegistration
from flyball_integrations.attachment import Overrides, Registering, open_rank
from flyball_integrations.order_agreement import OrderAgreement
from flyball_integrations.order_negotiation import OrderNegotiation, RankPlace
from flyball_integrations.rank_memory import free_cuda_bytes
from flyball_integrations.torch_joint_attach import on_all_ranks_or_none
from flyball_integrations.torch_memory import ForwardMeter
from flyball_integrations.torch_order_switch import TorchOrderSwitch, rehearse
from flyball_integrations.torch_schedule_patch import SchedulePatch, check_optimizer
from flyball_integrations.torch_schedules import (
    PipelineSchedule,
    PipelineStage,
    check_schedule,
    computations_of,
    has_pairs,
    name_of,
    num_microbatches_of,
    send_at_once,
    stages_of,
)
from flyball_integrations.torch_waits import WaitTimes

_ATTACHMENT = "_flyball_attachment"
_ORDERS = ("own", "envpipe")


def attach(
    schedule: PipelineSchedule,
    *,
    job_id: str,
    optimizer: torch.optim.Optimizer | None = None,
    planner_url: str | None = None,
    token: str | None = None,
    without_planner: WithoutPlanner | None = None,
    lease_s: float | None = None,
    gpu: GpuDevice | None = None,
    observer: InstructionObserver | None = None,
    order: Literal["own", "envpipe"] = "own",
    free_memory_bytes: int | None = None,
    dp_rank: int = 0,
    tp_rank: int = 0,
    cp_rank: int = 0,
    initial_step: int = 0,
    gpu_type: str | None = None,
    blocking_power_w: Sequence[float] | None = None,
    policy: str | None = None,
    reconfigure: str = "balanced",
    target: str = "fastest",
    effort: str = "normal",
) -> RankSession:
    """Let the planner set the clocks of this rank; call it once on every rank.

    Global rank 0 registers the job, with the order of all pipeline ranks as the schedule has
    it; every rank registers itself. While the planner is away or has no plan, training goes on
    at the GPU's default clocks. `schedule.eval` stays untouched.

    Where the schedule has overlapped pairs, the order of messages changes with it: all ranks wait
    for each other, and where one fails, all do.

    A step is one `schedule.step`, which is what a plan plans: where gradients are accumulated
    over several of them, each is a step.

    Args:
        schedule: any of torch's that trains, its order final.
        job_id: the job's name at the planner; the same on all ranks.
        optimizer: where given, a step lasts until its `step` is over, or the next
            `schedule.step` begins, so that time and energy of the optimizer are measured too.
        planner_url: default: `FLYBALL_PLANNER_URL`; without either no planner is asked.
        token: default: `FLYBALL_TOKEN`.
        without_planner: `last-plan` or `default-clocks`, while the planner is lost; default:
            `FLYBALL_WITHOUT_PLANNER`, else the last plan.
        lease_s: without a hook for so long the clock is given back, s; default:
            `FLYBALL_LEASE_S`, else 30.
        gpu: the device to set; default: the GPU of this process's local rank.
        observer: told of every instruction as it begins and ends; default: an emulated
            `gpu` itself, otherwise nobody.
        order: `own` is the schedule's; `envpipe` is run once there is a plan with it, and 1F1B
            until then; for a `Schedule1F1B` only.
        free_memory_bytes: with `envpipe`: bytes of this rank's device free beside what 1F1B
            holds; default: found on a GPU, when two steps are over.
        dp_rank: which of the data-parallel pipelines this rank belongs to, from 0.
        tp_rank: within the tensor-parallel group, from 0.
        cp_rank: within the context-parallel group, from 0.
        initial_step: number of the first step, where training resumes.
        gpu_type: name in the GPU table (`a100`), for its blocking power.
        blocking_power_w: W of a waiting GPU, one value or one per pipeline rank; wins over
            `gpu_type`.
        policy: planning policy; None: the planner's default.
        reconfigure: `default`, `greedy` or `balanced`.
        target: what the planner plans for.
        effort: `low`, `normal` or `high`: how long policy `frontier` searches at the planner.

    Returns:
        The rank's session, already started.

    Raises:
        ValueError: the schedule already has Flyball attached, it is none that Flyball can be
            attached to, `order` does not go with it or with this torch, free memory must be
            given, the optimizer cannot tell of its steps, the planner's address or token cannot
            be one, a variable of the environment cannot be used, or of a schedule with overlapped
            pairs, another rank failed or did not come. Nothing stays open then.
        GpuError: this rank's GPU cannot be found.
    """
    joint = on_all_ranks_or_none() if has_pairs(schedule) else nullcontext()
    with ExitStack() as opened:
        with joint:
            check_schedule(schedule)
            if _ATTACHMENT in schedule.__dict__:
                raise ValueError("Flyball is already attached to this schedule; call detach first")
            check_optimizer(optimizer)
            _check_order(schedule, order=order, free_memory_bytes=free_memory_bytes)
            stage = stages_of(schedule)[0]
            # First what may be refused; what every rank has to do at the same time comes last.
            ends = open_rank(
                opened,
                planner_url=planner_url,
                token=token,
                without_planner=without_planner,
                lease_s=lease_s,
                gpu=gpu,
            )
            registration = registration_of(schedule)
            rank = torch.distributed.get_rank()
            registering = Registering(
                ends.planner if rank == 0 else None,
                job_id=job_id,
                registration=replace(
                    registration,
                    schedule=registration.schedule if order == "own" else order,
                    policy=policy,
                    reconfigure=reconfigure,
                    target=target,
                    effort=effort,
                    blocking_power_w=None if blocking_power_w is None else tuple(blocking_power_w),
                    gpu=gpu_type,
                    emulated=ends.gpu.is_emulated,
                ),
            )
            opened.callback(registering.close)
            meter = ForwardMeter(stage.device)
            orders = None
            if order != "own":
                orders = _open_orders(schedule, meter, registering, free_memory_bytes)
                opened.callback(orders.close)
            session = RankSession(
                gpu=ends.gpu,
                job_id=job_id,
                rank=rank,
                stage=stage.group_rank,
                dp_rank=dp_rank,
                tp_rank=tp_rank,
                cp_rank=cp_rank,
                planner=ends.planner,
                observer=observer,
                without_planner=ends.settings.without_planner,
                lease_s=ends.settings.lease_s,
                polling_share=ends.settings.polling_share,
                initial_step=initial_step,
                choose_plan=None if orders is None else orders.choose_plan,
            )
            opened.callback(session.close)
            patch = SchedulePatch(
                schedule,
                session,
                synchronize=_synchronize(stage),
                around_step=nullcontext if orders is None else orders.around_step,
                wrap_forward=meter.wrap,
                waits=WaitTimes(session.on_transfer, device=stage.device, clock_s=session.clock_s),
                optimizer=optimizer,
            )
            opened.callback(patch.remove)
            in_pieces = Overrides()
            opened.callback(in_pieces.remove)
            send_at_once(schedule, in_pieces)
            session.start()
            if orders is None:
                registering.begin()
        # `detach` closes all of it, the last first.
        schedule.__dict__[_ATTACHMENT] = opened.pop_all()
    return session


def detach(schedule: PipelineSchedule) -> None:
    """Give the clock back and leave schedule and stages exactly as they were; on every rank.

    Without an attachment it does nothing.
    """
    attachment: ExitStack | None = schedule.__dict__.pop(_ATTACHMENT, None)
    if attachment is not None:
        attachment.close()


def registration_of(schedule: PipelineSchedule) -> JobRegistration:
    """What the planner is told of the pipeline, and of nothing else.

    GPipe and 1F1B by their names, which the planner knows; any other schedule as `explicit`,
    with the order of every pipeline rank and where in the model its chunks are.
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
    if free_memory_bytes is None and stages_of(schedule)[0].device.type != "cuda":
        raise ValueError(
            f"order={order!r} needs to know how much memory is free, which can be found on a"
            " GPU only; give free_memory_bytes"
        )
    if free_memory_bytes is not None and free_memory_bytes < 0:
        raise ValueError(f"free_memory_bytes must not be negative, not {free_memory_bytes}")
    rehearse(schedule)


def _open_orders(
    schedule: PipelineSchedule,
    meter: ForwardMeter,
    registering: Registering,
    free_memory_bytes: int | None,
) -> TorchOrderSwitch:
    (stage,) = stages_of(schedule)
    negotiation = OrderNegotiation(
        RankPlace(
            rank=torch.distributed.get_rank(),
            stage=stage.group_rank,
            num_stages=stage.group_size,
            num_microbatches=num_microbatches_of(schedule),
        ),
        agreement=OrderAgreement(stage=stage.group_rank, num_stages=stage.group_size),
        activation_bytes=lambda: meter.activation_bytes,
        free_bytes=lambda: free_cuda_bytes() if free_memory_bytes is None else free_memory_bytes,
        on_memory=registering.begin,
    )
    return TorchOrderSwitch(schedule, negotiation=negotiation, meter=meter)


def _synchronize(stage: PipelineStage) -> Callable[[], None]:
    """Waits for the computations, and not for receives that were posted ahead.

    Those run on streams of their own; waiting for the whole device would wait for a neighbour
    that may itself be waiting for us.
    """
    device = stage.device
    if device.type == "cpu":
        return lambda: None
    device_module = torch.get_device_module(device)
    return lambda: device_module.current_stream(device).synchronize()
