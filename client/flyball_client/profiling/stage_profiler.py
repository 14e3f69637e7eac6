"""Measures one stage on one GPU: the sweep, the clock, the repetitions and the file together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from flyball_client.gpu._base import EmulatedDevice, GpuDevice
from flyball_client.profiling.held_clock import HeldClock
from flyball_client.profiling.measured_point import MeasuredPoint, point_of
from flyball_client.profiling.repetition import MeasuringRule, Repetition
from flyball_client.profiling.sweep import Sweep
from flyball_client.profiling.workload import Workload, WorkloadError
from flyball_profiles.stage_profile import InstructionKind


@dataclass(frozen=True, kw_only=True)
class StageProfiler:
    """One stage's instructions on one GPU.

    Attributes:
        gpu: that runs them.
        workload: runs them.
        rule: how long each is repeated.
        warm_up_s: each instruction is first run for so long at its first clock, s.
        now_s: the time in which they run, s; None: the emulated GPU's own, else the machine's.
        on_begin: told each instruction and clock before it is measured.
    """

    gpu: GpuDevice
    workload: Workload
    rule: MeasuringRule
    warm_up_s: float = 0.0
    now_s: Callable[[], float] | None = None
    on_begin: Callable[[InstructionKind, int], None] = lambda kind, clock_mhz: None

    def measure(self, sweep: Sweep, clock: HeldClock) -> Iterator[MeasuredPoint]:
        """Yield each point once it is measured.

        Args:
            sweep: says which points.
            clock: of the same GPU, held.

        Raises:
            GpuError: the GPU cannot be read or its clock not be set.
            WorkloadError: an instruction failed.
        """
        warmed: set[InstructionKind] = set()

        def measure_point(kind: InstructionKind, clock_mhz: int) -> MeasuredPoint:
            self.on_begin(kind, clock_mhz)
            clock.set_mhz(clock_mhz)
            repetition = Repetition(
                self.gpu,
                self.workload.instructions[kind.value],
                now_s=self._time(),
                see_to_clock=clock.see_to_it,
            )
            try:
                if kind not in warmed:
                    warmed.add(kind)
                    repetition.run_for(self.warm_up_s)
                is_settled = repetition.settle(self.rule)
                found = repetition.measure(self.rule)
            except WorkloadError as error:
                raise WorkloadError(f"{kind} at {clock_mhz} MHz: {error}") from None
            return point_of(kind, clock_mhz, found, is_settled=is_settled)

        return sweep.run(measure_point)

    def _time(self) -> Callable[[], float]:
        if self.now_s is not None:
            return self.now_s
        gpu = self.gpu
        return gpu.emulated_time_s if isinstance(gpu, EmulatedDevice) else time.perf_counter
