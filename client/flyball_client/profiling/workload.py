"""What is profiled: the instructions of one stage, each as something that can be run again.

The user's function, named `MODULE:FUNCTION`, is called with keywords and returns a `Workload`:

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

from flyball_profiles.stage_profile import InstructionKind
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
