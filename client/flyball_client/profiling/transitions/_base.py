"""Contract of GPUs whose clock changes are measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from flyball_client.gpu._base import ClockCall, ClockLimit
from flyball_profiles.measured_transitions import TransitionLoad


class Loop(NamedTuple):
    """One loop of the load on a GPU.

    Attributes:
        begin_s, end_s: Moments in s, of the clock that `ClockCall` has.
        work: SM cycles, or 1 where every loop has the same work.
    """

    begin_s: float
    end_s: float
    work: float

    @property
    def rate(self) -> float:
        """Work per second."""
        return self.work / (self.end_s - self.begin_s)


@dataclass(frozen=True, kw_only=True)
class LoadedRun:
    """Loops of one GPU in a time in which it computed.

    Attributes:
        loops: Loops in order of time.
        sm_clock_mhz: Clock read back near the end, MHz.
        limits: Limits of the clock then.
    """

    loops: tuple[Loop, ...]
    sm_clock_mhz: int
    limits: ClockLimit


@dataclass(frozen=True, kw_only=True)
class ObservedChange:
    """One requested change of one GPU's clock.

    Attributes:
        call: Call that set the clock.
        loops: Loops in order of time.
    """

    call: ClockCall
    loops: tuple[Loop, ...]


class TransitionBench(Protocol):
    """GPUs of one node, each with a governor of its clock, and a load of short equal loops.

    GPUs are counted from 0. Requests go through the governors, as in training.

    Raises, from all methods:
        GpuError: A GPU cannot be read, or its clock cannot be set.
        LoopError: The load failed.
    """

    @property
    def num_gpus(self) -> int:
        """Number of GPUs."""
        ...

    @property
    def counts_cycles(self) -> bool:
        """True: the loops' work is their SM cycles."""
        ...

    def run(self, gpus: Sequence[int], time_s: float) -> tuple[LoadedRun, ...]:
        """Compute on these GPUs for a time in s."""
        ...

    def change(
        self,
        gpus: Sequence[int],
        clock_mhz: int,
        *,
        load: TransitionLoad,
        lead_s: float,
        window_s: float,
    ) -> tuple[ObservedChange, ...]:
        """Request a clock on these GPUs at once, which is not the one requested before.

        Args:
            gpus: GPUs.
            clock_mhz: Clock in MHz.
            load: COMPUTING: they compute from `lead_s` before the request on; IDLE: from the
                request on, after `lead_s` without work.
            lead_s: Time in s before the request.
            window_s: Time in s after it for which loops are recorded.
        """
        ...
