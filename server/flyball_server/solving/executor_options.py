"""Executor settings of an operator; checking them imports no executor."""

from __future__ import annotations

import importlib.util
import os

DASK_PREFIX = "dask://"
# A frontier may take a minute: a plan is not to wait for it.
_FEWEST_PROCESSES = 2
_LAST_PORT = 65_535


def default_num_processes() -> int:
    """Return half of the cores that this process may use, at least 2."""
    return max(_FEWEST_PROCESSES, len(os.sched_getaffinity(0)) // 2)


def executor_problem(address: str | None) -> str | None:
    """Return why an executor's address is invalid; None: it is valid."""
    if address is None:
        return None
    host, _, port = address.removeprefix(DASK_PREFIX).rpartition(":")
    is_port = port.isdecimal() and 1 <= int(port) <= _LAST_PORT
    if not (address.startswith(DASK_PREFIX) and host and is_port):
        return f"must be {DASK_PREFIX}HOST:PORT of a Dask scheduler, not {address!r}"
    if importlib.util.find_spec("distributed") is None:
        return "needs Dask; install the extra dask"
    return None
