"""A pipeline of two stages, run by a rank on each of two nodes for test_two_nodes.py.

Rank 0 gives the job its profile and at the end asks the planner what it knows; every rank writes
what it saw itself into a JSON file.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed
from deepspeed.pipe import PipelineModule
from deepspeed.runtime.pipe.engine import PipelineEngine
from tests.integration.trainings import (
    BLOCKING_POWER_W,
    points,
    rank_0_says,
    samples,
    takes_profile,
)
from torch import nn

from flyball_client.api.planner_client import PlannerClient
from flyball_client.gpu.emulated import EmulatedGpu
from flyball_integrations.deepspeed.pipeline import attach, detach
from flyball_lab.demo.run_folder import ClockWitness
from flyball_lab.demo.training_loop import leave_out_deepspeed_helper
from flyball_profiles.stage_profile import InstructionKind, StageProfile

JOB_ID = "two-nodes"
NUM_MICROBATCHES = 4
# The first of them is a warm-up.
NUM_PLANNED_STEPS = 4
_MAX_STEPS = 60
_WIDTH = 16

# MHz, s, J; the second stage has less to do.
_POINTS = {
    (0, InstructionKind.FORWARD): ((1410, 0.1, 60.0), (1305, 0.106, 52.0), (1200, 0.113, 46.0)),
    (0, InstructionKind.BACKWARD): ((1410, 0.2, 124.0), (1305, 0.211, 108.0), (1200, 0.224, 98.0)),
    (1, InstructionKind.FORWARD): ((1410, 0.07, 42.0), (1305, 0.074, 37.0), (1200, 0.079, 33.0)),
    (1, InstructionKind.BACKWARD): ((1410, 0.14, 86.0), (1305, 0.148, 75.0), (1200, 0.157, 66.0)),
}


PROFILE = StageProfile(
    points={key: points(rows) for key, rows in _POINTS.items()}, num_ranks_per_stage=(1, 1)
)


def main(folder: Path, planner_url: str) -> None:
    torch.set_num_threads(1)
    leave_out_deepspeed_helper()
    deepspeed.init_distributed("gloo")
    engine = _engine()
    gpu = EmulatedGpu(PROFILE, engine.stage_id, blocking_power_w=BLOCKING_POWER_W)
    witness = ClockWitness(gpu)
    session = attach(
        engine,
        job_id=JOB_ID,
        planner_url=planner_url,
        gpu=gpu,
        observer=witness,
        p2p="eager",
        blocking_power_w=[BLOCKING_POWER_W],
    )
    data = samples(2, _WIDTH)
    num_planned = 0
    with PlannerClient(planner_url, token=os.environ["FLYBALL_TOKEN"]) as planner:
        is_profiled = False
        for _ in range(_MAX_STEPS):
            witness.begin_step()
            engine.train_batch(data)
            if engine.global_rank == 0 and not is_profiled:
                is_profiled = takes_profile(planner, JOB_ID, PROFILE)
            num_planned += session.active_version is not None
            if rank_0_says(num_planned >= NUM_PLANNED_STEPS):
                break
        timings = session.last_step_timings
        detach(engine)
        witness.write(folder / f"clocks-{engine.global_rank}.json")
        findings: dict[str, Any] = {
            "rank": engine.global_rank,
            "host": socket.gethostname(),
            "stage": engine.stage_id,
            "steps": [asdict(step) for step in session.history],
            "last_step_timings": [asdict(timing) for timing in timings],
            "num_dropped": session.num_dropped_measurements,
        }
        # All have posted what they measured when they have detached.
        torch.distributed.barrier()
        if engine.global_rank == 0:
            findings |= {
                "job": asdict(planner.get_job(JOB_ID)),
                "plans": [asdict(plan) for plan in planner.list_plans(JOB_ID)],
                "steps of the job": [asdict(step) for step in planner.list_steps(JOB_ID)],
            }
    (folder / f"rank-{engine.global_rank}.json").write_text(json.dumps(findings))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def _engine() -> PipelineEngine:
    torch.manual_seed(7)
    model = PipelineModule(
        layers=[nn.Linear(_WIDTH, _WIDTH) for _ in range(4)],
        num_stages=2,
        loss_fn=nn.functional.mse_loss,
        partition_method="uniform",
    )
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
        config={
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": NUM_MICROBATCHES,
            "steps_per_print": 10**9,
        },
    )
    return engine


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
