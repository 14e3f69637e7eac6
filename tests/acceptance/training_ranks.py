"""Four ranks that train, each a process of its own, in step with each other, until they are told.

Each rank runs a session on an emulated GPU in scaled real time. A barrier after every step stands
for the pipeline: a rank that stops, stops them all.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Barrier, Event
from typing import Any

from tests.planner.patience import wait_until

from flyball_client.api.planner_client import PlannerClient
from flyball_client.gpu.emulated import EmulatedGpu
from flyball_client.session.planner_link import LinkTimes
from flyball_client.session.rank_session import RankSession
from flyball_profiles.examples import load_example_profile
from flyball_profiles.stage_profile import StageProfile

NUM_RANKS = 4
# Of an emulated GPU, for one microbatch: a step takes some tens of milliseconds, and what the
# ranks compute themselves, which grows with the instructions, little of them.
TIME_SCALE = 0.2
TIME_SCALE_OF_LONG_STEPS = 1.0
BLOCKING_POWER_W = 83.64
JOB = "trained"
_LINK_TIMES = LinkTimes(poll_wait_s=2.0, gather_s=0.1, first_retry_s=0.05, longest_retry_s=0.2)
_BARRIER_TIMEOUT_S = 60.0


def trained_profile() -> StageProfile:
    """Return what the emulated GPUs take."""
    return load_example_profile().select_stages(tuple(range(NUM_RANKS)))


@dataclass(frozen=True, kw_only=True)
class _Shared:
    """What a rank and the test tell each other.

    Attributes:
        num_steps: that the rank has trained.
        version: the plan version of its last step; 0: none.
        num_dropped: measurements that the planner will never see, at the end.
    """

    stopping: Event
    is_over: Synchronized[bool]
    barrier: Barrier
    num_steps: Synchronized[int]
    version: Synchronized[int]
    num_dropped: Synchronized[int]


@dataclass(frozen=True, kw_only=True)
class TrainingRanks:
    """The ranks as the test sees them."""

    processes: Sequence[ForkServerProcess]
    shared: Sequence[_Shared]

    def num_steps(self) -> list[int]:
        """Wait until each rank has trained."""
        return [rank.num_steps.value for rank in self.shared]

    def versions(self) -> set[int]:
        """Plan versions of the ranks' last steps; 0: none."""
        return {rank.version.value for rank in self.shared}

    def go_on(self, num_steps: int = 20) -> None:
        """Wait until each rank has trained so many steps more."""
        wanted = [done + num_steps for done in self.num_steps()]
        wait_until(
            lambda: all(done >= least for done, least in zip(self.num_steps(), wanted, strict=True))
        )
        assert all(process.is_alive() for process in self.processes)

    def stop(self) -> list[int]:
        """End training, and tell how many steps each rank has trained."""
        for rank in self.shared:
            rank.stopping.set()
        for process in self.processes:
            process.join(_BARRIER_TIMEOUT_S)
        assert [process.exitcode for process in self.processes] == [0] * NUM_RANKS
        return self.num_steps()

    def num_dropped(self) -> int:
        """Measurements that were lost, over all ranks; after `stop`."""
        return sum(rank.num_dropped.value for rank in self.shared)


@contextmanager
def training_ranks(
    planner_urls: Sequence[str], *, num_microbatches: int = 4, time_scale: float = TIME_SCALE
) -> Iterator[TrainingRanks]:
    """Ranks that train with these planners, each with the next; killed if they still run."""
    forking = multiprocessing.get_context("forkserver")
    forking.set_forkserver_preload([__name__])  # imported once for all ranks of a test process
    stopping, barrier = forking.Event(), forking.Barrier(NUM_RANKS)
    is_over = forking.Value("b", False)
    shared = [
        _Shared(
            stopping=stopping,
            is_over=is_over,
            barrier=barrier,
            num_steps=forking.Value("q", 0),
            version=forking.Value("q", 0),
            num_dropped=forking.Value("q", 0),
        )
        for _ in range(NUM_RANKS)
    ]
    processes = [
        forking.Process(
            target=_train,
            args=(
                planner_urls[rank % len(planner_urls)],
                rank,
                num_microbatches,
                time_scale,
                vars(shared[rank]),
            ),
        )
        for rank in range(NUM_RANKS)
    ]
    for process in processes:
        process.start()
    try:
        yield TrainingRanks(processes=processes, shared=shared)
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join(_BARRIER_TIMEOUT_S)


def _train(
    planner_url: str, rank: int, num_microbatches: int, time_scale: float, told: dict[str, Any]
) -> None:
    shared = _Shared(**told)
    gpu = EmulatedGpu(
        trained_profile(),
        rank,
        blocking_power_w=BLOCKING_POWER_W,
        time_scale=time_scale / num_microbatches,
    )
    with PlannerClient(planner_url) as planner:
        session = RankSession(
            gpu=gpu, planner=planner, job_id=JOB, rank=rank, stage=rank, times=_LINK_TIMES
        )
        with session:
            while not shared.is_over.value:
                _train_step(session, rank, num_microbatches)
                shared.version.value = session.active_version or 0
                shared.num_steps.value += 1
                shared.barrier.wait(_BARRIER_TIMEOUT_S)
                if rank == 0:
                    # So that all stop after the same step.
                    shared.is_over.value = shared.stopping.is_set()
                shared.barrier.wait(_BARRIER_TIMEOUT_S)
        shared.num_dropped.value = session.num_dropped_measurements


def _train_step(session: RankSession, rank: int, num_microbatches: int) -> None:
    """One step in the order of 1F1B."""
    num_warm_up = min(NUM_RANKS - rank - 1, num_microbatches)
    kinds = ["forward"] * num_warm_up
    kinds += ["forward", "backward"] * (num_microbatches - num_warm_up)
    kinds += ["backward"] * num_warm_up
    session.on_step_begin()
    for kind in kinds:
        session.on_instruction_begin(kind)
        session.on_instruction_end(kind)
    session.on_step_end()
