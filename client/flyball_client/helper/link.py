"""A training process's connection to its helper, which all its sessions and registrars share.

Whatever a planner answers is received, decoded and checked in the helper: it takes none of the
training process's time, memory or interpreter lock. One thread waits for what the helper reports,
and starts another where it has ended: what agents need to start again is kept here.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from flyball_client.api.connection import ConnectionOptions
from flyball_client.api.planner_client import PlannerClient
from flyball_client.governor.own_process import OwnProcess
from flyball_client.helper.frames import (
    Header,
    Receive,
    Received,
    count_of,
    rank_frame,
    read_header,
    read_plan,
    read_times,
)
from flyball_client.helper.job_agent import JobAgent
from flyball_client.helper.planner_calls import Backoff, Owner
from flyball_client.helper.process import ALIVE_S, OUTLASTED_STATUS
from flyball_client.helper.rank_agent import RankAgent
from flyball_client.helper.step_packets import StepPackets
from flyball_client.steps.step_plans import StepDeadlines, StepLoad
from flyball_wire.command.python_child import python_command, python_environment

_logger = logging.getLogger(__name__)

# A helper that gives no sign of life for this time in s is killed; it may be started on a busy
# node, with Python on a network's file system.
_SILENCE_S = 12 * ALIVE_S
# A training process that ends waits this time in s for a helper that has stopped reading.
_BLOCKED_S = 1.0
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 15.0
_REAP_TIMEOUT_S, _REAP_PAUSE_S = 1.0, 0.005
_NO_STREAMS = [
    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDWR, 0),
    (os.POSIX_SPAWN_DUP2, 0, 1),
    (os.POSIX_SPAWN_DUP2, 0, 2),
]
_IMPORT_ROOT = Path(__file__).parents[2]
_PROGRAM = "flyball_client.helper.process"
_MAX_TEXT_CHARS = 1000
_MAX_NAME_CHARS = 256


_READERS: dict[str, Callable[[Header, int, Receive], object]] = {
    "plan": lambda header, num_bytes, receive: read_plan(header["plan"], num_bytes, receive),
    "step_timed": lambda _, num_bytes, receive: read_times(num_bytes, receive),
}


class AgentOwner(Owner, Protocol):
    """Rank or registrar that has an agent."""

    def agent_maker(self) -> Callable[[PlannerClient, Any], RankAgent | JobAgent]:
        """Return what makes an agent of a client and its owner; it is pickled."""
        ...

    def helper_ended(self, why: str) -> None:
        """Report that the helper "has ended", say; another helper starts."""
        ...


def open_agent(planner: PlannerClient, owner: AgentOwner) -> OpenAgent:
    """Start an agent: in the helper, or in this process if the client's network is replaced.

    The planner's client is not closed here.

    Raises:
        RuntimeError: No thread can be started.
    """
    if planner.options is None:
        return _DirectAgent(planner, owner)
    return _HelperAgent(planner.options, owner)


class _DirectAgent:
    """Agent whose threads are this process's."""

    _STOP_TIMEOUT_S = 0.2

    def __init__(self, planner: PlannerClient, owner: AgentOwner) -> None:
        self._agent = owner.agent_maker()(planner, owner)
        self._agent.start()

    def ask(self, question: StepLoad | StepDeadlines) -> bool:
        self._agent.ask(question)
        return True

    def take_step_plan(self) -> bool:
        return False  # its thread hands plans over

    def stop(self) -> None:
        self._agent.stop()

    def close(self) -> None:
        self._agent.close(self._STOP_TIMEOUT_S)


class _HelperAgent:
    """Agent in the helper, which ends with its last agent."""

    def __init__(self, options: ConnectionOptions, owner: AgentOwner) -> None:
        with _Shared.lock:
            link = _Shared.link
            if link is None:
                link = _Link()
            self._number = link.open(options, owner)
            self._link = _Shared.link = link

    def ask(self, question: StepLoad | StepDeadlines) -> bool:
        return self._link.ask(self._number, question)

    def take_step_plan(self) -> bool:
        """Hand the next step's plan to its owner; return whether there was one."""
        return self._link.take_step_plan()

    def stop(self) -> None:
        self._link.stop(self._number)

    def close(self) -> None:
        with _Shared.lock:
            if self._link.close(self._number) and _Shared.link is self._link:
                _Shared.link = None


OpenAgent = _DirectAgent | _HelperAgent


