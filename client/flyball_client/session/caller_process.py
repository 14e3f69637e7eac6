"""Process that calls the planner for a rank; started by `process_caller`.

It ends with the rank, however that ends, and when the rank needs it no more. Signals to the rank
and its terminal do not end it. Under load it gives way to the training, and where memory runs
out the kernel kills it first.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import threading
from functools import partial
from pathlib import Path

from flyball_client.api.connection import ConnectionOptions
from flyball_client.api.planner_client import PlannerClient
from flyball_client.session.call_frames import answer_of, failure_of, read_request, receive_from
from flyball_client.session.planner_procedures import perform

# A tenth of a core beside a thread of the training on the same core.
NICENESS = 10
# Time in s between looks at the parent, where the kernel does not tell of its end.
_TICK_S = 1.0
_MOST_EXPENDABLE = "1000"


def main() -> int:
    """Serve the rank's connections until it has ended.

    Arguments: The rank's process number, and the inherited socket that brings connections.
    """
    rank_pid, control_fd = map(int, sys.argv[1:])
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_MOST_EXPENDABLE, "ascii")
    _serve_until_end(rank_pid, socket.socket(fileno=control_fd))
    # Threads may be waiting for the planner.
    os._exit(0)


def _serve_until_end(rank_pid: int, control: socket.socket) -> None:
    ends: list[int] = []
    # AttributeError: a Python built without it.
    with contextlib.suppress(OSError, AttributeError):
        ends.append(os.pidfd_open(rank_pid))
    # Also after opening: the number may be another process's by now.
    while os.getppid() == rank_pid:
        readable, _, _ = select.select([control.fileno(), *ends], (), (), _TICK_S)
        if any(fd in readable for fd in ends):
            return
        if readable:
            message, fds, _, _ = socket.recv_fds(control, 1, 1)
            if not message:
                return
            for fd in fds:
                threading.Thread(target=_serve, args=(socket.socket(fileno=fd),)).start()


def _serve(connection: socket.socket) -> None:
    """Make the calls of one of the rank's threads until it closes its connection."""
    receive = partial(receive_from, connection, deadline_s=None)
    with connection, contextlib.suppress(EOFError, OSError):
        options, max_answer_bytes, max_call_s = read_request(receive)
        try:
            planner = _opened(options, max_answer_bytes, max_call_s)
        except ValueError as error:
            connection.sendall(failure_of(error))
            return
        with planner:
            connection.sendall(answer_of(None))
            while True:
                procedure, arguments = read_request(receive)
                try:
                    answer = answer_of(perform(planner, procedure, arguments))
                except Exception as error:  # the rank goes on whatever happened
                    answer = failure_of(error)
                connection.sendall(answer)


def _opened(options: ConnectionOptions, max_answer_bytes: int, max_call_s: float) -> PlannerClient:
    return PlannerClient(
        options.base_url,
        token=options.token,
        timeout_s=options.timeout_s,
        ca_file=options.ca_file,
        retries=options.retries,
        max_answer_bytes=max_answer_bytes,
        max_call_s=max_call_s,
    )


if __name__ == "__main__":
    sys.exit(main())
