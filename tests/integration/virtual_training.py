"""Trainings on emulated GPUs in virtual time, until some steps have run on a planner's plan.

Time passes on a rank where its emulated GPU computes, and where it waits for a message or for the
other ranks. So nothing sleeps, and what is measured does not depend on the machine. The framework
runs its own schedule and sends its own messages, when it does.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any
from unittest import mock

import torch
import torch.distributed
from tests.integration.rank_server import Findings
from tests.integration.trainings import (
    BLOCKING_POWER_W,
    all_ranks_say,
    meet,
    points,
    takes_profile,
)
from tests.planner.patience import wait_until
from torch.distributed import distributed_c10d

from flyball_client.api.planner_client import PlannerClient
from flyball_client.gpu.emulated import IDEAL_GPU, EmulatedGpu, LeapingClock
from flyball_client.session.rank_session import RankSession
from flyball_pipeline.instruction import InstructionKind
from flyball_profiles.rank_merge import whole_stages
from flyball_profiles.stage_profile import OperatingPoint, StageProfile

NUM_RANKS = 3
_NUM_MEASURED = 3
# More messages than are ever under way from one rank to another.
_NUM_MOMENTS = 256
# Of the pipeline ranks, heaviest last: the head weighs more than a block.
_WEIGHTS = (0.9, 0.8, 1.0)
# SM clock MHz: time and power, beside those at the highest.
_CLOCKS = {1410: (1.0, 1.0), 1305: (1.06, 0.87), 1200: (1.14, 0.76), 1050: (1.29, 0.64)}
_POWER_W = 300.0
_NOTHING_S = 0.001


class VirtualTime:
    """This rank's clock, and messages that arrive no earlier than they were sent."""

    def __init__(self) -> None:
        self.clock = LeapingClock()
        shape = (NUM_RANKS, NUM_RANKS, _NUM_MOMENTS)
        # When each message was sent, s, as (sender, receiver, number); shared by all ranks.
        self._moments = torch.from_file(
            os.environ["MOMENTS_FILE"],
            shared=True,
            size=NUM_RANKS**2 * _NUM_MOMENTS,
            dtype=torch.float64,
        ).view(shape)
        self._num_messages: Counter[tuple[int, int]] = Counter()

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Messages inside the block carry the moment of their sending."""
        isend, irecv, rank = torch.distributed.isend, torch.distributed.irecv, _rank()

        def sending(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as torch's
            self._moments[self._next(rank, _peer(args, kwargs))] = self.clock.now_s()
            return isend(*args, **kwargs)

        def receiving(*args: Any, **kwargs: Any) -> Arrival:  # noqa: ANN401 - as torch's
            place = self._next(_peer(args, kwargs), rank)
            return Arrival(
                irecv(*args, **kwargs),
                lambda: self.clock.sleep_until(self._moments[place].item()),
            )

        with (
            mock.patch.multiple(torch.distributed, isend=sending, irecv=receiving),
            mock.patch.multiple(distributed_c10d, isend=sending, irecv=receiving),
        ):
            yield

    def meet(self) -> None:
        """Wait for all ranks, as an optimizer does that clips gradients by a common norm."""
        meet(self.clock)

    def _next(self, sender: int, receiver: int) -> tuple[int, int, int]:
        number = self._num_messages[sender, receiver]
        self._num_messages[sender, receiver] += 1
        return sender, receiver, number % _NUM_MOMENTS


class Arrival:
    """A receive that is over when its message has come."""

    def __init__(self, work: Any, on_arrival: Callable[[], None]) -> None:  # noqa: ANN401
        self._work = work
        self._on_arrival = on_arrival

    def wait(self) -> None:
        """Wait for the message, and until the moment at which it comes."""
        self._work.wait()
        self._on_arrival()


def emulated_gpu_in(virtual_time: VirtualTime, profile: StageProfile) -> EmulatedGpu:
    """This rank's GPU."""
    return EmulatedGpu(
        profile,
        _rank(),
        num_chunks=max(1, len(profile.chunks)),
        blocking_power_w=BLOCKING_POWER_W,
        settings=IDEAL_GPU,
        counter_period_s=0.001,
        clock=virtual_time.clock,
    )


def trained_until_planned(
    session: RankSession,
    step: Callable[[], None],
    *,
    job_id: str,
    profile: StageProfile,
    detach: Callable[[], None],
) -> Findings:
    """Train a step at the highest clock, and on the plan once all ranks have received it."""
    rank = _rank()
    with PlannerClient(os.environ["PLANNER_URL"]) as planner:
        torch.distributed.barrier()
        step()
        if rank == 0:  # the job is registered in the background
            wait_until(lambda: takes_profile(planner, job_id, profile))
        # No step passes until then, or ranks might receive it after its first step.
        wait_until(lambda: len(session.plans) > 0)
        is_over = False
        while not is_over:
            torch.distributed.barrier()
            step()
            num_planned = sum(one.plan_version is not None for one in session.history)
            is_over = all_ranks_say(num_planned >= _NUM_MEASURED)
        timings = session.last_step_timings
        detach()
        job: Findings = {}
        if rank == 0:
            (version,) = planner.list_plans(job_id)
            registration = asdict(planner.get_job(job_id).registration)
            job = {"plan": version.plan, "registration": registration}
    return job | {
        "ran": [[timing.kind, timing.microbatch, timing.chunk] for timing in timings],
        # By step: on the plan or not, time in s, energy in J.
        "steps": [
            (one.plan_version is not None, one.time_s, one.energy_j, one.num_unplanned)
            for one in session.history
        ],
    }


def profile_of(
    forward_s: float, *, num_chunks: int = 1, whole_first_backward: bool = False
) -> StageProfile:
    """Profile of the stages, and of their chunks where there are several.

    Args:
        forward_s: of a microbatch, in the heaviest stage at the highest clock.
        num_chunks: of a stage.
        whole_first_backward: the model's first part does all of a split backward with its
            weights, as torch has it.
    """
    chunks = tuple(
        StageProfile(
            points={
                (stage, kind): of
                for stage in range(NUM_RANKS)
                for kind, of in _kinds(
                    stage,
                    forward_s / num_chunks,
                    is_first=whole_first_backward and stage == chunk == 0,
                ).items()
            },
            num_ranks_per_stage=(1,) * NUM_RANKS,
        )
        for chunk in range(num_chunks)
    )
    return chunks[0] if num_chunks == 1 else whole_stages(chunks)


def _kinds(
    stage: int, heaviest_forward_s: float, *, is_first: bool
) -> dict[InstructionKind, tuple[OperatingPoint, ...]]:
    forward_s = heaviest_forward_s * _WEIGHTS[stage]
    times_s = {
        InstructionKind.FORWARD: forward_s,
        InstructionKind.BACKWARD: 2 * forward_s,
        InstructionKind.BACKWARD_INPUT: _NOTHING_S if is_first else forward_s,
        InstructionKind.BACKWARD_WEIGHT: 2 * forward_s if is_first else forward_s,
    }
    return {
        kind: points(
            [
                (mhz, time_s * slower, _POWER_W * power * time_s * slower)
                for mhz, (slower, power) in _CLOCKS.items()
            ]
        )
        for kind, time_s in times_s.items()
    }


def _peer(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    names = ("dst", "src", "group_dst", "group_src")
    given = [kwargs[name] for name in names if kwargs.get(name) is not None]
    return int(given[0] if given else args[1])


def _rank() -> int:
    rank: int = torch.distributed.get_rank()
    return rank
