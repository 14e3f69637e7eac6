"""Calls to the planner from a process of their own, which is shared by all of the rank's.

Whatever a planner answers is received, decoded and checked there: it takes none of the training
process's time, memory or interpreter lock. See `caller_process`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
import time
from functools import partial
from pathlib import Path

from flyball_client.api.connection import ConnectionOptions
from flyball_client.api.errors import PlannerUnavailableError
from flyball_client.api.planner_client import PlannerClient
from flyball_client.governor.own_process import OwnProcess
from flyball_client.session.call_frames import read_answer, receive_from, request_of
from flyball_client.session.planner_procedures import Answer, DirectCaller, PlannerCaller
from flyball_wire.errors import FlyballError
from flyball_wire.python_child import python_command, python_environment
from flyball_wire.rank_plan import MAX_ANSWER_BYTES

# Longest time in s of a call, beside the time that the planner may wait.
MAX_CALL_S = 10.0
# The process ends a call by itself; one that does not is killed after this time in s.
_GRACE_S = 15.0
# On a busy node, with Python on a network's file system.
_START_TIMEOUT_S = 60.0
_REAP_TIMEOUT_S = 1.0
_IMPORT_ROOT = Path(__file__).parents[2]
_PROGRAM = "flyball_client.session.caller_process"


def open_caller(
    planner: PlannerClient, *, max_answer_bytes: int = MAX_ANSWER_BYTES
) -> PlannerCaller:
    """Return what makes a rank's calls: a process, unless the client's network is replaced.

    Args:
        planner: Client with the planner's address and token; not closed here.
        max_answer_bytes: Largest body of an answer.
    """
    if planner.options is None:
        return DirectCaller(planner)
    return ProcessCaller(planner.options, max_answer_bytes=max_answer_bytes, max_call_s=MAX_CALL_S)


class ProcessCaller:
    """PlannerCaller with a process, which starts with the first call and is started again.

    Each thread has a connection of its own to that process. The last caller that is closed ends
    it.

    Args:
        options: The planner's address, token and timeouts.
        max_answer_bytes: Largest body of an answer.
        max_call_s: Longest time in s of a call, beside the time that the planner may wait; at
            least twice the timeout of sending and receiving.
    """

    def __init__(
        self,
        options: ConnectionOptions,
        *,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
        max_call_s: float = MAX_CALL_S,
    ) -> None:
        self._max_call_s = max(max_call_s, 2 * options.timeout_s)
        self._opening = (options, max_answer_bytes, self._max_call_s)
        self._of_thread = threading.local()
        self._channels: set[_Channel] = set()
        self._lock = threading.Lock()
        self._is_closed = False

    def call(self, procedure: str, *arguments: object, wait_s: float = 0.0) -> Answer:
        """Make a call in the process; see PlannerCaller."""
        channel: _Channel | None = getattr(self._of_thread, "channel", None)
        try:
            if channel is None or channel.is_closed:
                channel = self._of_thread.channel = self._opened()
                channel.call(self._opening, timeout_s=_START_TIMEOUT_S)
            timeout_s = self._max_call_s + wait_s + _GRACE_S
            return channel.call((procedure, arguments), timeout_s=timeout_s)
        except _BrokenChannelError as error:
            if channel is not None:
                self._discard(channel)
            raise PlannerUnavailableError(
                f"the planner was not called: the process for that {error}"
            ) from None

    def close(self) -> None:
        """End the calls in progress; there are none afterwards."""
        with self._lock:
            self._is_closed = True
            channels, self._channels = self._channels, set()
        for channel in channels:
            channel.close()

    def _opened(self) -> _Channel:
        with self._lock:
            if self._is_closed:
                raise _BrokenChannelError("is no longer needed")
            channel = _Channel()
            self._channels.add(channel)
            return channel

    def _discard(self, channel: _Channel) -> None:
        with self._lock:
            self._channels.discard(channel)
        channel.close()


class _BrokenChannelError(Exception):
    """The process does not answer as it should; the text continues "the process"."""


class _Channel:
    """Connection of one thread to the process, which may be closed from another one.

    Raises:
        _BrokenChannelError: The process cannot be started.
    """

    def __init__(self) -> None:
        self.is_closed = False
        # Held during a call: a descriptor must not be closed while it is read.
        self._in_use = threading.Lock()
        try:
            self._process, self._socket = _connect()
        except OSError as error:
            raise _BrokenChannelError(f"cannot be started ({error})") from None

    def call(self, request: object, *, timeout_s: float) -> Answer:
        """Send a request and return its answer, or raise its error."""
        deadline_s = time.monotonic() + timeout_s
        with self._in_use:
            if self.is_closed:
                raise _BrokenChannelError("has ended")
            try:
                self._socket.settimeout(timeout_s)
                self._socket.sendall(request_of(request), socket.MSG_NOSIGNAL)
                return read_answer(partial(receive_from, self._socket, deadline_s=deadline_s))
            except TimeoutError:
                self._process.kill()
                raise _BrokenChannelError("did not end in time and was killed") from None
            except (EOFError, OSError):
                raise _BrokenChannelError("has ended") from None
            except FlyballError:
                raise
            except Exception as error:
                raise _BrokenChannelError(f"sent an invalid answer ({error})") from None

    def close(self) -> None:
        """End a call in progress, and close; may be called repeatedly."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with self._in_use:
            if self.is_closed:
                return
            self.is_closed = True
            self._socket.close()
        _release_process(self._process)


