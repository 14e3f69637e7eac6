"""Training ranks with Zeus's own client: two steps each, GPU calls at a false NVML.

Arguments: the folder of the package zeus, the planner's address, job_metadata, ranks, stages, a
folder for the file of `torch.distributed` and, by rank, for what it was given. Ranks are forks of
one process that has imported torch.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pynvml as _pynvml
import torch
import torch.distributed as dist

NUM_STEPS = 2
pynvml: Any = _pynvml


def prepare(zeus_folder: str) -> None:
    """Stand in for what there is not: pandas, CUDA, and four calls of NVML."""
    sys.path.append(zeus_folder)  # last: it has packages `tests` and `examples` too
    sys.modules["pandas"] = ModuleType("pandas")  # writes profiles, which the client does not
    cuda: Any = torch.cuda
    cuda.is_available = lambda: True
    cuda.set_device = cuda.synchronize = lambda _device: None
    pynvml.nvmlDeviceGetPowerManagementLimit = lambda _handle: 300_000
    pynvml.nvmlDeviceGetPowerManagementDefaultLimit = lambda _handle: 300_000
    pynvml.nvmlDeviceSetMemoryLockedClocks = lambda _handle, _lowest, _highest: None
    pynvml.nvmlDeviceResetMemoryLockedClocks = lambda _handle: None


def train(address: str, metadata: str, rank: int, num_ranks: int, pp_degree: int, to: Path) -> None:
    """Train a rank."""
    from zeus.optimizer.pipeline_frequency import (  # noqa: PLC0415 - found only now
        PipelineFrequencyOptimizer,
    )

    dist.init_process_group(
        "gloo", init_method=f"file://{to / 'meeting'}", rank=rank, world_size=num_ranks
    )
    optimizer = PipelineFrequencyOptimizer(
        rank=rank,
        dp_rank=rank // pp_degree,
        pp_rank=rank % pp_degree,
        tp_rank=0,
        device_id=rank,
        dp_degree=num_ranks // pp_degree,
        pp_degree=pp_degree,
        tp_degree=1,
        world_size=num_ranks,
        server_url=address,
        job_metadata=metadata,
    )
    given = list(optimizer.freq_schedule)
    for _ in range(NUM_STEPS):
        optimizer.on_step_begin()
        for name, _mhz in given:
            optimizer.on_instruction_begin(name)
            optimizer.on_instruction_end(name)
        optimizer.on_step_end()
    optimizer.frequency_controller.end()
    optimizer.frequency_controller._proc.join()
    (to / f"rank-{rank}.json").write_text(json.dumps([optimizer.job_id, given]))
    dist.destroy_process_group()


def main() -> int:
    """Train all ranks; return 0 where each ended with 0."""
    zeus_folder, address, metadata, num_ranks, num_stages, to = sys.argv[1:]
    prepare(zeus_folder)
    __import__("zeus.optimizer.pipeline_frequency")
    fork = multiprocessing.get_context("fork")
    ranks = [
        fork.Process(
            target=train,
            args=(address, metadata, rank, int(num_ranks), int(num_stages), Path(to)),
        )
        for rank in range(int(num_ranks))
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    return int(any(rank.exitcode for rank in ranks))


if __name__ == "__main__":
    sys.exit(main())
