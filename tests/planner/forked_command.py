"""`flyball` as a process that is forked from one which has imported the planner already.

To import it takes two seconds of a processor, more than most tests let a planner do. One process
imports it for all that a test process starts; each command is a fork of it, with arguments,
environment and streams of its own. `test_serve_process.py` and others start one from nothing.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import IO, NoReturn

_SERVE = "from tests.planner.forked_command import serve_forks; serve_forks()"
_MAX_REQUEST_BYTES = 2**20
_ENDS_WITHIN_S = 30.0
_POLL_S = 0.005


# ------------------------------------------------------------------ for tests


class ForkedCommand:
    """A running command, with what of `subprocess.Popen` tests of a planner need.

    Args:
        arguments: of `flyball`.
        environment: the whole of it.
        folder: that it runs in; None: this process's.
    """

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], folder: str | None = None
    ) -> None:
        self.returncode: int | None = None
        self._told, told = os.pipe()
        out, to_out = os.pipe()
        with tempfile.NamedTemporaryFile("r", encoding="utf-8", delete=False) as errors:
            self.stderr: IO[str] = open(errors.name, encoding="utf-8")  # noqa: SIM115, PTH123
        to_errors = os.open(errors.name, os.O_WRONLY | os.O_APPEND)
        os.unlink(errors.name)  # noqa: PTH108 - a name of no path
        self.stdout: IO[str] = os.fdopen(out, encoding="utf-8")
        request = json.dumps([list(arguments), dict(environment), folder or os.getcwd()])  # noqa: PTH109
        server = _fork_server()
        socket.send_fds(server, [request.encode()], [to_out, to_errors, told])
        for fd in (to_out, to_errors, told):
            os.close(fd)
        self.pid = int(self._told_line())

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None: it runs."""
        if self.returncode is None and select.select([self._told], [], [], 0)[0]:
            self.returncode = int(self._told_line())
            os.close(self._told)
        return self.returncode

    def wait(self, timeout: float = _ENDS_WITHIN_S) -> int:
        """Return the exit status once it has ended."""
        deadline_s = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > deadline_s:
                raise subprocess.TimeoutExpired("flyball", timeout)
            time.sleep(_POLL_S)
        return status

    def communicate(self, timeout: float = _ENDS_WITHIN_S) -> tuple[str, str]:
        """Return what is left of stdout and stderr once it has ended."""
        self.wait(timeout)
        if self.stdout.closed:
            return "", ""
        with self.stdout, self.stderr:
            return self.stdout.read(), self.stderr.read()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def _told_line(self) -> str:
        """Return what the server says next: the process number, then the status."""
        line = b""
        while not line.endswith(b"\n"):
            piece = os.read(self._told, 1)
            assert piece, "the process that commands are forked from has ended"
            line += piece
        return line.decode()


@cache
def _fork_server() -> socket.socket:
    """Start the process that commands are forked from; it ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen((sys.executable, "-c", _SERVE), stdin=theirs.fileno())
    theirs.close()

    def end() -> None:
        ours.close()
        process.wait(_ENDS_WITHIN_S)

    atexit.register(end)
    return ours


# ------------------------------------------------------------------ in the process


def serve_forks() -> None:
    """Fork a command for each request on stdin, and say when it has ended; return at its end."""
    import flyball_server.serving.planner_server  # noqa: F401, PLC0415 - not in a test's process

    requests = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    woken, waking = os.pipe()
    os.set_blocking(waking, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waking)
    told: dict[int, int] = {}
    waited_for: list[socket.socket | int] = [requests, woken]
    while True:
        readable, _, _ = select.select(waited_for, [], [])
        if woken in readable:
            os.read(woken, 4096)
            _report_ended(told)
        if requests in readable:
            request, fds, _, _ = socket.recv_fds(requests, _MAX_REQUEST_BYTES, 3)
            if not request:
                return
            arguments, environment, folder = json.loads(request)
            out, errors, status = fds
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.dup2(out, 1)
                os.dup2(errors, 2)
                for fd in (requests.fileno(), woken, waking, *fds, *told.values()):
                    os.close(fd)
                _run(arguments, environment, folder)
            os.close(out)
            os.close(errors)
            told[pid] = status
            os.write(status, f"{pid}\n".encode())


def _report_ended(told: dict[int, int]) -> None:
    for pid in [*told]:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            fd = told.pop(pid)
            os.write(fd, f"{os.waitstatus_to_exitcode(status)}\n".encode())
            os.close(fd)


def _run(arguments: list[str], environment: dict[str, str], folder: str) -> NoReturn:
    """Run the command as a process of its own would, whose end this is too."""
    from flyball_client.__main__ import main  # noqa: PLC0415

    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = ["flyball", *arguments]
    raise SystemExit(main(arguments))
