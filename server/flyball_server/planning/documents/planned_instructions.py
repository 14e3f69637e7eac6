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


class PlannedRequest(NamedTuple):
    """Request of an instruction's clock before the instruction before it ends.

    It is made `offset_s` after the begin of another instruction of the stage, but no later than
    the instruction begins. `position` and `after_position` count the stage's instructions from 0;
    a `position` of their number is the first instruction of the next iteration.
    """

    stage: int
    position: int
    after_position: int
    offset_s: float


PlannedStages = tuple[tuple[PlannedInstruction, ...], ...]
