"""Processes of the demo: the planner, and the ranks under torchrun."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

from flyball_client.api.errors import PlannerError
from flyball_client.api.planner_client import PlannerClient
from flyball_lab.demo.child_process import ChildProcess, DemoFailedError, Interruption
from flyball_lab.demo.options import NUM_STAGES, DemoOptions
from flyball_lab.demo.run_folder import RunFolder, tail

# torchrun names the rank that failed first; the others only lost their neighbour.
_FAILED_RANK = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+)")


def start_training(
    folder: RunFolder, environment: Mapping[str, str], options: DemoOptions, *, planner_url: str
) -> ChildProcess:
    """Start torchrun with one rank a stage, all on this machine."""
    folder.write_options(options)
    return ChildProcess(
        [
            *("-m", "torch.distributed.run", "--nproc-per-node", str(NUM_STAGES)),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"),
            *("--local-addr", "127.0.0.1", "--log-dir", str(folder.path / "torchrun")),
            *("-m", "flyball_lab.demo.training_rank", str(folder.path), planner_url),
        ],
        environment={**environment, "TMPDIR": str(folder.path)},
        log=folder.torchrun_log,
    )


def check_training(training: ChildProcess, folder: RunFolder) -> bool:
    """Return whether training is over; raises DemoFailedError if it failed."""
    status = training.exit_status()
    if status is None:
        return False
    if status == 0:
        return True
    failed = _FAILED_RANK.search(training.log.read_text(errors="replace"))
    if failed is None:
        raise DemoFailedError(f"torchrun ended with status {status}", log_tail=tail(training.log))
    rank_status, rank = int(failed.group(1)), int(failed.group(2))
    ended = f"was ended by signal {-rank_status}" if rank_status < 0 else "failed"
    raise DemoFailedError(f"training rank {rank} {ended}", log_tail=tail(folder.rank_log(rank)))


_ADDRESS = re.compile(r"http://127\.0\.0\.1:[1-9]\d*")
_START_TIMEOUT_S = 60.0
_POLL_S = 0.1
_GRACE_S = 3.0


def start_planner(folder: RunFolder, environment: Mapping[str, str]) -> ChildProcess:
    """Start the planner with its database in the run's folder."""
    return ChildProcess(
        [
            *("-m", "flyball_client", "serve", "--host", "127.0.0.1", "--port", "0"),
            *("--database", f"sqlite:///{folder.database}"),
        ],
        environment=environment,
        log=folder.planner_log,
        grace_s=_GRACE_S,
    )


def wait_for_planner(planner: ChildProcess, interruption: Interruption) -> str:
    """Return the planner's URL once it answers there.

    Raises:
        DemoFailedError: the planner ended, or does not answer in time.
        KeyboardInterrupt: a signal came meanwhile.
    """
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        check_planner(planner)
        address = _ADDRESS.search(planner.log.read_text(errors="replace"))
        if address is not None and _answers(address.group()):
            return address.group()
        interruption.sleep(_POLL_S)
    raise DemoFailedError("the planner did not start in time", log_tail=tail(planner.log))


def check_planner(planner: ChildProcess) -> None:
    """Raise DemoFailedError if the planner has ended."""
    status = planner.exit_status()
    if status is not None:
        raise DemoFailedError(f"the planner ended with status {status}", log_tail=tail(planner.log))


def _answers(url: str) -> bool:
    try:
        with PlannerClient(url, timeout_s=2.0) as client:
            client.health()
    except PlannerError:
        return False
    return True
