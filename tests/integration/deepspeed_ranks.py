"""Ranks of one machine that are forks of one process, over gloo and loopback.

Importing torch and DeepSpeed takes a rank longer than all that the tests let it do; so it is
done once, for all ranks of all runs, before they are forked.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import deepspeed
import pytest
import torch
import torch.distributed
import torch.multiprocessing

from flyball_lab.demo.child_process import ChildProcess, Interruption
from flyball_lab.demo.options import child_environment, missing_prerequisites
from flyball_lab.demo.training_loop import leave_out_deepspeed_helper

_ROOT = Path(__file__).parents[2]
_TIMEOUT_S = 500

Findings = dict[str, Any]
Scenarios = Callable[[], Iterator[tuple[str, Findings]]]


# ------------------------------------------------------------------ for a test


def findings_by_num_ranks(
    module: str, folder: Path, *, num_ranks: Sequence[int], variables: Mapping[str, str]
) -> dict[int, list[Findings]]:
    """Return what each rank found, by rank, of a run with each of these numbers of ranks.

    Args:
        module: under tests.integration; when it is run, it calls `run_ranks` with its arguments.
        folder: for findings and logs.
        num_ranks: of the runs, one after the other.
        variables: added to the environment, which has none of Flyball's.
    """
    missing = missing_prerequisites()
    if missing:
        pytest.skip(f"DeepSpeed cannot run here; missing: {missing}")
    environment = {
        **child_environment(os.environ),
        "PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")]),
        # Nothing is compiled here, and loading torch's compiler takes a rank seconds.
        "TORCHDYNAMO_DISABLE": "1",
        "TORCH_EXTENSIONS_DIR": str(folder / "extensions"),
        **variables,
    }
    log = folder / "ranks.log"
    arguments = [str(folder), *map(str, num_ranks)]
    with (
        Interruption() as interruption,
        ChildProcess(
            ["-m", f"tests.integration.{module}", *arguments], environment=environment, log=log
        ) as run,
    ):
        status = run.wait(interruption, timeout_s=_TIMEOUT_S)
    assert status == 0, log.read_text()[-4000:]
    assert not (folder / "extensions").exists(), "DeepSpeed compiled something"
    return {
        number: [json.loads(_place(folder, number, rank).read_text()) for rank in range(number)]
        for number in num_ranks
    }


# ------------------------------------------------------------------ for the module that it runs


def run_ranks(scenarios: Scenarios, arguments: Sequence[str]) -> None:
    """Go through the scenarios on every rank of every run, and write what each rank found."""
    folder = Path(arguments[0])
    # One rank's share of the cores; and the first optimizer imports more than DeepSpeed does.
    torch.set_num_threads(1)
    torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
    for num_ranks in map(int, arguments[1:]):
        torch.multiprocessing.start_processes(
            _run_rank, (num_ranks, folder, scenarios), nprocs=num_ranks, start_method="fork"
        )


def _run_rank(rank: int, num_ranks: int, folder: Path, scenarios: Scenarios) -> None:
    # DeepSpeed asks for all that a launcher would have set.
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }
    store = f"file://{folder / f'store-of-{num_ranks}'}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=num_ranks)
    leave_out_deepspeed_helper()
    deepspeed.init_distributed("gloo")
    findings = {}
    for name, found in scenarios():
        findings[name] = found
        print(f"rank {rank} of {num_ranks}: {name} is over", flush=True)
    _place(folder, num_ranks, rank).write_text(json.dumps(findings))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def _place(folder: Path, num_ranks: int, rank: int) -> Path:
    return folder / f"rank-{rank}-of-{num_ranks}.json"
