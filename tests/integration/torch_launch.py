"""Runs a script of torch's on several ranks of this machine, over gloo and loopback."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flyball_lab.demo.child_process import ChildProcess, Interruption
from flyball_lab.demo.options import child_environment

_ROOT = Path(__file__).parents[2]


def findings_of_ranks(
    script: Path,
    folder: Path,
    *,
    num_ranks: int,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Return what each rank wrote into `folder/rank-N.json`, by rank.

    Args:
        script: in this folder; its `main(folder)` is what a rank runs.
        folder: for findings and logs.
        num_ranks: forks of one process.
        timeout_s: for all of them.
        environment: added to the environment, which has none of Flyball's.
    """
    log = folder / "ranks.log"
    path = {"PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])}
    with (
        Interruption() as interruption,
        ChildProcess(
            [
                *("-m", "tests.integration.forked_ranks"),
                *(script.stem, str(folder), str(num_ranks)),
            ],
            environment=child_environment(os.environ) | path | dict(environment or {}),
            log=log,
        ) as run,
    ):
        status = run.wait(interruption, timeout_s=timeout_s)
    assert status == 0, log.read_text()[-4000:]
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(num_ranks)]
