"""A training rank with Zeus's own client: two steps, GPU calls at a false NVML.

Arguments: the folder of the package zeus, the planner's address, job_metadata, rank, ranks,
stages, a file for `torch.distributed`, a file for what it was given.
"""

from __future__ import annotations

import json
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


def main() -> None:
    """Train."""
    zeus_folder, address, metadata, rank, num_ranks, num_stages, meeting, report = sys.argv[1:]
    prepare(zeus_folder)
    from zeus.optimizer.pipeline_frequency import (  # noqa: PLC0415 - found only now
        PipelineFrequencyOptimizer,
    )

    number, world_size, pp_degree = int(rank), int(num_ranks), int(num_stages)
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=number, world_size=world_size
    )
    optimizer = PipelineFrequencyOptimizer(
        rank=number,
        dp_rank=number // pp_degree,
        pp_rank=number % pp_degree,
        tp_rank=0,
        device_id=number,
        dp_degree=world_size // pp_degree,
        pp_degree=pp_degree,
        tp_degree=1,
        world_size=world_size,
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
    Path(report).write_text(json.dumps([optimizer.job_id, given]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
