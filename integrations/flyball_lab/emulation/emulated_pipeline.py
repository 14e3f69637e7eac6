"""Pipelines of emulated ranks that train in virtual time: instructions, messages, and waiting.

Each rank is a rank session with an emulated GPU, driven by the hooks as a training script
drives it. No iteration time is given here: time comes from the devices, the
order of each rank, and the messages it has to wait for.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from flyball_client.gpu.emulated import EmulatedGpu
from flyball_client.session.rank_session import RankSession
from flyball_profiles.stage_profile import OperatingPoint
from flyball_wire.messages import StepMeasurement


class RankClock:
    """EmulationClock that the rank moves itself, so that minutes of training take no time.

    Ranks share nothing but messages, and a message carries the moment it was sent. A clock a
    rank is therefore enough: what a rank does, and when, does not depend on which rank's turn
    came first on this machine.
    """

    def __init__(self) -> None:
        self._now_s = 0.0

    def now_s(self) -> float:
        """Virtual seconds since the run began."""
        return self._now_s

    def sleep_until(self, deadline_s: float) -> None:
        """Move to that moment, if it is later."""
        self._now_s = max(self._now_s, deadline_s)


class SwitchingGpu(EmulatedGpu):
    """EmulatedGpu that applies a late clock at once, not from the next instruction on.

    A rank asks for an instruction's clock as the instruction begins. With a switch latency the
    first part of it still runs at the clock before, the rest at its own: the same share of the
    work as of either clock's time and energy. For virtual time, where no computation outlasts
    its instruction.
    """

    def on_instruction_end(self, kind: str, chunk: int = 0) -> None:
        """End the computation; return when all of its parts are over.

        Raises:
            ValueError: no such instruction is running.
        """
        if self._running is not None and self._running[:2] == (kind, chunk):
            self._running = self._with_late_clocks(*self._running)
        super().on_instruction_end(kind, chunk)

    def _with_late_clocks(
        self, kind: str, chunk: int, part_began_s: float, point: OperatingPoint
    ) -> tuple[str, int, float, OperatingPoint]:
        """Return the instruction as if it had run at its last clock throughout, with equal end."""
        share_left = 1.0
        while self._requests and self._requests[0][0] < part_began_s + share_left * point.time_s:
            in_force_s, self._in_force_mhz = self._requests.popleft()
            changed_s = max(part_began_s, in_force_s)
            share_left -= (changed_s - part_began_s) / point.time_s
            point = self._variation.apply(self._points[kind, chunk, self._in_force_mhz])
            self._meter.run(point, changed_s)
            part_began_s = changed_s
        return kind, chunk, part_began_s - (1 - share_left) * point.time_s, point


Order = tuple[tuple[str, int], ...]
"""A rank's instructions as kind and microbatch, in the order of execution."""

# What gives the stage before its gradient, and what only the stage itself waits for.
_GIVES_GRADIENT = frozenset({"backward", "backward_input"})

_Waiting = Generator[str, None, None]


class EmulatedDeadlockError(Exception):
    """No rank can continue; the text names what each one waits for."""


@dataclass(frozen=True, kw_only=True, eq=False)
class EmulatedRank:
    """One rank of one pipeline.

    Attributes:
        pipeline: the data-parallel pipeline it belongs to, from 0.
        stage: of the pipeline.
        order: what it runs in a step.
        clock: its GPU's and its session's.
    """

    pipeline: int
    stage: int
    order: Order
    session: RankSession
    clock: RankClock


@dataclass(frozen=True, kw_only=True)
class _Channels:
    """Per (pipeline, from stage, to stage) what was sent: microbatch and moment of arrival, s."""

    transfer_time_s: float
    queues: defaultdict[tuple[int, int, int], deque[tuple[int, float]]] = field(
        default_factory=lambda: defaultdict(deque)
    )


def run_step(
    ranks: Sequence[EmulatedRank], *, num_stages: int, transfer_time_s: float = 0.0
) -> tuple[StepMeasurement, ...]:
    """Train one step on all ranks; it ends for all with the slowest rank.

    Each session gets the time that its rank waited for a message (`on_transfer`), 0 s for a
    message that had arrived before.

    Args:
        ranks: of all data-parallel pipelines.
        num_stages: of a pipeline.
        transfer_time_s: from a message's sending to its arrival, s, not negative; what the
            sender or the receiver computes meanwhile goes on.

    Returns:
        What each rank's session measured, in the order of the ranks.

    Raises:
        EmulatedDeadlockError: the orders of the ranks do not fit together.
        ValueError: the transfer time is negative.
    """
    if not transfer_time_s >= 0:
        raise ValueError(f"transfer_time_s must not be negative, not {transfer_time_s}")
    for rank in ranks:
        rank.session.on_step_begin()
    channels = _Channels(transfer_time_s=transfer_time_s)
    _run_all({rank: _instructions(rank, channels, num_stages) for rank in ranks})
    # The optimizer's step needs every gradient: the next step begins after the slowest rank.
    ended_s = max(rank.clock.now_s() for rank in ranks)
    for rank in ranks:
        rank.clock.sleep_until(ended_s)
        rank.session.on_step_end()
    return tuple(rank.session.history[-1] for rank in ranks)


def _run_all(running: dict[EmulatedRank, _Waiting]) -> None:
    """Let each rank run until it waits, in turn, until all are done."""
    waits: dict[EmulatedRank, str] = {}
    while running:
        before = dict(waits)
        for rank, instructions in list(running.items()):
            try:
                waits[rank] = next(instructions)
            except StopIteration:
                del running[rank]
                waits.pop(rank, None)
        if running and waits == before:
            raise EmulatedDeadlockError(
                "the ranks wait for each other: "
                + "; ".join(f"stage {rank.stage} for {wait}" for rank, wait in waits.items())
            )


def _instructions(rank: EmulatedRank, channels: _Channels, num_stages: int) -> _Waiting:
    for position, (kind, microbatch) in enumerate(rank.order):
        source, target = _neighbours(kind, rank.stage, num_stages)
        if source is not None:
            queue = channels.queues[rank.pipeline, source, rank.stage]
            while not queue:
                yield f"{kind} {microbatch} (position {position}) from stage {source}"
            sent, arrives_s = queue.popleft()
            if sent != microbatch:
                raise EmulatedDeadlockError(
                    f"stage {rank.stage} receives microbatch {sent} of stage {source} where its"
                    f" order has {kind} {microbatch}"
                )
            _wait(rank, arrives_s, kind, microbatch)
        rank.session.on_instruction_begin(kind, microbatch=microbatch)
        rank.session.on_instruction_end(kind, microbatch=microbatch)
        if target is not None:
            queue = channels.queues[rank.pipeline, rank.stage, target]
            queue.append((microbatch, rank.clock.now_s() + channels.transfer_time_s))


def _wait(rank: EmulatedRank, arrives_s: float, kind: str, microbatch: int) -> None:
    """Wait for an instruction's input, and report the time to the rank's session."""
    began_s = rank.session.clock_s()
    rank.clock.sleep_until(arrives_s)
    time_s = rank.session.clock_s() - began_s
    rank.session.on_transfer("receive", kind, time_s=time_s, microbatch=microbatch)


def _neighbours(kind: str, stage: int, num_stages: int) -> tuple[int | None, int | None]:
    """Return the stage an instruction receives from, and the one it sends to; None: none."""
    before = stage - 1 if stage > 0 else None
    after = stage + 1 if stage < num_stages - 1 else None
    if kind == "forward":
        return before, after
    if kind in _GIVES_GRADIENT:
        return after, before
    return None, None
