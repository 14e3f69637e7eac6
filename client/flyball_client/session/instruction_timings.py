"""Start and end of each instruction of a step, and the waits for its neighbours.

Taken at every hook, so taking one is a reading of the clock and a few stores into rows that are
kept from step to step; records are made of them only when somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Transfer = Literal["receive", "send"]

Begun = tuple[str, int | None, int, int | None, float]
"""Kind, microbatch, chunk, SM clock asked for, MHz, and when a computation began, s.

Microbatch and clock are None where nobody told them.
"""

# Of a step; what comes after them is not recorded, so that memory is bounded whoever calls.
MAX_INSTRUCTIONS = 16_384


@dataclass(frozen=True, kw_only=True)
class InstructionTiming:
    """One instruction of a step, as it ran.

    Attributes:
        kind: `forward`, `backward`, ...
        microbatch: from 0; None where the framework does not tell.
        chunk: of the model; 0 where there are none.
        sm_clock_mhz: that was asked for, MHz; None where no plan was in force.
        began_s: when its computation began, s since the step's begin.
        compute_time_s: how long it computed, s.
        receive_time_s: how long its input was received before, s, waiting included.
        send_time_s: how long its result was sent after, s, waiting included.
    """

    kind: str
    microbatch: int | None
    chunk: int
    sm_clock_mhz: int | None
    began_s: float
    compute_time_s: float
    receive_time_s: float
    send_time_s: float


class _Rows:
    """One step's instructions as columns, which keep their length when a new step begins."""

    def __init__(self) -> None:
        self.num_rows = 0
        self.step_began_s = 0.0
        self.begun: list[Begun] = []
        self.ended_s: list[float] = []
        self.receive_s: list[float] = []
        self.send_s: list[float] = []

    def grow(self) -> None:
        self.begun.append(("", None, 0, None, 0.0))
        for column in (self.ended_s, self.receive_s, self.send_s):
            column.append(0.0)

    def timings(self) -> tuple[InstructionTiming, ...]:
        return tuple(self._timing(row) for row in range(self.num_rows))

    def _timing(self, row: int) -> InstructionTiming:
        kind, microbatch, chunk, sm_clock_mhz, began_s = self.begun[row]
        return InstructionTiming(
            kind=kind,
            microbatch=microbatch,
            chunk=chunk,
            sm_clock_mhz=sm_clock_mhz,
            began_s=began_s - self.step_began_s,
            compute_time_s=self.ended_s[row] - began_s,
            receive_time_s=self.receive_s[row],
            send_time_s=self.send_s[row],
        )


class TimingRecorder:
    """Takes the timings of the step that runs, and keeps those of the last one that ended.

    Args:
        clock_s: monotonic time, s.
    """

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._running = _Rows()
        self._ended = _Rows()
        self._received_s: dict[str, float] = {}
        # The row of the computation that runs; None: none does, or it is not recorded.
        self._computing: int | None = None

    def begin_step(self) -> None:
        """A step begins; one that was abandoned is forgotten."""
        self._running.num_rows = 0
        self._computing = None
        self._received_s.clear()
        self._running.step_began_s = self._clock_s()

    def end_step(self) -> None:
        """The step is over: its timings are the last step's from now on."""
        self._running, self._ended = self._ended, self._running
        self._running.num_rows = 0

    def begin(self, begun: Begun) -> None:
        """A computation has begun, and no other call came since."""
        rows = self._running
        row = rows.num_rows
        if row == len(rows.begun):
            if row == MAX_INSTRUCTIONS:
                self._computing = None
                return
            rows.grow()
        self._computing = row
        rows.begun[row] = begun
        kind = begun[0]
        rows.receive_s[row] = self._received_s.pop(kind, 0.0) if self._received_s else 0.0
        rows.send_s[row] = 0.0
        rows.num_rows = row + 1
        # One that never ends, as where only its begin is hooked, took no time.
        rows.ended_s[row] = begun[4]

    def end(self) -> None:
        """The computation that began last is over."""
        now_s = self._clock_s()
        if self._computing is not None:
            self._running.ended_s[self._computing] = now_s
            self._computing = None

    def add_transfer(
        self, transfer: Transfer, kind: str, microbatch: int | None, chunk: int, time_s: float
    ) -> None:
        """A transfer took so long: a receive of the next of that kind, a send of the one named.

        A send of an instruction that did not run in this step is left out.
        """
        if transfer == "receive":
            self._received_s[kind] = self._received_s.get(kind, 0.0) + time_s
            return
        rows = self._running
        # Most sends are those of the last instruction, so it is looked for from the end.
        for row in range(rows.num_rows - 1, -1, -1):
            name, of_microbatch, of_chunk, _, _ = rows.begun[row]
            is_it = microbatch is None or microbatch == of_microbatch
            if is_it and name == kind and of_chunk == chunk:
                rows.send_s[row] += time_s
                return

    def last_step(self) -> tuple[InstructionTiming, ...]:
        """The timings of the last step that ended, in the order of execution."""
        return self._ended.timings()
