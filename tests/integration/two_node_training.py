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
from tests.integration.deepspeed_scenarios import Training
from tests.integration.trainings import (
    BLOCKING_POWER_W,
    alike_stages,
    emulated_gpu,
    rank_0_says,
    takes_profile,
)

from flyball_client.api.planner_client import PlannerClient
from flyball_integrations.deepspeed.pipeline import attach, detach
from flyball_lab.demo.training_loop import ClockWitness, leave_out_deepspeed_helper

JOB_ID = "two-nodes"
# The first of them is a warm-up.
NUM_PLANNED_STEPS = 4
_MAX_STEPS = 60


def main(folder: Path, planner_url: str) -> None:
    torch.set_num_threads(1)
    leave_out_deepspeed_helper()
    deepspeed.init_distributed("gloo")
    training = Training(num_stages=2, num_microbatches=4)
    engine = training.engine
    gpu = emulated_gpu(engine.stage_id, 2, time_scale=1.0)
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
    num_planned = 0
    with PlannerClient(planner_url, token=os.environ["FLYBALL_TOKEN"]) as planner:
        is_profiled = False
        for _ in range(_MAX_STEPS):
            witness.begin_step()
            training.step()
            if engine.global_rank == 0 and not is_profiled:
                is_profiled = takes_profile(planner, JOB_ID, alike_stages(2))
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


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
