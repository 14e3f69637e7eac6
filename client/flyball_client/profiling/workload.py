"""Workload to profile: the repeatable instructions of one stage.

The user's function `MODULE:FUNCTION` is called with keywords and returns a `Workload`:

    def stage(*, stage: int, chunk: int | None, device: int) -> Workload: ...
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from flyball_client.gpu.emulated import EmulatedGpu, EmulationClock, LeapingClock, WallClock
from flyball_pipeline.instruction import InstructionKind
from flyball_profiles.stage_profile import ProfileError, StageProfile
from flyball_wire.errors import FlyballError

RunOnce = Callable[[], object]


class WorkloadError(FlyballError):
    """A workload cannot be loaded, or an instruction failed."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Instructions of one stage, or of one of its model chunks.

    Attributes:
        instructions: Functions by kind. Each runs the instruction once and returns when the GPU
            has finished it, may be called repeatedly in any order, and does the same work every
            time. Results are ignored.

    Raises:
        ValueError: There is none, a kind is unknown, or a value cannot be called.
    """

    instructions: Mapping[str, RunOnce]

    def __post_init__(self) -> None:
        if not self.instructions:
            raise ValueError("a workload needs an instruction, such as forward")
        known = [kind.value for kind in InstructionKind]
        for kind, run_once in self.instructions.items():
            if kind not in known:
                raise ValueError(f"unknown instruction {kind!r}; known: {', '.join(known)}")
            if not callable(run_once):
                raise ValueError(f"{kind} of the workload must be callable")
        object.__setattr__(self, "instructions", MappingProxyType(dict(self.instructions)))

    @property
    def kinds(self) -> tuple[InstructionKind, ...]:
        """Kinds of the instructions, in the order of `InstructionKind`."""
        return tuple(kind for kind in InstructionKind if kind.value in self.instructions)


def load_workload(named: str, *, stage: int, chunk: int | None, device: int) -> Workload:
    """Import the user's function, also from the working folder, and call it.

    Args:
        named: `MODULE:FUNCTION`.
        stage: Stage of the pipeline, from 0.
        chunk: Chunk of the stage, from 0; None: the whole stage.
        device: CUDA's number of the GPU.

    Raises:
        WorkloadError: It cannot be imported, fails, or returns another type.
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
    """Return an error of the user's code in one line: type, text, and the user's last line."""
    frames = traceback.extract_tb(error.__traceback__)
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


def emulated_stage(
    profile: StageProfile,
    *,
    stage: int,
    chunk: int | None,
    blocking_power_w: float,
    time_scale: float,
    source: Path,
) -> tuple[EmulatedGpu, Workload]:
    """Create an emulated GPU of this stage, and the instructions of its profile.

    Args:
        profile: Profile with times and energies.
        stage: Stage of the profile.
        chunk: Chunk of the stage; None: the whole stage.
        blocking_power_w: Power in W between instructions.
        time_scale: Wall seconds per emulated second; 0: without waiting.
        source: File of the profile, for the GPU's name.

    Raises:
        ProfileError: The profile has no such chunk.
        ValueError: An argument is out of its range.
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
