"""Which executor solves, by what an operator has chosen."""

from __future__ import annotations

import importlib.util
import os
from concurrent.futures import Executor

from flyball_server.solving.in_thread import PlannerThreads
from flyball_server.solving.on_dask import DaskWorkers
from flyball_server.solving.processes import PlanningProcesses

DASK_PREFIX = "dask://"
# A frontier may take a minute: a plan is not to wait for it.
_FEWEST_PROCESSES = 2
# Threads that wait for frontiers; how many Dask solves at once it knows itself.
_DASK_FRONTIERS = 16
_LAST_PORT = 65_535


def default_num_processes() -> int:
    """Half of the cores that this process may use, at least 2."""
    return max(_FEWEST_PROCESSES, len(os.sched_getaffinity(0)) // 2)


def executor_problem(address: str | None) -> str | None:
    """What is wrong with an executor's address; None: it can be used."""
    if address is None:
        return None
    host, _, port = address.removeprefix(DASK_PREFIX).rpartition(":")
    is_port = port.isdecimal() and 1 <= int(port) <= _LAST_PORT
    if not (address.startswith(DASK_PREFIX) and host and is_port):
        return f"must be {DASK_PREFIX}HOST:PORT of a Dask scheduler, not {address!r}"
    if importlib.util.find_spec("distributed") is None:
        return "needs Dask; install the extra dask"
    return None


def make_executor(num_processes: int, address: str | None) -> Executor:
    """What solves plans; nothing is started yet.

    Args:
        num_processes: 0: in threads of this process.
        address: `dask://HOST:PORT` of a Dask scheduler; None: in processes of the planner.
    """
    if address is not None:
        return DaskWorkers(f"tcp://{address.removeprefix(DASK_PREFIX)}")
    return PlanningProcesses(num_processes) if num_processes else PlannerThreads()


def num_frontiers_at_once(num_processes: int, address: str | None) -> int:
    """How many frontiers may be found at once, so that plans do not wait for them."""
    return _DASK_FRONTIERS if address is not None else max(1, num_processes - 1)
