"""Program of a planning process: solves one task after the other until the planner ends."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

from flyball_pipeline.errors import PipelineError

# Niceness of planning processes: answers to ranks have priority over plans.
NICENESS = 5
Task = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def serve(connection: Connection) -> None:
    """Solve each received pickled task; end when the planner closes its end or exits."""
    # Ctrl-C is sent to all processes of the terminal; the planner ends its own.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.nice(NICENESS)
    threading.Thread(target=_end_with_planner, name="flyball-planner-watch", daemon=True).start()
    # Objects that exist by now stay: collecting them takes longer than many a solve.
    gc.collect()
    gc.freeze()
    while True:
        try:
            pickled = connection.recv_bytes()
        except EOFError:
            return
        connection.send_bytes(outcome_of(pickled))


def outcome_of(pickled: bytes) -> bytes:
    """Return a pickled (True, result) or (False, exception) of a pickled task."""
    try:
        function, args, kwargs = pickle.loads(pickled)  # noqa: S301 - from the planner itself
        return pickle.dumps((True, function(*args, **kwargs)), pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        return pickle.dumps((False, _portable(error)), pickle.HIGHEST_PROTOCOL)


def _portable(error: Exception) -> Exception:
    """Return the exception in picklable form; if it has none, another with its text."""
    text = traceback.format_exc()
    if not isinstance(error, PipelineError):
        error.add_note(f"in a planning process:\n{text}")
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - of our own making
    except Exception:
        return RuntimeError(text)
    return error


def _end_with_planner() -> None:
    """End this process when the planner has ended, for any reason."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
