"""What each rank of test_torch_pipelining_emulated.py runs: every schedule, emulated and planned.

Time is virtual: it passes on a rank where its emulated GPU computes, and where a message or
another rank is waited for, which carries the moment of its sending. So nothing sleeps, and what
is measured does not depend on the machine. torch's own runtime runs its own order, and sends its
own messages, when it does. With REAL_TIME in the environment it is the machine's time instead.

A loop as torchtitan's: gradients are clipped by a norm that all ranks share, so that the
optimizer's step begins on all of them when the last is done, and a step's time is the
iteration's on every rank.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class

from flyball_client.api.errors import PlannerError
from flyball_client.api.planner_client import PlannerClient
from flyball_client.gpu.emulated import EmulatedGpu
from flyball_client.session.rank_session import RankSession
from flyball_integrations.torch.pipelining import attach, detach
from flyball_lab.emulation.emulated_pipeline import RankClock
from flyball_profiles.stage_profile import InstructionKind, OperatingPoint, StageProfile
from flyball_profiles.stage_profile_csv import write_stage_profile

SINGLE = ("GPipe", "1F1B")
LOOPED = ("LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble")
V_SHAPED = ("ZBVZeroBubble", "DualPipeV")
SCHEDULES = (*SINGLE, *LOOPED, *V_SHAPED)
# DualPipeV needs as many as there are parts of the model.
NUM_MICROBATCHES = {**dict.fromkeys(SCHEDULES, 4), "DualPipeV": 8}
_NUM_MEASURED = 3
_PATIENCE_S = 60.0
# Between steps that take no time, so that a plan can come.
_PAUSE_S = 0.01
_WIDTH = 4
_BLOCKING_POWER_W = 80.0
# Of the pipeline ranks, heaviest last: the head weighs more than a block.
_WEIGHTS = (0.9, 0.8, 0.85, 1.0)
# SM clock MHz: time and power, beside those at the highest.
_CLOCKS = {1410: (1.0, 1.0), 1305: (1.06, 0.87), 1200: (1.14, 0.76), 1050: (1.29, 0.64)}
_POWER_W = 300.0
# Of all microbatches of a step, in the heaviest stage.
_FORWARDS_S = {**dict.fromkeys(SCHEDULES, 0.4), "DualPipeV": 0.8}
_NOTHING_S = 0.001

Findings = dict[str, Any]
Points = tuple[OperatingPoint, ...]


def emulated_run(name: str, messages: torch.Tensor, *, order: str = "own") -> Findings:
    """Train at the highest clock until the plan comes, then some steps with it."""
    rank, num_ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    job_id = f"{name}-{order}"
    schedule, stages = _pipeline(name, rank, num_ranks)
    profile = profile_of(name, num_ranks, _FORWARDS_S[name] / NUM_MICROBATCHES[name])
    clock = None if "REAL_TIME" in os.environ else RankClock()
    gpu = EmulatedGpu(
        profile,
        rank,
        num_chunks=max(1, len(profile.chunks)),
        blocking_power_w=_BLOCKING_POWER_W,
        counter_period_s=0.001,
        clock=clock,
    )
    url = os.environ["PLANNER_URL"]
    loop = _Loop(schedule, stages, clock)
    session = attach(
        schedule,
        job_id=job_id,
        optimizer=loop.optimizer,
        planner_url=url,
        gpu=gpu,
        order=order,  # type: ignore[arg-type] # one of them
        free_memory_bytes=2**30 if order == "envpipe" else None,
        blocking_power_w=[_BLOCKING_POWER_W],
        policy="frontier",
        effort="low",
    )
    if clock is not None:
        for stage in stages:
            _carry_moments(stage, {stage.stage_index for stage in stages}, clock, messages)
    with PlannerClient(url) as planner:
        _until_planned(loop, session, lambda: _gave_profile(planner, job_id, profile))
        plan = planner.list_plans(job_id)[-1].plan if rank == 0 else None
    detach(schedule)
    return {
        "plan": plan,
        # By step; whether with the plan, time in s, energy in J.
        "steps": [
            (one.plan_version is not None, one.time_s, one.energy_j, one.num_unplanned)
            for one in session.history
        ],
    }


def _until_planned(loop: _Loop, session: RankSession, gave_profile: Callable[[], bool]) -> None:
    """Train until all ranks have run some steps with a plan."""
    rank = torch.distributed.get_rank()
    is_given = is_over = False
    deadline_s = time.monotonic() + _PATIENCE_S
    while not is_over:
        if rank == 0 and not is_given and session.current_step > 0:
            # The job is registered in the background, with another order once memory is known.
            is_given = gave_profile()
        loop.step()
        time.sleep(_PAUSE_S)
        num_planned = torch.tensor(sum(one.plan_version is not None for one in session.history))
        torch.distributed.all_reduce(num_planned, op=torch.distributed.ReduceOp.MIN)
        is_late = _rank_0_says(time.monotonic() > deadline_s)
        is_over = is_late or num_planned.item() >= _NUM_MEASURED


def _carry_moments(
    stage: PipelineStage, indices_here: set[int], clock: RankClock, messages: torch.Tensor
) -> None:
    """Let what a rank receives come to it no earlier than it was sent.

    Args:
        stage: hooked; what is set here on top goes with the hooks.
        indices_here: of this rank's stages, which send each other nothing.
        clock: of this rank.
        messages: shared by all ranks: when each was sent, s, as
            (forward or backward, sending stage, microbatch).
    """
    index = stage.stage_index

    def sending(way: int, send: Callable[[int], Any]) -> Callable[[int], Any]:
        def send_ops(microbatch: int) -> object:
            messages[way, index, microbatch] = clock.now_s()
            return send(microbatch)

        return send_ops

    def receiving(way: int, source: int, compute: Callable[..., Any]) -> Callable[..., Any]:
        def compute_when_there(microbatch: int, *args: object, **kwargs: object) -> object:
            if 0 <= source < stage.num_stages and source not in indices_here:
                clock.sleep_until(messages[way, source, microbatch].item())
            return compute(microbatch, *args, **kwargs)

        return compute_when_there

    vars(stage).update(
        get_fwd_send_ops=sending(0, stage.get_fwd_send_ops),
        get_bwd_send_ops=sending(1, stage.get_bwd_send_ops),
        forward_one_chunk=receiving(0, index - 1, stage.forward_one_chunk),
        backward_one_chunk=receiving(1, index + 1, stage.backward_one_chunk),
    )


def profile_of(name: str, num_ranks: int, forward_s: float) -> StageProfile:
    """The stages' profile, with chunks where there are two; a chunk is half a stage.

    Args:
        name: of the schedule.
        num_ranks: of the pipeline.
        forward_s: of a microbatch, in the heaviest stage at the highest clock.
    """
    stages = range(num_ranks)
    if name in SINGLE:
        return _profile(
            {
                (stage, kind): of
                for stage in stages
                for kind, of in _kinds(stage, forward_s).items()
            },
            num_ranks,
        )
    chunks = []
    for chunk in range(2):
        points = {}
        for stage in stages:
            # torch does all of the first part's backward with its weights.
            is_first_part = stage == 0 and chunk == 0
            for kind, of in _kinds(stage, forward_s / 2, is_first_part).items():
                points[stage, kind] = of
        chunks.append(_profile(points, num_ranks))
    whole = {key: _summed([chunk.points[key] for chunk in chunks]) for key in chunks[0].points}
    return _profile(whole, num_ranks, chunks=tuple(chunks))


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    file = str(folder / "moments")
    shape = (2, 2 * torch.distributed.get_world_size(), max(NUM_MICROBATCHES.values()))
    moments = torch.from_file(file, shared=True, size=math.prod(shape), dtype=torch.float64)
    findings = {}
    for name, order in (*((name, "own") for name in SCHEDULES), ("1F1B", "envpipe")):
        if name in os.environ.get("ONLY", name):
            key = name if order == "own" else order
            findings[key] = emulated_run(name, moments.view(shape), order=order)
            print(f"rank {rank}: {key} is over at {time.monotonic():.1f} s", flush=True)
    (folder / f"rank-{rank}.json").write_text(json.dumps(findings))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


# ------------------------------------------------------------------ parts


def _pipeline(name: str, rank: int, num_ranks: int) -> tuple[Any, list[PipelineStage]]:
    if name in SINGLE:
        indices = [rank]
    else:
        indices = [rank, 2 * num_ranks - 1 - rank if name in V_SHAPED else num_ranks + rank]
    num_stages = num_ranks * len(indices)
    device = torch.device("cpu")
    stages = [
        PipelineStage(nn.Linear(_WIDTH, _WIDTH), index, num_stages, device) for index in indices
    ]
    given = stages[0] if name in SINGLE else stages
    make = get_schedule_class(name)
    return make(given, NUM_MICROBATCHES[name], loss_fn=nn.functional.mse_loss), stages


class _Loop:
    """Training, step by step."""

    def __init__(
        self,
        schedule: Any,  # noqa: ANN401 - torch's
        stages: Sequence[PipelineStage],
        clock: RankClock | None,
    ) -> None:
        self._schedule = schedule
        self._parameters = [one for stage in stages for one in stage.submod.parameters()]
        self.optimizer = torch.optim.SGD(self._parameters, lr=0.01)
        self._batch = torch.ones(schedule._n_microbatches, _WIDTH)
        self._has_input = any(stage.is_first for stage in stages)
        self._clock = clock

    def step(self) -> None:
        """One step of schedule and optimizer; all ranks begin it together."""
        torch.distributed.barrier()
        self.optimizer.zero_grad()
        inputs = (self._batch,) if self._has_input else ()
        self._schedule.step(*inputs, target=self._batch)
        squares = [_gradient(parameter).square().sum() for parameter in self._parameters]
        torch.distributed.all_reduce(torch.stack(squares).sum())
        if self._clock is not None:
            now_s = torch.tensor(self._clock.now_s(), dtype=torch.float64)
            torch.distributed.all_reduce(now_s, op=torch.distributed.ReduceOp.MAX)
            self._clock.sleep_until(now_s.item())
        self.optimizer.step()


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _gave_profile(planner: PlannerClient, job_id: str, profile: StageProfile) -> bool:
    """Return whether the planner, which may not know the job yet, has the profile now."""
    try:
        planner.put_profile_csv(job_id, write_stage_profile(profile))
    except PlannerError:
        return False
    return True


def _rank_0_says(decision: bool) -> bool:
    said = torch.tensor([int(decision)])
    torch.distributed.broadcast(said, src=0)
    return bool(said.item())


def _kinds(
    stage: int, heaviest_forward_s: float, is_first_part: bool = False
) -> Mapping[InstructionKind, Points]:
    forward_s = heaviest_forward_s * _WEIGHTS[stage]
    times_s = {
        InstructionKind.FORWARD: forward_s,
        InstructionKind.BACKWARD: 2 * forward_s,
        InstructionKind.BACKWARD_INPUT: _NOTHING_S if is_first_part else forward_s,
        InstructionKind.BACKWARD_WEIGHT: 2 * forward_s if is_first_part else forward_s,
    }
    return {
        kind: tuple(
            OperatingPoint(
                frequency_mhz=mhz,
                time_s=time_s * slower,
                energy_j=_POWER_W * power * time_s * slower,
            )
            for mhz, (slower, power) in _CLOCKS.items()
        )
        for kind, time_s in times_s.items()
    }


def _summed(of_chunks: Sequence[Points]) -> Points:
    return tuple(
        OperatingPoint(
            frequency_mhz=at_clock[0].frequency_mhz,
            time_s=sum(point.time_s for point in at_clock),
            energy_j=sum(point.energy_j for point in at_clock),
        )
        for at_clock in zip(*of_chunks, strict=True)
    )


def _profile(
    points: Mapping[tuple[int, InstructionKind], Points],
    num_ranks: int,
    *,
    chunks: tuple[StageProfile, ...] = (),
) -> StageProfile:
    return StageProfile(points=points, num_ranks_per_stage=(1,) * num_ranks, chunks=chunks)
