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
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal

import torch.distributed
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.pipe.engine import PipelineEngine

from flyball_client.gpu._base import GpuDevice, InstructionObserver
from flyball_client.gpu.nvml import NvmlGpu, visible_gpu_uuid
from flyball_client.planner_client import PlannerClient
from flyball_client.rank_session import RankSession
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
    gpu: GpuDevice | None = None,
    observer: InstructionObserver | None = None,
    p2p: Literal["stock", "eager"] = "stock",
    gpu_type: str | None = None,
    blocking_power_w: Sequence[float] | None = None,
    policy: str | None = None,
    reconfigure: str = "balanced",
    target: str = "fastest",
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
        gpu: the device to set; default: the NVML GPU of this process's local rank.
        observer: told of every instruction as it begins and ends; default: an emulated
            `gpu` itself, otherwise nobody.
        p2p: `eager` posts sends at once (gloo only, see eager_p2p.py); `stock` leaves
            DeepSpeed's.
        gpu_type: name in the GPU table (`a100`), for its blocking power.
        blocking_power_w: W of a waiting GPU, one value or one per stage; wins over `gpu_type`.
        policy: planning policy; None: the planner's default.
        reconfigure: `default`, `greedy` or `balanced`.
        target: what the planner plans for.

    Returns:
        The rank's session, already started.

    Raises:
        ValueError: the engine already has Flyball attached, `p2p` is neither of the two, or
            eager P2P is asked for without gloo.
        GpuError: this rank's GPU cannot be found.
    """
    if _ATTACHMENT in vars(engine):
        raise ValueError("Flyball is already attached to this engine; call detach(engine) first")
    if p2p not in {"stock", "eager"}:
        raise ValueError(f"p2p must be 'stock' or 'eager', not {p2p!r}")
    eager = EagerP2P(engine.grid) if p2p == "eager" else None
    device = gpu if gpu is not None else _local_gpu()
    registration = JobRegistration(
        num_stages=engine.num_stages,
        num_microbatches=engine.micro_batches,
        num_ranks=torch.distributed.get_world_size(),
        policy=policy,
        reconfigure=reconfigure,
        target=target,
        blocking_power_w=None if blocking_power_w is None else tuple(blocking_power_w),
        gpu=gpu_type,
        emulated=device.is_emulated,
    )
    planner = _planner(planner_url, token)
    registrar = None
    if planner is not None and engine.global_rank == 0:
        registrar = JobRegistrar(planner, job_id=job_id, registration=registration)
    session = RankSession(
        gpu=device,
        job_id=job_id,
        rank=engine.global_rank,
        stage=engine.stage_id,
        planner=planner,
        observer=observer,
        initial_step=engine.global_steps,
    )
    patch = EnginePatch(
        engine,
        session,
        synchronize=get_accelerator().synchronize,
        around_step=nullcontext if eager is None else eager.in_force,
    )
    vars(engine)[_ATTACHMENT] = _Attachment(
        patch=patch,
        session=session,
        eager=eager,
        registrar=registrar,
        planner=planner,
        opened_gpu=device if gpu is None else None,
    )
    session.start()
    return session


def detach(engine: PipelineEngine) -> None:
    """Give the clock back and leave the engine exactly as it was; once on every rank.

    Without an attachment it does nothing.
    """
    attachment: _Attachment | None = vars(engine).get(_ATTACHMENT)
    if attachment is None:
        return
    del vars(engine)[_ATTACHMENT]
    attachment.close()


@dataclass(frozen=True, kw_only=True)
class _Attachment:
    """All that `attach` made for one engine."""

    patch: EnginePatch
    session: RankSession
    eager: EagerP2P | None
    registrar: JobRegistrar | None
    planner: PlannerClient | None
    opened_gpu: GpuDevice | None

    def close(self) -> None:
        self.patch.remove()
        if self.registrar is not None:
            self.registrar.close()
        self.session.close()
        if self.planner is not None:
            self.planner.close()
        if self.opened_gpu is not None:
            self.opened_gpu.close()
        if self.eager is not None:
            self.eager.close()


def _planner(planner_url: str | None, token: str | None) -> PlannerClient | None:
    url = planner_url or os.environ.get("FLYBALL_PLANNER_URL")
    if not url:
        return None
    return PlannerClient(url, token=token or os.environ.get("FLYBALL_TOKEN") or None)


def _local_gpu() -> GpuDevice:
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    return NvmlGpu.open(uuid=visible_gpu_uuid(local_rank, os.environ))
