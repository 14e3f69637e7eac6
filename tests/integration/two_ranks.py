"""Runs a script on two ranks by torchrun, on the CPU and over gloo, as DeepSpeed needs it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flyball_lab.demo.child_process import ChildProcess, Interruption
from flyball_lab.demo.options import child_environment, missing_prerequisites

_TIMEOUT_S = 500


def run_on_two_ranks(folder: Path, *command: str, **variables: str) -> str:
    """Return what torchrun and both ranks wrote, once they have ended well.

    Args:
        folder: for logs.
        command: the script and its arguments.
        variables: added to the environment, which has none of Flyball's.
    """
    missing = missing_prerequisites()
    if missing:
        pytest.skip(f"DeepSpeed cannot run here; missing: {missing}")
    environment = child_environment(os.environ) | variables
    log = folder / "torchrun.log"
    with (
        Interruption() as interruption,
        ChildProcess(
            [
                *("-m", "torch.distributed.run", "--nproc-per-node", "2"),
                *("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"),
                *("--local-addr", "127.0.0.1", "--log-dir", str(folder / "torchrun")),
                *command,
            ],
            environment=environment,
            log=log,
        ) as run,
    ):
        status = run.wait(interruption, timeout_s=_TIMEOUT_S)
    assert status == 0, log.read_text()[-4000:]
    return log.read_text()
