"""Starts `flyball serve` as a process on a free loopback port, and finds its address."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

from flyball_client.api.errors import PlannerError
from flyball_client.api.planner_client import PlannerClient
from flyball_lab.demo.child_process import ChildProcess
from flyball_lab.demo.demo_errors import DemoFailedError
from flyball_lab.demo.interruption import Interruption
from flyball_lab.demo.run_folder import RunFolder, tail

_ADDRESS = re.compile(r"http://127\.0\.0\.1:[1-9]\d*")
_START_TIMEOUT_S = 60.0
_POLL_S = 0.1
_GRACE_S = 3.0


def start_planner(folder: RunFolder, environment: Mapping[str, str]) -> ChildProcess:
    """The planner, starting, with its database in the run's folder."""
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
    """The planner's URL, once it answers there.

    Raises:
        DemoFailedError: it ended, or does not answer in time.
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
