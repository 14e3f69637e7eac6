"""Runs a script of torch's on several ranks of this machine, over gloo and loopback."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flyball_integrations.demo.child_process import ChildProcess
from flyball_integrations.demo.interruption import Interruption
from flyball_integrations.demo.prerequisites import child_environment


def findings_of_ranks(
    script: Path,
    folder: Path,
    *,
    num_ranks: int,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """What each rank wrote into `folder/rank-N.json`, by rank."""
    log = folder / "torchrun.log"
    with (
        Interruption() as interruption,
        ChildProcess(
            [
                *("-m", "torch.distributed.run", "--nproc-per-node", str(num_ranks)),
                *("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"),
                *("--local-addr", "127.0.0.1", "--log-dir", str(folder / "torchrun")),
                *(str(script), str(folder)),
            ],
            environment=child_environment(os.environ) | dict(environment or {}),
            log=log,
        ) as run,
    ):
        status = run.wait(interruption, timeout_s=timeout_s)
    assert status == 0, log.read_text()[-4000:]
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(num_ranks)]
