"""Schedules of stages that hold several model chunks, one behind the other around the loop.

Chunk c of stage s is virtual stage `c P + s`. Microbatches go through the chunks in groups: all
of a group through chunk 0, then the same through chunk 1, and so on.
"""

from __future__ import annotations

import itertools

from flyball_profiles.stage_profile import StageProfile
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.schedules._base import Instruction, Schedule, ScheduleContext, looped
from flyball_server.planning.schedules.order_writer import (
    OrderWriter,
    chunks_of,
    require_split_backward,
)


def make_interleaved_one_f_one_b(context: ScheduleContext) -> Schedule:
    """Interleaved 1F1B (Megatron-LM: Narayanan et al., SC 2021).

    Stage s of P with v chunks and groups of g microbatches runs `(v - 1) g + 2 (P - 1 - s)`
    forwards in front, then a forward and a backward in turn.

    Raises:
        PlanningError: the profile has fewer than two chunks, or the microbatches make no
            whole number of groups.
    """
    name = "interleaved-1f1b"
    num_stages, num_microbatches = context.profile.num_stages, context.num_microbatches
    chunks = chunks_of(context.profile, name)
    group = _group_size(num_stages, num_microbatches)
    forwards = _chunks_in_turn(len(chunks), group, num_microbatches)
    stages: list[tuple[Instruction, ...]] = []
    for stage in range(num_stages):
        warmup = min((len(chunks) - 1) * group + 2 * (num_stages - 1 - stage), len(forwards))
        writer = OrderWriter(chunks, stage, num_microbatches)
        for position, chunk in enumerate(forwards):
            writer.write(f"F{chunk}")
            if position >= warmup:
                writer.write(f"B{_mirrored(forwards, position - warmup, len(chunks))}")
        for position in range(len(forwards) - warmup, len(forwards)):
            writer.write(f"B{_mirrored(forwards, position, len(chunks))}")
        stages.append(writer.order)
    return context.schedule(name, stages, virtual_stages=looped(num_stages, len(chunks)))


def make_looped_bfs(context: ScheduleContext) -> Schedule:
    """Looped breadth-first (Lamy-Poirier, 2023): all microbatches through a chunk, then the next.

    Backwards go the same way back: from the last chunk and the last microbatch.

    Raises:
        PlanningError: the profile has fewer than two chunks.
    """
    name = "looped-bfs"
    num_stages, chunks = context.profile.num_stages, chunks_of(context.profile, name)
    stages: list[tuple[Instruction, ...]] = []
    for stage in range(num_stages):
        writer = OrderWriter(chunks, stage, context.num_microbatches)
        for chunk in range(len(chunks)):
            writer.write(f"F{chunk}", context.num_microbatches)
        num_forwards = len(writer.order)
        for chunk in reversed(range(len(chunks))):
            writer.write(f"B{chunk}", context.num_microbatches)
        last = context.num_microbatches - 1
        backwards = [
            instruction._replace(microbatch=last - instruction.microbatch)
            for instruction in writer.order[num_forwards:]
        ]
        stages.append((*writer.order[:num_forwards], *backwards))
    return context.schedule(name, stages, virtual_stages=looped(num_stages, len(chunks)))


def make_interleaved_zero_bubble(context: ScheduleContext) -> Schedule:
    """Interleaved zero bubble: ZB-H1's split backward on interleaved stages (Qi et al., 2024).

    Stage s of P with v chunks and groups of g runs `(v - 1) g + P - 1 - s` forwards in front.
    Weight parts follow s input parts later, and what is left of them at the end.

    Raises:
        PlanningError: as for interleaved 1F1B, or a backward is not profiled in two parts.
    """
    name = "interleaved-zb"
    chunks = chunks_of(context.profile, name)
    require_split_backward(chunks, name)
    virtual_stages = looped(context.profile.num_stages, len(chunks))
    return context.schedule(name, _zero_bubble(context, chunks), virtual_stages=virtual_stages)


def make_zb_h1(context: ScheduleContext) -> Schedule:
    """ZB-H1 (Qi et al., ICLR 2024): 1F1B whose weight parts fill its bubbles.

    No stage holds more microbatches than 1F1B's first stage does.

    Raises:
        PlanningError: a backward is not profiled in two parts.
    """
    chunks = (context.profile,)
    require_split_backward(chunks, "zb-h1")
    return context.schedule("zb-h1", _zero_bubble(context, chunks))


def _zero_bubble(
    context: ScheduleContext, chunks: tuple[StageProfile, ...]
) -> list[tuple[Instruction, ...]]:
    num_stages, num_microbatches = context.profile.num_stages, context.num_microbatches
    group = num_microbatches if len(chunks) == 1 else _group_size(num_stages, num_microbatches)
    forwards = _chunks_in_turn(len(chunks), group, num_microbatches)
    stages: list[tuple[Instruction, ...]] = []
    for stage in range(num_stages):
        in_front = (len(chunks) - 1) * group + num_stages - 1 - stage
        warmup = min(in_front, len(forwards))
        writer = OrderWriter(chunks, stage, num_microbatches)
        for chunk in forwards[:warmup]:
            writer.write(f"F{chunk}")
        for position in range(len(forwards)):
            if warmup + position < len(forwards):
                writer.write(f"F{forwards[warmup + position]}")
            writer.write(f"I{_mirrored(forwards, position, len(chunks))}")
            if position >= stage:
                writer.write("W")
        writer.write("W", stage)
        stages.append(writer.order)
    return stages


def _group_size(num_stages: int, num_microbatches: int) -> int:
    """Microbatches of a group: P, or a little more so that all groups are whole.

    Raises:
        PlanningError: there are no such groups.
    """
    if not _has_whole_groups(num_stages, num_microbatches):
        below, above = (
            next(m for m in numbers if _has_whole_groups(num_stages, m))
            for numbers in (range(num_microbatches, 0, -1), itertools.count(num_microbatches))
        )
        raise PlanningError(
            f"{num_microbatches} cannot be divided into groups for interleaving over {num_stages}"
            f" stages; {below} and {above} can",
            field="num_microbatches",
        )
    return num_microbatches // max(1, num_microbatches // num_stages)


def _has_whole_groups(num_stages: int, num_microbatches: int) -> bool:
    return num_microbatches % max(1, num_microbatches // num_stages) == 0


def _chunks_in_turn(num_chunks: int, group: int, num_microbatches: int) -> list[int]:
    """Return the chunk of each forward of a stage, in order."""
    return [
        chunk
        for _ in range(num_microbatches // group)
        for chunk in range(num_chunks)
        for _ in range(group)
    ]


def _mirrored(forwards: list[int], position: int, num_chunks: int) -> int:
    """The chunk of a stage's backward: forwards' order with the chunks the other way round."""
    return num_chunks - 1 - forwards[position]
