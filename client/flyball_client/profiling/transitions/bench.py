"""A computing GPU whose clock is requested through its governor, and its load of short loops."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Protocol, Self

from flyball_client.gpu._base import ClockCall, ClockLimit, GpuDevice, GpuError
from flyball_client.gpu.emulated import EmulatedGpu, EmulatedGpuSettings, EmulatedNode, LeapingClock
from flyball_client.profiling.held_clock import HeldClock
from flyball_client.profiling.line_process import LineProcess, LineProcessError
from flyball_client.profiling.transitions.detection import Loop
from flyball_pipeline.instruction import InstructionKind
from flyball_profiles.stage_profile import StageProfile

_logger = logging.getLogger(__name__)

READY, COMPUTING = "ready", "computing"
CYCLES, PRODUCTS = "cycles", "products"
"""Lines of `flyball_integrations.shared.clock_loops`, and its two kinds of loops."""

# Importing torch and compiling take long on a busy machine.
_READY_WITHIN_S = 180.0
_ANSWERED_WITHIN_S = 30.0
_SET_WITHIN_S = 30.0
_POLL_S = 0.001
# Before the end of a load, so that the clock is read while the GPU computes.
_READ_BEFORE_END_S = 0.02
# Between calls at once, so that no governor still reads its clock back.
_REST_S = 0.1


class LoopSource(Protocol):
    """Load of loops on one GPU, for a `with` block.

    Raises, from all methods:
        LineProcessError: The load failed.
    """

    @property
    def counts_cycles(self) -> bool:
        """True: the loops' work is their SM cycles."""
        ...

    def begin(self, time_s: float) -> None:
        """Compute for a time in s; return once the GPU computes."""
        ...

    def loops(self) -> tuple[Loop, ...]:
        """Wait for the end, and return the loops since the last `begin`."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exception: object) -> None: ...


class LoopProcess:
    """LoopSource in a process of its own, which uses torch.

    Args:
        device: CUDA's number of the GPU; None: loops on the CPU.
    """

    def __init__(self, device: int | None) -> None:
        self._process = LineProcess(
            "the load of loops",
            "flyball_integrations.shared.clock_loops",
            ["--device", "cpu" if device is None else str(device)],
        )
        self._is_on_gpu = device is not None
        self.counts_cycles = False

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._process)
            _, _, way = self._line(READY, _READY_WITHIN_S).partition(" ")
            stack.pop_all()
        self.counts_cycles = way == CYCLES
        if self._is_on_gpu and not self.counts_cycles:
            reason = self._process.last_error_line()
            _logger.warning("changes are measured coarsely: %s", reason)
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.__exit__(*exception)

    def begin(self, time_s: float) -> None:
        """Compute for a time in s; return once the device computes."""
        self._process.write(repr(time_s))
        self._line(COMPUTING, _ANSWERED_WITHIN_S)

    def loops(self) -> tuple[Loop, ...]:
        """Wait for the end, and return the loops since the last `begin`."""
        rows = json.loads(self._line("[", _ANSWERED_WITHIN_S))
        return tuple(Loop(*row) for row in rows)

    def _line(self, expected: str, within_s: float) -> str:
        line = self._process.line(within_s)
        if not line.startswith(expected):
            raise LineProcessError(f"the load of loops answered {line[:200]!r}")
        return line


class TransitionBench:
    """GPU, load and governor, for a `with` block; the clock is restored at its end.

    Args:
        gpu: Opened GPU.
        source: Load of loops on it, not yet entered.
        other: Another free GPU of the node; None: there is none.
        sleep: Function that waits for a time in s.

    Raises, from all methods:
        GpuError: The GPU cannot be read, or its clock cannot be set.
        LineProcessError: The load failed.
    """

    def __init__(
        self,
        gpu: GpuDevice,
        source: LoopSource,
        *,
        other: GpuDevice | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.gpu = gpu
        self._source = source
        self._other = other
        self._sleep = sleep
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._source)
            self._held = stack.enter_context(HeldClock(self.gpu))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    @property
    def counts_cycles(self) -> bool:
        """True: the loops' work is their SM cycles."""
        return self._source.counts_cycles

    def run(self, time_s: float) -> tuple[tuple[Loop, ...], int, ClockLimit]:
        """Compute for a time in s; return the loops, the clock read back in MHz, and its limits."""
        self._source.begin(time_s)
        self._sleep(max(0.0, time_s - _READ_BEFORE_END_S))
        ran_mhz, limits = self.gpu.sm_clock_mhz(), self.gpu.clock_limits()
        return self._source.loops(), ran_mhz, limits

    def change(
        self, clock_mhz: int, *, lead_s: float, window_s: float
    ) -> tuple[ClockCall, tuple[Loop, ...]]:
        """Request a clock while the GPU computes; return its call, and the loops around it.

        Args:
            clock_mhz: Clock in MHz, other than that requested before.
            lead_s: Time in s before the request for which loops are recorded.
            window_s: Time in s after it for which loops are recorded.
        """
        self._source.begin(lead_s + window_s)
        self._sleep(lead_s)
        self._held.request_mhz(clock_mhz)
        return self._finished_call(self._held, clock_mhz), self._source.loops()

    def calls_at_once(self, clocks_mhz: Sequence[int]) -> list[tuple[ClockCall, ClockCall]]:
        """Request clocks of this GPU and the other one at the same moments.

        Args:
            clocks_mhz: Clocks in MHz, each other than the clock before, the first not the highest.

        Returns:
            Both calls per clock but the first; the call that returned last is second. Empty: there
            is no other GPU.
        """
        pairs: list[tuple[ClockCall, ClockCall]] = []
        if self._other is None:
            return pairs
        with HeldClock(self._other) as held:
            both = (self._held, held)
            for clock_mhz in clocks_mhz:
                self._sleep(_REST_S)
                for clock in both:
                    clock.request_mhz(clock_mhz)
                calls = [self._finished_call(clock, clock_mhz) for clock in both]
                first, last = sorted(calls, key=lambda call: call.returned_s)
                pairs.append((first, last))
        return pairs[1:]  # the first clock may have been requested before

    def _finished_call(self, held: HeldClock, clock_mhz: int) -> ClockCall:
        give_up_s = time.monotonic() + _SET_WITHIN_S
        while time.monotonic() < give_up_s:
            call = held.last_call()
            if call is not None and call.sm_clock_mhz == clock_mhz:
                return call
            self._sleep(_POLL_S)
        raise GpuError(f"{clock_mhz} MHz was not set within {_SET_WITHIN_S:g} s")


