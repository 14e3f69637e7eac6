"""Choice of the executor by an operator's settings."""

from __future__ import annotations

from concurrent.futures import Executor

from flyball_server.solving.executor_options import DASK_PREFIX
from flyball_server.solving.in_thread import PlannerThreads
from flyball_server.solving.on_dask import DaskWorkers
from flyball_server.solving.processes import PlanningProcesses

# Threads that wait for frontiers; how many Dask solves at once it knows itself.
_DASK_FRONTIERS = 16


def make_executor(num_processes: int, address: str | None) -> Executor:
    """Return what solves plans; nothing is started yet.

    Args:
        num_processes: 0: in threads of this process.
        address: `dask://HOST:PORT` of a Dask scheduler; None: in processes of the planner.
    """
    if address is not None:
        return DaskWorkers(f"tcp://{address.removeprefix(DASK_PREFIX)}")
    return PlanningProcesses(num_processes) if num_processes else PlannerThreads()


def num_frontiers_at_once(num_processes: int, address: str | None) -> int:
    """Return how many frontiers may be found at once, so that plans do not wait for them."""
    return _DASK_FRONTIERS if address is not None else max(1, num_processes - 1)
