"""Workload to profile: the instructions of one stage, each of which can be run again.

The user's function, named `MODULE:FUNCTION`, is called with keywords and returns a `Workload`:

    def stage(*, stage: int, chunk: int | None, device: int) -> Workload: ...
"""

from __future__ import annotations

import importlib
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from flyball_client.gpu.emulated import EmulatedGpu, EmulationClock, WallClock
from flyball_profiles.stage_profile import InstructionKind, ProfileError, StageProfile
from flyball_wire.errors import FlyballError

RunOnce = Callable[[], object]


class WorkloadError(FlyballError):
    """A workload cannot be had, or fails when it is run; the text says where."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The instructions of one stage, or of one of its model chunks.

    Attributes:
        instructions: kind -> runs it once, and returns when the GPU has finished it. Each must
            be one that can be run any number of times in a row, in any order of kinds, and does
            the same work every time. What it returns is not looked at.

    Raises:
        ValueError: there is none, a kind is unknown, or what stands for it cannot be called.
    """

    instructions: Mapping[str, RunOnce]

    def __post_init__(self) -> None:
        if not self.instructions:
            raise ValueError("a workload needs an instruction, as forward")
        known = [kind.value for kind in InstructionKind]
        for kind, run_once in self.instructions.items():
            if kind not in known:
                raise ValueError(f"unknown instruction {kind!r}; known: {', '.join(known)}")
            if not callable(run_once):
                raise ValueError(f"{kind} of the workload must be something to call")
        object.__setattr__(self, "instructions", MappingProxyType(dict(self.instructions)))

    @property
    def kinds(self) -> tuple[InstructionKind, ...]:
        """The kinds that there are, in the order of `InstructionKind`."""
        return tuple(kind for kind in InstructionKind if kind.value in self.instructions)


def load_workload(named: str, *, stage: int, chunk: int | None, device: int) -> Workload:
    """Import the user's function, from the working folder too, and ask it for the workload.

    Args:
        named: `MODULE:FUNCTION`.
        stage: of the pipeline, from 0.
        chunk: of the stage, from 0; None: the whole stage.
        device: CUDA's number of the GPU whose clock is set.

    Raises:
        WorkloadError: it cannot be imported, fails, or returns something else.
    """
    module_name, _, function_name = named.partition(":")
    if not module_name or not function_name:
        raise WorkloadError(f"{named!r} is not MODULE:FUNCTION")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        function = getattr(importlib.import_module(module_name), function_name, None)
    except (Exception, SystemExit) as error:
        raise WorkloadError(f"cannot import {module_name}: {described(error)}") from None
    if not callable(function):
        raise WorkloadError(f"{module_name} has no function {function_name}")
    try:
        workload: object = function(stage=stage, chunk=chunk, device=device)
    except (Exception, SystemExit) as error:
        raise WorkloadError(f"{named} fails: {described(error)}") from None
    if not isinstance(workload, Workload):
        raise WorkloadError(
            f"{named} must return a flyball_client.profiling.workload.Workload,"
            f" not {type(workload).__name__}"
        )
    return workload


def described(error: BaseException) -> str:
    """An error of the user's code in one line: its type, its text, and where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    # The user's own line says more than that of a library which it called.
    own = [
        frame
        for frame in frames
        if "site-packages" not in frame.filename
        and Path(frame.filename).is_file()
        and not Path(frame.filename).is_relative_to(Path(__file__).parent)
    ]
    where = f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}{where}" if text else f"{type(error).__name__}{where}"


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