class _Process:
    """Running helper, and the connection to it.

    It is spawned, not forked and executed by `subprocess`: that waits until all copies of a pipe
    are closed, also that of a process which another thread forks meanwhile, as a loader's worker.

    Args:
        packets: Packets of which it inherits the helper's end.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(self, packets: StepPackets) -> None:
        self._socket, theirs = socket.socketpair()
        # Also of sending: a helper that takes nothing is as good as dead.
        self._socket.settimeout(_SILENCE_S)
        self.receive = Received(self._socket)
        self._reaping = threading.Lock()
        self._is_reaped = False
        level = logging.getLogger(__name__).getEffectiveLevel()
        numbers = os.getpid(), theirs.fileno(), packets.helper.fileno(), level
        command = python_command("-m", _PROGRAM, *map(str, numbers))
        with theirs:
            try:
                theirs.set_inheritable(True)
                packets.helper.set_inheritable(True)
                self._pid = os.posix_spawn(
                    command[0],
                    command,
                    python_environment(os.environ, _IMPORT_ROOT),
                    file_actions=_NO_STREAMS,
                    setsid=True,
                    setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
                )
            except BaseException:
                self._socket.close()
                raise
            finally:
                packets.helper.set_inheritable(False)

    def send(self, agent: int, event: str, body: object = None) -> None:
        """Send a frame; a helper that has ended takes none."""
        frame = rank_frame(agent, event, body)
        with contextlib.suppress(OSError):
            self._socket.sendall(frame, socket.MSG_NOSIGNAL)

    def kill(self) -> None:
        """Kill it, which ends a `receive` in progress."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with self._reaping, contextlib.suppress(ProcessLookupError):
            if not self._is_reaped:
                os.kill(self._pid, signal.SIGKILL)

    def end(self) -> int | None:
        """Kill and reap it, on the thread that receives; return its exit status, if it is known."""
        self.kill()
        self._socket.close()
        give_up_s = time.monotonic() + _REAP_TIMEOUT_S
        while time.monotonic() < give_up_s:
            with self._reaping:
                try:
                    pid, status = os.waitpid(self._pid, os.WNOHANG)
                except ChildProcessError:  # the training ignores its children
                    self._is_reaped = True
                    return None
                if pid:
                    self._is_reaped = True
                    return os.waitstatus_to_exitcode(status)
            time.sleep(_REAP_PAUSE_S)
        return None

    def forget(self) -> None:
        """Close this copy in a forked child, of which the process is no child."""
        self._socket.close()
        self._reaping, self._is_reaped = threading.Lock(), True


