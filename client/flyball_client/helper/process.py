"""The helper process of a rank, which `link` starts: agents that call the planner and plan steps.

It ends with the rank, however that ends, and when the rank needs it no more. Of a rank that was
killed it tells the planner, so that another start need not wait until the planner misses it.
Signals to the rank and its terminal do not end it. It ends itself where a call outlasts its
deadline, since no timeout of HTTP bounds an answer that never stops. Under load it gives way to the
training, and where memory runs out the kernel kills it first.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
from array import array
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import httpx

from flyball_client.api.connection import ConnectionOptions
from flyball_client.api.planner_client import PlannerClient
from flyball_client.helper.frames import (
    Header,
    Received,
    helper_frame,
    plan_parts,
    read_rank_frame,
)
from flyball_client.helper.job_agent import JobAgent
from flyball_client.helper.rank_agent import RankAgent
from flyball_client.helper.step_packets import HelperPackets
from flyball_client.own_priority import set_own_niceness
from flyball_client.session.plan_cursor import CompiledPlan
from flyball_client.steps.step_plans import StepDeadlines, StepLoad, StepPlan
from flyball_wire.measurements import StepMeasurement
from flyball_wire.plans.rank_plan import MAX_ANSWER_BYTES

OUTLASTED_STATUS = 75
"""Exit status where a call has outlasted its deadline."""
ALIVE_S = 5.0
"""Time in s between two signs of life."""

# Longest time in s of a call with its retries, beside the time that the planner may wait.
_MAX_CALL_S = 10.0
# A tenth of a core beside a thread of the training on the same core.
_NICER, _MOST_NICE = 10, 19
# Time limit in s: other helpers of the node start at the same time.
_NICENESS_TIMEOUT_S = 1.0
_MOST_EXPENDABLE = "1000"
# Time in s between looks at the calls in progress, and at the parent where the kernel does not tell
# of its end.
_TICK_S = 0.5
_MAX_TEXT_CHARS = 1000
# Time in s in which the planner is told of a rank that was killed.
_DEPARTURE_S = 5.0


def main() -> int:
    """Serve the rank until it has ended.

    Arguments: The rank's process number, the inherited sockets to it, for frames and for packets,
    and the level of its log.
    """
    rank_pid, fd, packets_fd, level = map(int, sys.argv[1:])
    _close_others(fd, packets_fd)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    niceness = min(_MOST_NICE, os.getpriority(os.PRIO_PROCESS, 0) + _NICER)
    set_own_niceness(niceness, timeout_s=_NICENESS_TIMEOUT_S)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_MOST_EXPENDABLE, "ascii")
    status = 1
    with contextlib.suppress(EOFError, OSError):
        # A number that `select` takes, whatever the rank has open.
        connection, packets = (socket.socket(fileno=os.dup(each)) for each in (fd, packets_fd))
        status = _Helper(rank_pid, connection, HelperPackets(packets), level).serve()
    # Threads may be waiting for the planner.
    os._exit(status)


def _close_others(*own_fds: int) -> None:
    """Close what libraries of the rank have left inheritable."""
    numbers = [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]
    for fd in numbers:
        if fd > 2 and fd not in own_fds:
            with contextlib.suppress(OSError):
                os.close(fd)


class _Helper:
    """Agents of one rank, and its connection."""

    def __init__(
        self, rank_pid: int, connection: socket.socket, packets: HelperPackets, level: int
    ) -> None:
        self._rank_pid = rank_pid
        self._connection = connection
        self.packets = packets
        self._received = Received(connection)
        self._sending = threading.Lock()
        self._deadlines = _Deadlines()
        self._agents: dict[int, tuple[RankAgent | JobAgent, _RemoteRank]] = {}
        log = logging.getLogger(__package__)
        log.setLevel(level)
        log.propagate = False
        log.addHandler(_RemoteLog(self.send))

    def serve(self) -> int:
        """Serve until the rank has ended or a call is too long; return the exit status."""
        ends: list[int] = []
        # AttributeError: a Python built without it.
        with contextlib.suppress(OSError, AttributeError):
            ends.append(os.pidfd_open(self._rank_pid))
        status = None
        # A rank that ends closes the connection.
        with contextlib.suppress(EOFError, OSError):
            status = self._serve(ends)
        if status is None and self._has_rank_ended(ends):
            self._tell_departure()
        return status or 0

    def _serve(self, ends: list[int]) -> int | None:
        """Serve as `serve`, whose result is None where the rank has ended."""
        alive_s = 0.0
        # Also after opening: the number may be another process's by now.
        while os.getppid() == self._rank_pid:
            connections = self._connection.fileno(), self.packets.fileno()
            readable, _, _ = select.select([*connections, *ends], (), (), _TICK_S)
            if any(fd in readable for fd in ends):
                break
            if self._deadlines.are_over():
                return OUTLASTED_STATUS
            if connections[0] in readable:
                self._take_frame()
                while self._received.has_more:
                    self._take_frame()
            while (asked := self.packets.take()) is not None:
                self._ask(*asked)
            if time.monotonic() >= alive_s:
                alive_s = time.monotonic() + ALIVE_S
                self.send({"event": "alive"})
        return None

    def _has_rank_ended(self, ends: list[int]) -> bool:
        """Return whether the rank has ended, which is soon after its connection."""
        select.select(ends, (), (), _TICK_S)
        return os.getppid() != self._rank_pid or bool(select.select(ends, (), (), 0)[0])

    def _tell_departure(self) -> None:
        """Report to the planner that the rank has left."""
        threads = [
            threading.Thread(target=agent.leave, daemon=True)
            for agent, _ in self._agents.values()
            if isinstance(agent, RankAgent)
        ]
        for thread in threads:
            thread.start()
        until_s = time.monotonic() + _DEPARTURE_S
        for thread in threads:
            thread.join(max(0.0, until_s - time.monotonic()))

    def send(self, header: Header, body: bytes = b"") -> None:
        """Send a frame to the rank."""
        with self._sending:
            self._connection.sendall(helper_frame(header, body))

    def _take_frame(self) -> None:
        number, event, body = read_rank_frame(self._received)
        match event:
            case "open":
                options, make_agent = body
                rank = _RemoteRank(self, number)
                agent = make_agent(_BoundedPlanner(options, self._deadlines), rank)
                self._agents[number] = agent, rank
                agent.start()
            case "stop":
                self._agents[number][0].stop()
            case "close":
                self._agents.pop(number)[0].close()
            case asked:
                self._agents[number][1].answer(asked, body)

    def _ask(self, number: int, question: StepLoad | StepDeadlines) -> None:
        """Pass a question on; an agent that is not open here, or not yet, does not get it."""
        agent, _ = self._agents.get(number, (None, None))
        if isinstance(agent, RankAgent):
            agent.ask(question)


class _RemoteRank:
    """Rank or registrar at the other end of the connection; see Rank."""

    def __init__(self, helper: _Helper, number: int) -> None:
        self._helper = helper
        self._number = number
        self._answers: dict[str, SimpleQueue[Any]] = {
            "current_step": SimpleQueue(),
            "take_steps": SimpleQueue(),
        }

    def answer(self, asked: str, answer: object) -> None:
        """Pass on what the rank has answered."""
        self._answers[asked].put(answer)

    def current_step(self) -> int:
        self._report("current_step")
        return int(self._answers["current_step"].get())

    def take_steps(self) -> tuple[StepMeasurement, ...]:
        self._report("take_steps")
        steps: tuple[StepMeasurement, ...] = self._answers["take_steps"].get()
        return steps

    def posted(self, num_dropped: int) -> None:
        self._report("posted", num_dropped=num_dropped)

    def registered(self, start_id: str) -> None:
        self._report("registered", start_id=start_id)

    def activate(self, plan: CompiledPlan, first_step: int) -> None:
        header, body = plan_parts(plan)
        self._report("plan", body, first_step=first_step, plan=header)

    def step_timed(self, step: int, times_s: tuple[float, ...]) -> None:
        self._report("step_timed", array("d", times_s).tobytes(), step=step)

    def step_planned(self, plan: StepPlan) -> None:
        self._helper.packets.answer(self._number, plan)

    def set_lost(self, is_lost: bool) -> None:
        self._report("lost", is_lost=is_lost)

    def left(self) -> None:
        self._report("left")

    def _report(self, event: str, body: bytes = b"", **fields: object) -> None:
        self._helper.send({"agent": self._number, "event": event, **fields}, body)


class _RemoteLog(logging.Handler):
    """Handler whose lines the rank logs."""

    def __init__(self, send: Any) -> None:  # noqa: ANN401 - see _Helper.send
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info is not None and record.exc_info[1] is not None:
            text = f"{text}: {record.exc_info[1]!r}"
        text = " ".join(text.split())[:_MAX_TEXT_CHARS]
        self._send({"event": "log", "level": record.levelno, "text": text})


class _Deadlines:
    """Deadlines of the calls in progress."""

    def __init__(self) -> None:
        self._of_thread: dict[int, float] = {}

    @contextmanager
    def call(self, limit_s: float) -> Generator[None, None, None]:
        """Make a call within the block, which may take so long in s."""
        thread = threading.get_ident()
        self._of_thread[thread] = time.monotonic() + limit_s
        try:
            yield
        finally:
            del self._of_thread[thread]

    def are_over(self) -> bool:
        """Return whether a call has outlasted its deadline."""
        return min((*self._of_thread.values(),), default=float("inf")) < time.monotonic()


class _BoundedPlanner(PlannerClient):
    """Client whose every call has one deadline, from its begin to the last byte."""

    def __init__(self, options: ConnectionOptions, deadlines: _Deadlines) -> None:
        super().__init__(
            options.base_url,
            token=options.token,
            timeout_s=options.timeout_s,
            ca_file=options.ca_file,
            retries=options.retries,
            max_answer_bytes=MAX_ANSWER_BYTES,
        )
        self._deadlines = deadlines
        self._max_call_s = max(_MAX_CALL_S, 2 * options.timeout_s)

    def send(self, method: str, route: str, **call: Any) -> httpx.Response:  # noqa: ANN401
        """Make the call; see PlannerConnection."""
        with self._deadlines.call(self._max_call_s + (call.get("wait_s") or 0.0)):
            return super().send(method, route, **call)


if __name__ == "__main__":
    sys.exit(main())
