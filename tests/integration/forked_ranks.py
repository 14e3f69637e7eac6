"""Runs `main(folder)` of a script beside this one on several ranks, as torchrun would.

The ranks are forks of one process: importing torch and what stands on it takes a rank longer than
all that the tests let it do, so it is done once, before they are forked.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed
import torch.multiprocessing


def run_ranks(module: str, folder: Path, num_ranks: int) -> None:
    """Run them until all have ended; raises when one fails."""
    main: Callable[[Path], None] = importlib.import_module(f"tests.integration.{module}").main
    # The first optimizer imports torch's compiler, which takes a second.
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])
    # Held by this process, as torchrun holds it, on a port that nobody else can take meanwhile.
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.environ |= {
        "WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    torch.multiprocessing.start_processes(
        _run_rank, (main, folder), nprocs=num_ranks, start_method="fork"
    )


def _run_rank(rank: int, main: Callable[[Path], None], folder: Path) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    main(folder)


if __name__ == "__main__":
    run_ranks(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