_LOOP_S = 4e-4
_LOOP = InstructionKind.FORWARD.value


class EmulatedLoops:
    """LoopSource of an emulated GPU in virtual time: short parts of the first stage's forward."""

    counts_cycles = False

    def __init__(
        self, profile: StageProfile, settings: EmulatedGpuSettings, *, product: str = "GPU"
    ) -> None:
        self._clock, node = LeapingClock(), EmulatedNode()
        self.gpu, self.other = (
            EmulatedGpu(
                _loop_profile(profile),
                0,
                blocking_power_w=0.0,
                settings=replace(settings, seed=settings.seed + place),
                node=node,
                clock=self._clock,
                product=product,
            )
            for place in range(2)
        )
        self._found: list[Loop] = []
        self._began_s: float | None = None  # of the running loop
        self._until_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def begin(self, time_s: float) -> None:
        """Compute for a time in s."""
        self._found, self._until_s = [], self._clock.now_s() + time_s
        self._begin_loop()

    def sleep(self, time_s: float) -> None:
        """Pass a time in s, in which the GPU computes."""
        until_s = self._clock.now_s() + time_s
        while self._began_s is not None and self.gpu.completion_s() <= until_s:
            if self._end_loop(self._began_s) < self._until_s:
                self._begin_loop()
        self._clock.sleep_until(until_s)

    def loops(self) -> tuple[Loop, ...]:
        """Compute until the end, and return the loops since the last `begin`."""
        self.sleep(max(0.0, self._until_s - self._clock.now_s()))
        if self._began_s is not None:
            self._end_loop(self._began_s)
        return tuple(self._found)

    def _begin_loop(self) -> None:
        self._began_s = self._clock.now_s()
        self.gpu.on_instruction_begin(_LOOP)

    def _end_loop(self, began_s: float) -> float:
        """Compute until the end of the running loop, and return its moment in s."""
        ends_s = self.gpu.completion_s()
        self._clock.sleep_until(ends_s)
        self.gpu.on_instruction_end(_LOOP)
        self._found.append(Loop(began_s, ends_s, 1.0))
        self._began_s = None
        return ends_s


def _loop_profile(profile: StageProfile) -> StageProfile:
    """Return the profile of loops: parts of the first stage's forward, as short as wanted."""
    falling = profile.points[0, InstructionKind.FORWARD]
    share = _LOOP_S / falling[0].time_s
    points = tuple(
        replace(
            point, time_s=share * point.time_s, energy_j=share * point.energy_j, rank_waiting_s=0.0
        )
        for point in falling
    )
    return StageProfile(
        points={(0, kind): points for kind in (InstructionKind.FORWARD, InstructionKind.BACKWARD)},
        num_ranks_per_stage=profile.num_ranks_per_stage[:1],
    )
