"""Instructions with their clocks."""

from __future__ import annotations

from typing import NamedTuple

from flyball_profiles.stage_profile import InstructionKind


class PlannedInstruction(NamedTuple):
    """One instruction of a stage and the SM clock it runs at."""

    kind: InstructionKind
    microbatch: int
    frequency_mhz: int
    chunk: int = 0


PlannedStages = tuple[tuple[PlannedInstruction, ...], ...]
