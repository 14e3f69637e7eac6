"""Packets of a rank's hooks and its helper: questions about steps, and the steps' plans.

A hook sends and takes them itself. A packet is sent whole or not at all, and at once: no thread
has to wait for Python's lock, and a hook that a signal's handler ends leaves nothing half sent.
"""

from __future__ import annotations

import pickle
import socket
import struct
from array import array
from contextlib import suppress

from flyball_client.steps.step_plans import PlanKey, StepDeadlines, StepLoad, StepPlan
from flyball_wire.plans.rank_plan import MAX_INSTRUCTIONS

# Of a step's plan before its clocks: agent, step, whether changes are counted, and its figures.
_PLAN = struct.Struct("=Iq?5d")
_INT_BYTES = 4
_MOST_PLAN_BYTES = _PLAN.size + _INT_BYTES * MAX_INSTRUCTIONS
# The work of the longest step that is planned takes less.
_MOST_QUESTION_BYTES = 2**19


class StepPackets:
    """Both ends of the packets.

    Raises:
        OSError: There are too many open files.

    Attributes:
        helper: End that one helper after another inherits.
    """

    def __init__(self) -> None:
        self._rank, self.helper = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._rank.setblocking(False)
        # What the kernel permits.
        with suppress(OSError):
            self._rank.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * _MOST_QUESTION_BYTES)

    def ask(self, agent: int, question: StepLoad | StepDeadlines) -> bool:
        """Ask a helper's agent; return whether the question is on its way."""
        packet = question_packet(agent, question)
        if len(packet) > _MOST_QUESTION_BYTES:
            return False
        try:
            self._rank.send(packet)
        except OSError:
            return False
        return True

    def take(self) -> tuple[int, StepPlan] | None:
        """Return the next agent and its step's plan; None: there is none yet.

        Raises:
            ValueError: It is no plan.
        """
        try:
            packet = self._rank.recv(_MOST_PLAN_BYTES + 1)
        except OSError:
            return None
        return read_plan_packet(packet)

    def close(self) -> None:
        """Close both ends."""
        self._rank.close()
        self.helper.close()


class HelperPackets:
    """The helper's end."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._socket.setblocking(False)

    def fileno(self) -> int:
        """Return the file descriptor, to wait for questions."""
        return self._socket.fileno()

    def take(self) -> tuple[int, StepLoad | StepDeadlines] | None:
        """Return the next agent and the question to it; None: there is none."""
        try:
            packet = self._socket.recv(_MOST_QUESTION_BYTES)
        except OSError:
            return None
        return read_question_packet(packet)

    def answer(self, agent: int, plan: StepPlan) -> None:
        """Send a step's plan; a rank that takes none gets none."""
        with suppress(OSError):
            self._socket.send(plan_packet(agent, plan))


def question_packet(agent: int, question: StepLoad | StepDeadlines) -> bytes:
    """Return a packet of the rank: builtin types, since classes take most of a pickle's time."""
    if isinstance(question, StepDeadlines):
        return pickle.dumps((agent, (), tuple(question)))
    step, plan, *others, deadlines = question
    return pickle.dumps((agent, (step, tuple(plan), *others), tuple(deadlines or ())))


def read_question_packet(packet: bytes) -> tuple[int, StepLoad | StepDeadlines]:
    """Return the agent that is asked, and the question."""
    agent, load, deadlines = pickle.loads(packet)  # noqa: S301 - the rank's own
    if not load:
        return agent, StepDeadlines(*deadlines)
    step, plan, *others = load
    question = StepLoad(step, PlanKey(*plan), *others)
    return agent, question._replace(deadlines=StepDeadlines(*deadlines)) if deadlines else question


def plan_packet(agent: int, plan: StepPlan) -> bytes:
    """Return a packet of the helper: no pickle, since the planner's bytes have been there."""
    figures = (plan.slack, plan.saved_j, plan.slowness, plan.highest_s, plan.lower_s)
    begin = _PLAN.pack(agent, plan.step, plan.counts_changes, *figures)
    return begin + array("i", plan.clocks_mhz).tobytes()


def read_plan_packet(packet: bytes) -> tuple[int, StepPlan]:
    """Return the agent that has made a step's plan, and the plan.

    Raises:
        ValueError: It is none, or exceeds its bounds.
    """
    num_bytes = len(packet) - _PLAN.size
    if num_bytes % _INT_BYTES or not 0 <= num_bytes <= _MOST_PLAN_BYTES - _PLAN.size:
        raise ValueError("a step's plan is out of its bounds")
    agent, step, counts_changes, slack, saved_j, slowness, highest_s, lower_s = _PLAN.unpack_from(
        packet
    )
    plan = StepPlan(
        step=step,
        clocks_mhz=tuple(array("i", packet[_PLAN.size :])),
        slack=slack,
        saved_j=saved_j,
        slowness=slowness,
        highest_s=highest_s,
        lower_s=lower_s,
        counts_changes=counts_changes,
    )
    return agent, plan
