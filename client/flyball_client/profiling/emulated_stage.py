"""A stage of a profile as a workload, on an emulated GPU."""

from __future__ import annotations

import time
from pathlib import Path

from flyball_client.gpu.emulated import EmulatedGpu
from flyball_client.gpu.emulation_clock import EmulationClock, WallClock
from flyball_client.profiling.workload import RunOnce, Workload
from flyball_profiles.stage_profile import InstructionKind, ProfileError, StageProfile


class LeapingClock:
    """An EmulationClock on which nothing is waited for: a sleep is over at once."""

    def __init__(self) -> None:
        self._now_s = time.monotonic()

    def now_s(self) -> float:
        """Seconds; only sleeping moves them."""
        return self._now_s

    def sleep_until(self, deadline_s: float) -> None:
        """Be there at once."""
        self._now_s = max(self._now_s, deadline_s)


def emulated_stage(
    profile: StageProfile,
    *,
    stage: int,
    chunk: int | None,
    blocking_power_w: float,
    time_scale: float,
    source: Path,
) -> tuple[EmulatedGpu, Workload]:
    """An emulated GPU of this stage, and the instructions that its profile has.

    Args:
        profile: what it behaves as.
        stage: of the profile.
        chunk: of the stage; None: the whole stage.
        blocking_power_w: W while nothing runs.
        time_scale: wall seconds per emulated second; 0: nothing is waited for.
        source: of the profile, for the GPU's name.

    Raises:
        ProfileError: the profile has no such chunk.
        ValueError: an argument is out of its range.
    """
    if chunk is not None and chunk >= len(profile.chunks):
        raise ProfileError(f"no chunk {chunk}; the profile has {len(profile.chunks)}")
    clock: EmulationClock = LeapingClock() if time_scale == 0 else WallClock()
    gpu = EmulatedGpu(
        profile,
        stage,
        num_chunks=1 if chunk is None else len(profile.chunks),
        blocking_power_w=blocking_power_w,
        time_scale=time_scale or 1.0,
        clock=clock,
        product=f"GPU of {source.name}",
    )
    of_chunk = profile if chunk is None else profile.chunks[chunk]
    kinds = [kind for kind in InstructionKind if (stage, kind) in of_chunk.points]
    return gpu, Workload(instructions={kind.value: _run(gpu, kind, chunk or 0) for kind in kinds})


def _run(gpu: EmulatedGpu, kind: InstructionKind, chunk: int) -> RunOnce:
    def run_once() -> None:
        gpu.on_instruction_begin(kind.value, chunk)
        gpu.on_instruction_end(kind.value, chunk)

    return run_once