class _CallerProcess:
    """Running `caller_process`, and the socket over which it receives connections.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(self) -> None:
        self.num_users = 0
        self._control, theirs = socket.socketpair()
        with theirs:
            fd = theirs.fileno()
            try:
                self._popen = subprocess.Popen(  # noqa: S603 - our own program
                    python_command("-m", _PROGRAM, str(os.getpid()), str(fd)),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[fd],
                    start_new_session=True,
                    env=python_environment(os.environ, _IMPORT_ROOT),
                )
            except BaseException:
                self._control.close()
                raise
        self._own_process = OwnProcess(self._forget)

    @property
    def is_running(self) -> bool:
        """Return whether it can be connected to."""
        return self._popen.poll() is None

    def connect(self) -> socket.socket:
        """Return a new connection to it."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [b"c"], [theirs.fileno()], socket.MSG_NOSIGNAL)
            except BaseException:
                ours.close()
                raise
        return ours

    def kill(self) -> None:
        """Kill it, and all calls in progress with it."""
        self._popen.kill()

    def end(self) -> None:
        """Kill and reap it."""
        self._control.close()
        self._popen.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(_REAP_TIMEOUT_S)

    def _forget(self) -> None:
        """Close this copy in a forked child, of which the process is no child."""
        self._control.close()
        self._popen.returncode = 0
        _Shared.process = None
        _Shared.lock = threading.Lock()


class _Shared:
    """Process of all callers; None: none is needed."""

    lock = threading.Lock()
    process: _CallerProcess | None = None


def _connect() -> tuple[_CallerProcess, socket.socket]:
    """Return the running process, or a new one, and a connection to it.

    A process that was killed may refuse connections before it counts as ended.
    """
    with _Shared.lock:
        process = _Shared.process
        if process is not None and process.is_running:
            with contextlib.suppress(ConnectionError):
                connection = process.connect()
                process.num_users += 1
                return process, connection
        process = _Shared.process = _CallerProcess()
        try:
            connection = process.connect()
        except BaseException:
            _Shared.process = None
            process.end()
            raise
        process.num_users += 1
        return process, connection


def _release_process(process: _CallerProcess) -> None:
    """End the process if it has no users."""
    with _Shared.lock:
        process.num_users -= 1
        if process.num_users:
            return
        if _Shared.process is process:
            _Shared.process = None
    process.end()
