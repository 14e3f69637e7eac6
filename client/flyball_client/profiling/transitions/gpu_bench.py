"""Bench of real GPUs: their clocks are set through governor processes, as in training."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager

from flyball_client.gpu._base import ClockCall, GpuDevice, GpuError
from flyball_client.profiling.held_clock import HeldClock
from flyball_client.profiling.transitions._base import LoadedRun, ObservedChange
from flyball_client.profiling.transitions.loop_process import LoopSource
from flyball_profiles.measured_transitions import TransitionLoad

_RETURNED_WITHIN_S = 30.0
_POLL_S = 0.001
# Before the end of a load, so that the clock is read while the GPU computes.
_READ_BEFORE_END_S = 0.02


class GpuBench:
    """TransitionBench of real GPUs.

    Args:
        gpus: Opened GPUs.
        sources: Load of each GPU, in the same order, not yet entered.
    """

    def __init__(self, gpus: Sequence[GpuDevice], sources: Sequence[LoopSource]) -> None:
        self._gpus = tuple(gpus)
        self._sources = tuple(sources)
        self._held: list[HeldClock] = []

    @property
    def num_gpus(self) -> int:
        """Number of GPUs."""
        return len(self._gpus)

    @property
    def counts_cycles(self) -> bool:
        """True: the loops' work is their SM cycles."""
        return all(source.counts_cycles for source in self._sources)

    @contextmanager
    def governed(self) -> Generator[GpuBench, None, None]:
        """Start loads and governors for a `with` block; clocks are restored at its end."""
        with ExitStack() as stack:
            for source in self._sources:
                stack.enter_context(source)
            self._held = [stack.enter_context(HeldClock(gpu)) for gpu in self._gpus]
            yield self

    def run(self, gpus: Sequence[int], time_s: float) -> tuple[LoadedRun, ...]:
        """Compute on these GPUs for a time in s."""
        for gpu in gpus:
            self._sources[gpu].begin(time_s)
        time.sleep(max(0.0, time_s - _READ_BEFORE_END_S))
        read = [(self._gpus[gpu].sm_clock_mhz(), self._gpus[gpu].clock_limits()) for gpu in gpus]
        return tuple(
            LoadedRun(loops=self._sources[gpu].loops(), sm_clock_mhz=mhz, limits=limits)
            for gpu, (mhz, limits) in zip(gpus, read, strict=True)
        )

    def change(
        self,
        gpus: Sequence[int],
        clock_mhz: int,
        *,
        load: TransitionLoad,
        lead_s: float,
        window_s: float,
    ) -> tuple[ObservedChange, ...]:
        """Request a clock on these GPUs at once; see TransitionBench."""
        if load is TransitionLoad.COMPUTING:
            for gpu in gpus:
                self._sources[gpu].begin(lead_s + window_s)
        time.sleep(lead_s)
        for gpu in gpus:
            self._held[gpu].request_mhz(clock_mhz)
        if load is TransitionLoad.IDLE:
            for gpu in gpus:
                self._sources[gpu].begin(window_s)
        calls = [self._finished_call(gpu, clock_mhz) for gpu in gpus]
        return tuple(
            ObservedChange(call=call, loops=self._sources[gpu].loops())
            for gpu, call in zip(gpus, calls, strict=True)
        )

    def _finished_call(self, gpu: int, clock_mhz: int) -> ClockCall:
        give_up_s = time.monotonic() + _RETURNED_WITHIN_S
        while time.monotonic() < give_up_s:
            call = self._held[gpu].last_call()
            if call is not None and call.sm_clock_mhz == clock_mhz:
                return call
            time.sleep(_POLL_S)
        raise GpuError(
            f"{clock_mhz} MHz was not set on {self._gpus[gpu].name} within {_RETURNED_WITHIN_S:g} s"
        )
