"""Start and end of each instruction of a step, and the times of its transfers.

Recorded at every hook: one clock reading and a few stores into rows that are reused from step to
step. `InstructionTiming` objects are created only on request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from flyball_client.session.plan_cursor import number_of_microbatches

Transfer = Literal["receive", "send"]

Begun = tuple[str, int | None, int, int | None, float]
"""Kind, microbatch, chunk, requested SM clock in MHz, and start of a computation in s.

Microbatch and clock are None where they are not known.
"""

# Recorded instructions of a step, which bounds the memory.
MAX_INSTRUCTIONS = 16_384


@dataclass(frozen=True, kw_only=True)
class InstructionTiming:
    """Measured times of one instruction of a step.

    Attributes:
        kind: Name of the instruction: `forward`, `backward`, ...
        microbatch: Microbatch, from 0; None: not known.
        chunk: Model chunk; 0 where there are none.
        sm_clock_mhz: Requested SM clock in MHz; None: no plan was in force.
        began_s: Start of its computation, in s since the start of the step.
        compute_time_s: Time of its computation in s, without waits within it.
        receive_time_s: Time of receiving its input in s, waiting included, and of waits within its
            computation.
        send_time_s: Time of sending its result in s, waiting included.
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
    """Instructions of one step as columns, which keep their length from step to step."""

    def __init__(self) -> None:
        self.num_rows = 0
        self.step_began_s = 0.0
        self.begun: list[Begun] = []
        self.ended_s: list[float] = []
        self.waited_s: list[float] = []
        self.receive_s: list[float] = []
        self.send_s: list[float] = []

    def grow(self) -> None:
        self.begun.append(("", None, 0, None, 0.0))
        for column in (self.ended_s, self.waited_s, self.receive_s, self.send_s):
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
            compute_time_s=max(0.0, self.ended_s[row] - began_s - self.waited_s[row]),
            receive_time_s=self.receive_s[row] + self.waited_s[row],
            send_time_s=self.send_s[row],
        )


class TimingRecorder:
    """Timings of the current step and of the last completed one."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._running = _Rows()
        self._ended = _Rows()
        self._received_s: dict[str, float] = {}
        # Row of the running computation; None: none runs, or it is not recorded.
        self._computing: int | None = None

    def begin_step(self) -> None:
        """Start a step; discard one that was not ended."""
        self._running.num_rows = 0
        self._computing = None
        self._received_s.clear()
        self._running.step_began_s = self._clock_s()

    def end_step(self) -> None:
        """End the step; its timings become those of the last step."""
        self._running, self._ended = self._ended, self._running
        self._running.num_rows = 0

    def begin(self, begun: Begun) -> None:
        """Record the start of a computation."""
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
        rows.waited_s[row] = rows.send_s[row] = 0.0
        rows.num_rows = row + 1
        # Zero time, until its end is recorded.
        rows.ended_s[row] = begun[4]

    def end(self) -> None:
        """Record the end of the computation that began last."""
        now_s = self._clock_s()
        if self._computing is not None:
            self._running.ended_s[self._computing] = now_s
            self._computing = None

    def add_wait(self, time_s: float) -> None:
        """Record a wait within the computation that began last; without one it is left out."""
        if self._computing is not None:
            self._running.waited_s[self._computing] += time_s

    def add_transfer(
        self, transfer: Transfer, kind: str, microbatch: int | None, chunk: int, time_s: float
    ) -> None:
        """Record a transfer: a receive for the next instruction of this kind, a send for this one.

        A send of an instruction that did not run in this step is left out.
        """
        if transfer == "receive":
            self._received_s[kind] = self._received_s.get(kind, 0.0) + time_s
            return
        rows = self._running
        # Most sends belong to the last instruction.
        for row in range(rows.num_rows - 1, -1, -1):
            name, of_microbatch, of_chunk, _, _ = rows.begun[row]
            is_it = microbatch is None or microbatch == of_microbatch
            if is_it and name == kind and of_chunk == chunk:
                rows.send_s[row] += time_s
                return

    @property
    def num_microbatches(self) -> int | None:
        """Return the number of microbatches of the last completed step; None: not known."""
        rows = self._ended
        return number_of_microbatches(begun[:2] for begun in rows.begun[: rows.num_rows])

    def compute_times_s(self) -> list[float]:
        """Return the time of each computation of the last completed step, s, without waits."""
        rows = self._ended
        columns = zip(rows.begun[: rows.num_rows], rows.ended_s, rows.waited_s, strict=False)
        times_s = [ended_s - begun[4] - waited_s for begun, ended_s, waited_s in columns]
        return [time_s if time_s > 0 else 0.0 for time_s in times_s]

    def last_step(self) -> tuple[InstructionTiming, ...]:
        """Return the timings of the last completed step, in the order of execution."""
        return self._ended.timings()
