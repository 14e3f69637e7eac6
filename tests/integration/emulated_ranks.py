"""A rank of one pipeline on an emulated GPU in virtual time, in a live planner's job."""

from __future__ import annotations

from collections.abc import Iterable

from flyball_client.api.planner_client import PlannerClient
from flyball_client.gpu.emulated import EmulatedGpu
from flyball_client.session.planner_link import LinkTimes
from flyball_client.session.rank_session import RankSession
from flyball_lab.emulation.emulated_pipeline import EmulatedRank, RankClock


def emulated_rank(
    client: PlannerClient,
    gpu: EmulatedGpu,
    clock: RankClock,
    *,
    job_id: str,
    stage: int,
    order: Iterable[tuple[str, int]],
) -> EmulatedRank:
    """The rank of this stage, which runs instructions in this order; not started."""
    session = RankSession(
        gpu=gpu,
        job_id=job_id,
        rank=stage,
        stage=stage,
        planner=client,
        times=LinkTimes(poll_wait_s=1.0),
    )
    return EmulatedRank(
        pipeline=0, stage=stage, order=tuple(order), session=session, gpu=gpu, clock=clock
    )
