"""Flyball in a DeepSpeed pipeline: one line in a training script, nothing forked.

    engine, *_ = deepspeed.initialize(model=PipelineModule(...), ...)
    session = flyball_integrations.deepspeed_pipeline.attach(engine, job_id="gpt")
    for _ in range(num_steps):
        engine.train_batch(data)
    flyball_integrations.deepspeed_pipeline.detach(engine)

Only attributes of this engine object are set, and `detach` removes them again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Literal

import torch.distributed
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.pipe.engine import PipelineEngine

from flyball_client.gpu._base import GpuDevice, InstructionObserver
from flyball_client.gpu.open_gpu import open_local_gpu
from flyball_client.rank_session import RankSession
from flyball_client.rank_settings import RankSettings, WithoutPlanner
from flyball_client.wire import JobRegistration
from flyball_integrations.deepspeed_engine_patch import EnginePatch
from flyball_integrations.eager_p2p import EagerP2P
from flyball_integrations.job_registrar import JobRegistrar

_ATTACHMENT = "_flyball_attachment"


def attach(
    engine: PipelineEngine,
    *,
    job_id: str,
    planner_url: str | None = None,
    token: str | None = None,
    without_planner: WithoutPlanner | None = None,
    lease_s: float | None = None,
    gpu: GpuDevice | None = None,
    observer: InstructionObserver | None = None,
    p2p: Literal["stock", "eager"] = "stock",
    gpu_type: str | None = None,
    blocking_power_w: Sequence[float] | None = None,
    policy: str | None = None,
    reconfigure: str = "balanced",
    target: str = "fastest",
    effort: str = "normal",
) -> RankSession:
    """Let the planner set the clocks of this rank; call it once on every rank.

    Rank 0 registers the job (stages and microbatches as the engine has them), every rank
    registers itself. While the planner is away or has no plan, training goes on at the GPU's
    default clocks. `engine.eval_batch` stays untouched: it runs at whatever clock is in force.

    Args:
        engine: DeepSpeed's `PipelineEngine`.
        job_id: the job's name at the planner; the same on all ranks.
        planner_url: default: `FLYBALL_PLANNER_URL`; without either no planner is asked.
        token: default: `FLYBALL_TOKEN`.
        without_planner: `last-plan` or `default-clocks`, while the planner is lost; default:
            `FLYBALL_WITHOUT_PLANNER`, else the last plan.
        lease_s: without a hook for so long the clock is given back, s; default:
            `FLYBALL_LEASE_S`, else 30.
        gpu: the device to set; default: the GPU of this process's local rank.
        observer: told of every instruction as it begins and ends; default: an emulated
            `gpu` itself, otherwise nobody.
        p2p: `eager` posts sends at once (gloo only, see eager_p2p.py); `stock` leaves
            DeepSpeed's.
        gpu_type: name in the GPU table (`a100`), for its blocking power.
        blocking_power_w: W of a waiting GPU, one value or one per stage; wins over `gpu_type`.
        policy: planning policy; None: the planner's default.
        reconfigure: `default`, `greedy` or `balanced`.
        target: what the planner plans for.
        effort: `low`, `normal` or `high`: how long policy `frontier` searches at the planner.

    Returns:
        The rank's session, already started.

    Raises:
        ValueError: the engine already has Flyball attached, `p2p` is neither of the two,
            eager P2P is asked for without gloo, the planner's address or token cannot be one,
            or a variable of the environment cannot be used. Nothing stays open then.
        GpuError: this rank's GPU cannot be found.
    """
    if _ATTACHMENT in vars(engine):
        raise ValueError("Flyball is already attached to this engine; call detach(engine) first")
    if p2p not in {"stock", "eager"}:
        raise ValueError(f"p2p must be 'stock' or 'eager', not {p2p!r}")
    with ExitStack() as opened:
        # First what may be refused; what every rank has to do at the same time comes last.
        settings = RankSettings.read(
            os.environ,
            planner_url=planner_url,
            token=token,
            without_planner=without_planner,
            lease_s=lease_s,
        )
        planner = settings.open_planner()
        if planner is not None:
            opened.callback(planner.close)
        device = gpu
        if device is None:
            device = open_local_gpu(settings.local_rank, os.environ)
            opened.callback(device.close)
        session = RankSession(
            gpu=device,
            job_id=job_id,
            rank=engine.global_rank,
            stage=engine.stage_id,
            planner=planner,
            observer=observer,
            without_planner=settings.without_planner,
            lease_s=settings.lease_s,
            initial_step=engine.global_steps,
        )
        opened.callback(session.close)
        around_step = _open_eager_p2p(engine, opened) if p2p == "eager" else nullcontext
        if planner is not None and engine.global_rank == 0:
            registration = JobRegistration(
                num_stages=engine.num_stages,
                num_microbatches=engine.micro_batches,
                num_ranks=torch.distributed.get_world_size(),
                policy=policy,
                reconfigure=reconfigure,
                target=target,
                effort=effort,
                blocking_power_w=None if blocking_power_w is None else tuple(blocking_power_w),
                gpu=gpu_type,
                emulated=device.is_emulated,
            )
            registrar = JobRegistrar(planner, job_id=job_id, registration=registration)
            opened.callback(registrar.close)
        synchronize = get_accelerator().synchronize
        patch = EnginePatch(engine, session, synchronize=synchronize, around_step=around_step)
        opened.callback(patch.remove)
        session.start()
        # `detach` closes all of it, the last first.
        vars(engine)[_ATTACHMENT] = opened.pop_all()
    return session


def detach(engine: PipelineEngine) -> None:
    """Give the clock back and leave the engine exactly as it was; once on every rank.

    Without an attachment it does nothing.
    """
    attachment: ExitStack | None = vars(engine).pop(_ATTACHMENT, None)
    if attachment is not None:
        attachment.close()


def _open_eager_p2p(
    engine: PipelineEngine, opened: ExitStack
) -> Callable[[], AbstractContextManager[None]]:
    eager = EagerP2P(engine.grid)
    opened.callback(eager.close)
    return eager.in_force
