"""Data-parallel training whose ranks an agent of torchrun restarts; its steps wait for the test.

Arguments: The planner's address, the number of microbatches by attempt, and a folder. A rank that
finds `kill-RANK` there kills itself once, and training ends with `end`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import flyball_integrations.data_parallel as flyball
from flyball_integrations.data_parallel import attach, detach

if __name__ == "__main__":
    url, folder = sys.argv[1], Path(sys.argv[2])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Linear(4, 4))
    session = attach(model, job_id="job", planner_url=url, blocking_power_w=[70.0])
    (folder / f"pid-{rank}").write_text(str(os.getpid()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        is_over = torch.tensor([float((folder / "end").exists())])
        dist.all_reduce(is_over, op=dist.ReduceOp.MAX)
        if is_over.item():
            break
        try:
            (folder / f"kill-{rank}").unlink()
        except FileNotFoundError:
            pass
        else:
            os.kill(os.getpid(), signal.SIGKILL)
        with flyball.training_step(model):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        time.sleep(0.02)
    detach(model)
    dist.destroy_process_group()