class _Link:
    """Thread that serves the helper's agents and starts the helper again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owners: dict[int, tuple[ConnectionOptions, AgentOwner]] = {}
        self._stopping: set[int] = set()
        self._next_number = 0
        self._process: _Process | None = None
        self._packets: StepPackets | None = None
        self._is_over = threading.Event()
        self._backoff = Backoff(first_s=_FIRST_PAUSE_S, longest_s=_LONGEST_PAUSE_S)
        self._thread = threading.Thread(target=self._run, name="flyball-helper", daemon=True)
        self._own_process = OwnProcess(self._forget)

    def open(self, options: ConnectionOptions, owner: AgentOwner) -> int:
        """Add an agent, and return its number."""
        with self._lock:
            number = self._next_number
            self._next_number += 1
            self._owners[number] = options, owner
            if self._process is not None:
                self._send_open(self._process, number)
        if self._thread.ident is None:
            self._thread.start()
        return number

    def ask(self, number: int, question: StepLoad | StepDeadlines) -> bool:
        """Ask a rank's agent about a step; return whether there is a helper that may answer.

        For hooks: it neither waits nor takes a lock.
        """
        packets = self._packets
        return self._process is not None and packets is not None and packets.ask(number, question)

    def take_step_plan(self) -> bool:
        """Hand the next step's plan to its owner; return whether there was one. For hooks."""
        packets = self._packets
        try:
            found = None if packets is None else packets.take()
        except ValueError:
            return True  # its step has no plan of its own
        if found is None:
            return False
        number, plan = found
        _, owner = self._owners.get(number, (None, None))
        step_planned = getattr(owner, "step_planned", None)
        if step_planned is not None:  # no registrar
            step_planned(plan)
        return True

    def stop(self, number: int) -> None:
        """Begin the end of an agent."""
        with self._unblocked():
            self._stopping.add(number)
            self._send(number, "stop")

    def close(self, number: int) -> bool:
        """End an agent; return whether it was the last agent, with which the helper ends."""
        with self._unblocked():
            if len(self._owners) > 1:
                self._send(number, "close")
            self._stopping.discard(number)
            if self._owners.pop(number, None) is None or self._owners:
                return False
            self._is_over.set()
            if self._process is not None:
                self._process.kill()
        if threading.current_thread() is not self._thread:
            self._thread.join(_REAP_TIMEOUT_S)
        self._close_packets()
        return True

    @contextmanager
    def _unblocked(self) -> Generator[None, None, None]:
        """Hold the lock; kill a helper that has stopped reading, for which its holder waits."""
        if not self._lock.acquire(timeout=_BLOCKED_S):
            if (process := self._process) is not None:
                process.kill()
            self._lock.acquire()
        try:
            yield
        finally:
            self._lock.release()

    def _close_packets(self) -> None:
        if self._packets is not None:
            self._packets.close()

    def _send(self, number: int, event: str, body: object = None) -> None:
        if self._process is not None and number in self._owners:
            self._process.send(number, event, body)

    def _send_open(self, process: _Process, number: int) -> None:
        options, owner = self._owners[number]
        process.send(number, "open", (options, owner.agent_maker()))
        if number in self._stopping:
            process.send(number, "stop")

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        while not self._is_over.is_set():
            why = self._serve_one()
            if self._is_over.is_set():
                return
            with self._lock:
                owners = [owner for _, owner in self._owners.values()]
            for owner in owners:
                owner.helper_ended(why)
            self._is_over.wait(self._backoff.next_pause_s())

    def _serve_one(self) -> str:
        """Start a helper and serve it until its end; return the reason, after "the process"."""
        try:
            self._packets = packets = self._packets or StepPackets()
            process = _Process(packets)
        except OSError as error:
            return f"cannot be started ({error})"
        with self._lock:
            self._process = process
            for number in self._owners:
                self._send_open(process, number)
        try:
            while not self._is_over.is_set():
                self._take_event(process)
            why = "is no longer needed"
        except TimeoutError:
            why = f"gave no sign of life for {_SILENCE_S:g} s and was killed"
        except (EOFError, OSError):
            why = "has ended"
        except Exception as error:
            why = f"sent an invalid frame ({error!r}) and was killed"
        with self._lock:
            self._process = None
        if process.end() == OUTLASTED_STATUS:
            why = "has ended itself, since a call took longer than its time"
        return why

    def _take_event(self, process: _Process) -> None:
        header, num_bytes = read_header(process.receive)
        event = header["event"]
        if num_bytes and event not in _READERS:
            raise ValueError("only plans and times have a body")
        if event == "alive":
            return
        if event == "log":
            _logger.log(count_of(header["level"]), "%s", str(header["text"])[:_MAX_TEXT_CHARS])
            return
        with self._lock:
            number = header["agent"]
            _, owner = self._owners.get(number, (None, None))
        read = _READERS.get(event)
        body = None if read is None else read(header, num_bytes, process.receive)
        if owner is not None:
            self._report(number, owner, event, header, body)

    def _report(
        self,
        number: int,
        owner: Any,  # noqa: ANN401 - a registrar is asked for nothing that it has not
        event: str,
        header: Header,
        body: object,
    ) -> None:
        """Tell an agent's owner, and answer what it is asked for."""
        match event:
            case "current_step":
                self._answer(number, event, owner.current_step())
            case "take_steps":
                self._answer(number, event, owner.take_steps())
            case "lost":
                owner.set_lost(header["is_lost"] is True)
            case "left":
                owner.left()
            case "posted":
                owner.posted(count_of(header["num_dropped"]))
                self._backoff.reset()
            case "registered":
                owner.registered(str(header["start_id"])[:_MAX_NAME_CHARS])
                self._backoff.reset()
            case "plan":
                owner.activate(body, count_of(header["first_step"]))
                self._backoff.reset()
            case "step_timed":
                owner.step_timed(count_of(header["step"]), body)
            case _:
                raise ValueError("an event is unknown")

    def _answer(self, number: int, event: str, answer: object) -> None:
        with self._lock:
            self._send(number, event, answer)

    def _forget(self) -> None:
        """Close this copy in a forked child."""
        self._is_over.set()
        self._close_packets()
        if self._process is not None:
            self._process.forget()
        _Shared.link = None
        _Shared.lock = threading.Lock()


class _Shared:
    """Link of this process; None: no agent is needed."""

    lock = threading.Lock()
    link: _Link | None = None
