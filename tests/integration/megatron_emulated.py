"""What each of four ranks runs for test_megatron_plans.py: Megatron's schedules on emulated GPUs.

Each schedule is a job of its own at the planner: some steps at the highest clocks, then the job
is given its profile, and some steps run on the plan. Every rank writes what it saw into a JSON
file, and rank 0 what the planner knows.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from threading import Thread
from typing import Any, Literal

import torch
import torch.distributed
from tests.integration.megatron_cpu import Training, cuda_is_cpu

from flyball_client.api.errors import PlannerError
from flyball_client.api.planner_client import PlannerClient
from flyball_client.gpu.emulated import EmulatedGpu
from flyball_integrations.megatron.pipeline import attach, detach, training_step
from flyball_profiles.stage_profile import InstructionKind, OperatingPoint, StageProfile
from flyball_profiles.stage_profile_csv import write_stage_profile

NUM_STAGES = 4
NUM_MICROBATCHES = 8
NUM_CHUNKS = 2
BLOCKING_POWER_W = 80.0
# The first of them is a warm-up; more come while the plan is made.
NUM_BASELINE_STEPS = 2
NUM_PLANNED_STEPS = 5
_MAX_STEPS = 40
# A step lasts about a second: NVML's 0.1 s between movements would be a tenth of it.
_COUNTER_PERIOD_S = 0.01

# Forward at 1410 MHz, s; the stages are not balanced, so there is something to save.
_FORWARD_S = (0.030, 0.026, 0.022, 0.028)
# MHz, time and energy as parts of those at 1410 MHz.
_CLOCKS = ((1410, 1.0, 1.0), (1305, 1.06, 0.88), (1200, 1.13, 0.79), (1095, 1.22, 0.74))
_POWER_W = 300.0

Findings = dict[str, Any]


def profile(num_chunks: int) -> StageProfile:
    """Of four stages; a stage's first chunk has a little more to do than its second."""
    if num_chunks == 1:
        return _profile(share=1.0)
    chunks = (_profile(share=0.55), _profile(share=0.45))
    whole = _profile(share=1.0)
    return StageProfile(
        points=whole.points, num_ranks_per_stage=whole.num_ranks_per_stage, chunks=chunks
    )


def _profile(share: float) -> StageProfile:
    points = {
        (stage, kind): _points(share * times * forward_s)
        for stage, forward_s in enumerate(_FORWARD_S)
        for kind, times in ((InstructionKind.FORWARD, 1.0), (InstructionKind.BACKWARD, 2.0))
    }
    return StageProfile(points=points, num_ranks_per_stage=(1,) * NUM_STAGES)


def _points(time_s: float) -> tuple[OperatingPoint, ...]:
    return tuple(
        OperatingPoint(frequency_mhz=mhz, time_s=time_s * longer, energy_j=_POWER_W * time_s * less)
        for mhz, longer, less in _CLOCKS
    )


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    planner_url = os.environ["PLANNER_URL"]
    with PlannerClient(planner_url) as planner, cuda_is_cpu():
        findings: Findings = {}
        if "1f1b" in os.environ["SCHEDULES"]:
            findings["1f1b"] = _train(planner_url, planner, num_chunks=1, hooks="timers")
        if "interleaved" in os.environ["SCHEDULES"]:
            findings["interleaved"] = _train(
                planner_url, planner, num_chunks=NUM_CHUNKS, hooks="patch"
            )
    (folder / f"rank-{rank}.json").write_text(json.dumps(findings))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def _train(
    planner_url: str,
    planner: PlannerClient,
    *,
    num_chunks: int,
    hooks: Literal["patch", "timers"],
) -> Findings:
    training = Training(
        num_microbatches=NUM_MICROBATCHES,
        num_chunks=num_chunks,
        overlap_p2p=num_chunks > 1,
        overlap_warmup=num_chunks > 1,
    )
    job_id = f"megatron-{num_chunks}"
    gpu = EmulatedGpu(
        profile(num_chunks),
        training.stage,
        num_chunks=num_chunks,
        blocking_power_w=BLOCKING_POWER_W,
        time_scale=float(os.environ["TIME_SCALE"]),
        counter_period_s=_COUNTER_PERIOD_S,
    )
    session = attach(
        training.config,
        job_id=job_id,
        num_microbatches=NUM_MICROBATCHES,
        hooks=hooks,
        planner_url=planner_url,
        gpu=gpu,
        blocking_power_w=[BLOCKING_POWER_W],
    )
    is_first = torch.distributed.get_rank() == 0
    num_planned = 0
    for step in range(_MAX_STEPS):
        with training_step():
            training.run()
            num_planned += session.active_version is not None
            # In the place of the optimizer: there all ranks agree on the norm of the gradients.
            is_enough = _rank_0_says(num_planned >= NUM_PLANNED_STEPS)
        if is_first and step == NUM_BASELINE_STEPS - 1:
            # Not in this thread: all ranks would wait for the plan.
            Thread(target=_give_profile, args=(planner, job_id, num_chunks), daemon=True).start()
        if is_enough:
            break
    timings = session.last_step_timings
    detach()
    # All have posted what they measured when they have detached.
    torch.distributed.barrier()
    found: Findings = {
        "stage": training.stage,
        "steps": [asdict(step) for step in session.history],
        "ran": [[timing.kind, timing.microbatch, timing.chunk] for timing in timings],
        "num_overruns": gpu.num_overruns,
    }
    if is_first:
        found |= {
            "job": asdict(planner.get_job(job_id)),
            "plans": [asdict(plan) for plan in planner.list_plans(job_id)],
            "steps of the job": [asdict(step) for step in planner.list_steps(job_id)],
        }
    return found


def _give_profile(planner: PlannerClient, job_id: str, num_chunks: int) -> None:
    """As soon as the job is known."""
    text = write_stage_profile(profile(num_chunks))
    while True:
        try:
            planner.put_profile_csv(job_id, text)
        except PlannerError as error:
            print(f"the profile is not taken yet: {error}", file=sys.stderr)
            time.sleep(0.2)
        else:
            return


def _rank_0_says(decision: bool) -> bool:
    said = torch.tensor([int(decision)])
    torch.distributed.broadcast(said, src=0)
    return bool(said.item())
