"""Bench of emulated GPUs in virtual time, where a measurement finds the configured times."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from flyball_client.gpu._base import ClockCall
from flyball_client.gpu.emulated import EmulatedGpu, EmulatedGpuSettings, EmulatedNode
from flyball_client.profiling.held_clock import HeldClock
from flyball_client.profiling.transitions._base import LoadedRun, Loop, ObservedChange
from flyball_client.profiling.workload import LeapingClock
from flyball_profiles.measured_transitions import TransitionLoad
from flyball_profiles.stage_profile import InstructionKind, StageProfile

_LOOP_S = 4e-4
_LOOP = InstructionKind.FORWARD.value
_POLL_S = 0.001


class EmulatedBench:
    """TransitionBench of emulated GPUs of one stage and one node.

    A loop is a short part of the stage's forward. GPUs run by discrete events.

    Args:
        profile: Profile with times and energies.
        stage: Stage of the profile.
        num_gpus: Number of GPUs, at least 1.
        blocking_power_w: Power of a waiting GPU in W.
        settings: Physics; each GPU gets a seed of its own, from this one on.

    Raises:
        ValueError: An argument is out of its range.
    """

    counts_cycles = False

    def __init__(
        self,
        profile: StageProfile,
        stage: int,
        *,
        num_gpus: int,
        blocking_power_w: float,
        settings: EmulatedGpuSettings,
    ) -> None:
        self._clock = LeapingClock()
        node, loops = EmulatedNode(), _loop_profile(profile, stage)
        self.gpus = tuple(
            EmulatedGpu(
                loops,
                0,
                blocking_power_w=blocking_power_w,
                settings=replace(settings, seed=settings.seed + place),
                node=node,
                clock=self._clock,
            )
            for place in range(num_gpus)
        )
        self._held: list[HeldClock] = []
        # Moments at which the running loop of a GPU began and ends, s.
        self._running: dict[int, tuple[float, float]] = {}

    @property
    def num_gpus(self) -> int:
        """Number of GPUs."""
        return len(self.gpus)

    @contextmanager
    def governed(self) -> Generator[EmulatedBench, None, None]:
        """Govern the clocks in a `with` block, and restore them at its end."""
        with ExitStack() as stack:
            self._held = [stack.enter_context(HeldClock(gpu)) for gpu in self.gpus]
            yield self

    def run(self, gpus: Sequence[int], time_s: float) -> tuple[LoadedRun, ...]:
        """Compute on these GPUs for a time in s."""
        loops = self._compute(gpus, self._clock.now_s() + time_s)
        return tuple(
            LoadedRun(
                loops=loops[gpu],
                sm_clock_mhz=self.gpus[gpu].sm_clock_mhz(),
                limits=self.gpus[gpu].clock_limits(),
            )
            for gpu in gpus
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
        requested_s = self._clock.now_s() + lead_s
        if load is TransitionLoad.COMPUTING:
            self._compute(gpus, requested_s)
        else:
            self._stop()
            self._clock.sleep_until(requested_s)
        for gpu in gpus:
            self._held[gpu].request_mhz(clock_mhz)
        for gpu in [gpu for gpu in gpus if gpu in self._running]:
            self._running[gpu] = (self._running[gpu][0], self.gpus[gpu].completion_s())
        loops = self._compute(gpus, requested_s + window_s)
        return tuple(
            ObservedChange(call=self._finished_call(gpu), loops=loops[gpu]) for gpu in gpus
        )

    def _finished_call(self, gpu: int) -> ClockCall:
        while (call := self._held[gpu].last_call()) is None:
            self._compute([gpu], self._clock.now_s() + _POLL_S)
        return call

    def _compute(self, gpus: Sequence[int], until_s: float) -> dict[int, tuple[Loop, ...]]:
        """Run loops on these GPUs until a moment; others finish theirs and wait."""
        loops: dict[int, list[Loop]] = {gpu: [] for gpu in gpus}
        for gpu in gpus:
            if gpu not in self._running:
                self._begin(gpu)
        while True:
            gpu, (began_s, ends_s) = min(self._running.items(), key=lambda item: item[1][1])
            if ends_s > until_s:
                break
            self._end(gpu)
            if gpu in loops:
                loops[gpu].append(Loop(began_s, ends_s, 1.0))
                self._begin(gpu)
        self._clock.sleep_until(until_s)
        return {gpu: tuple(of_gpu) for gpu, of_gpu in loops.items()}

    def _begin(self, gpu: int) -> None:
        began_s = self._clock.now_s()
        self.gpus[gpu].on_instruction_begin(_LOOP)
        self._running[gpu] = (began_s, self.gpus[gpu].completion_s())

    def _end(self, gpu: int) -> None:
        _, ends_s = self._running.pop(gpu)
        self._clock.sleep_until(ends_s)
        self.gpus[gpu].on_instruction_end(_LOOP)

    def _stop(self) -> None:
        for gpu, _ in sorted(self._running.items(), key=lambda item: item[1][1]):
            self._end(gpu)


def _loop_profile(profile: StageProfile, stage: int) -> StageProfile:
    """Return the profile of loops: parts of the stage's forward, as short as wanted."""
    falling = profile.points[stage, InstructionKind.FORWARD]
    share = _LOOP_S / falling[0].time_s
    points = tuple(
        replace(
            point, time_s=share * point.time_s, energy_j=share * point.energy_j, rank_waiting_s=0.0
        )
        for point in falling
    )
    return StageProfile(
        points={(0, kind): points for kind in (InstructionKind.FORWARD, InstructionKind.BACKWARD)},
        num_ranks_per_stage=(profile.num_ranks_per_stage[stage],),
    )
