"""Instructions with their clocks: tens of thousands are made, and taken apart, in columns."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

from flyball_profiles.stage_profile import InstructionKind


class PlannedInstruction(NamedTuple):
    """One instruction of a stage and the SM clock it runs at."""

    kind: InstructionKind
    microbatch: int
    frequency_mhz: int
    chunk: int = 0


PlannedStages = tuple[tuple[PlannedInstruction, ...], ...]
PackedStages = tuple["array[int]", tuple[InstructionKind, ...], tuple["array[int]", ...]]
"""Per stage the number of its instructions; the kinds there are; and of all instructions, stage
after stage, an index of its kind, microbatch, MHz and chunk."""


def planned_instructions(
    kinds: Iterable[InstructionKind],
    microbatches: Iterable[int],
    clocks_mhz: Iterable[int],
    chunks: Iterable[int],
) -> Iterable[PlannedInstruction]:
    """Return instructions from their columns, which have equal lengths."""
    # Past the class's own __new__, which is Python code: three times as fast.
    new = partial(
        tuple.__new__,  # pyright: ignore[reportUnknownMemberType]  # items of any type
        PlannedInstruction,
    )
    return map(new, zip(kinds, microbatches, clocks_mhz, chunks, strict=True))


def in_stages(
    instructions: Iterable[PlannedInstruction], nums_instructions: Iterable[int]
) -> PlannedStages:
    """Instructions, stage after stage, by their stages, whose lengths are given."""
    in_order = iter(instructions)
    return tuple(tuple(itertools.islice(in_order, count)) for count in nums_instructions)


def packed_stages(stages: PlannedStages) -> PackedStages:
    """Return the stages as columns, which are small when pickled."""
    instructions = list(itertools.chain.from_iterable(stages))
    kinds = tuple(dict.fromkeys(map(itemgetter(0), instructions)))
    index = {kind: number for number, kind in enumerate(kinds)}
    of_kinds = map(index.__getitem__, map(itemgetter(0), instructions))
    others = (map(itemgetter(column), instructions) for column in (1, 2, 3))
    return (
        array("q", map(len, stages)),
        kinds,
        tuple(array("q", column) for column in (of_kinds, *others)),
    )


def unpacked_stages(packed: PackedStages) -> PlannedStages:
    """Return the stages from their columns, the inverse of `packed_stages`."""
    nums_instructions, kinds, (of_kinds, microbatches, clocks_mhz, chunks) = packed
    instructions = planned_instructions(
        map(kinds.__getitem__, of_kinds), microbatches, clocks_mhz, chunks
    )
    return in_stages(instructions, nums_instructions)


class PickledInColumns:
    """A plan's part that holds `stages: PlannedStages`, and is pickled with them as columns."""

    stages: PlannedStages

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle."""
        return vars(self) | {"stages": packed_stages(self.stages)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take what was pickled."""
        vars(self).update(state, stages=unpacked_stages(state["stages"]))
