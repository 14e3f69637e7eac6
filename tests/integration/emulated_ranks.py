"""Ranks of one pipeline on emulated GPUs in virtual time, in a live planner's job."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from tests.planner.patience import PATIENCE_S

from flyball_client.api.planner_client import PlannerClient
from flyball_client.gpu.emulated import EmulatedGpu
from flyball_client.helper.rank_agent import LinkTimes
from flyball_client.session.rank_session import RankSession
from flyball_lab.emulation.emulated_pipeline import EmulatedRank, RankClock, run_step

# A step must not pass so fast that the ranks' posts of it are far apart.
_STEP_S = 0.02


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


class EmulatedTraining:
    """Ranks that run step after step.

    Attributes:
        times_s: what steps took by the version of the plan, without its first one.
    """

    def __init__(
        self, ranks: Sequence[EmulatedRank], *, tail_s: float, hops_s: tuple[float, ...]
    ) -> None:
        self._ranks = ranks
        self.tail_s, self._hops_s = tail_s, hops_s
        self.times_s: dict[int, list[float]] = defaultdict(list)

    def run(self, is_over: Callable[[], bool]) -> None:
        """Run steps until this is so."""
        deadline_s = time.monotonic() + PATIENCE_S
        before: int | None = None
        while not is_over():
            assert time.monotonic() < deadline_s, f"it takes too long: {self.times_s}"
            began_s = time.monotonic()
            measured = run_step(
                self._ranks,
                num_stages=len(self._ranks),
                transfer_time_s=self._hops_s,
                tail_time_s=self.tail_s,
            )
            versions = {of_rank.plan_version for of_rank in measured}
            version = versions.pop() if len(versions) == 1 else None
            if version is not None and version == before:
                self.times_s[version].append(max(of_rank.time_s for of_rank in measured))
            before = version
            time.sleep(max(0.0, began_s + _STEP_S - time.monotonic()))


@contextmanager
def started(
    ranks: Sequence[EmulatedRank], *, tail_s: float = 0.0, hops_s: tuple[float, ...] | None = None
) -> Iterator[EmulatedTraining]:
    """Start the ranks and close them at the end; `hops_s` is None: transfers take no time."""
    with ExitStack() as stack:
        for rank in ranks:
            rank.session.start()
            stack.callback(rank.session.close)
        no_hops_s = (0.0,) * (len(ranks) - 1)
        yield EmulatedTraining(ranks, tail_s=tail_s, hops_s=hops_s or no_hops_s)
