"""Schedules of stages that hold several model chunks, one behind the other around the loop.

Chunk c of stage s is virtual stage `c P + s`. Microbatches go through the chunks in groups: all
of a group through chunk 0, then the same through chunk 1, and so on.
"""

from __future__ import annotations

import itertools

from flyball_pipeline.errors import PipelineError
from flyball_pipeline.schedules.inputs import ScheduleInputs, Stages
from flyball_pipeline.schedules.order_writer import OrderWriter


def interleaved_one_f_one_b(inputs: ScheduleInputs) -> Stages:
    """Interleaved 1F1B (Megatron-LM: Narayanan et al., SC 2021).

    Stage s of P with v chunks and groups of g microbatches runs `(v - 1) g + 2 (P - 1 - s)`
    forwards in front, then a forward and a backward in turn.

    Raises:
        PipelineError: the microbatches make no whole number of groups.
    """
    shape, num_chunks = inputs.shape, len(inputs.shape.chunks)
    group = _group_size(shape.num_stages, shape.num_microbatches)
    forwards = _chunks_in_turn(num_chunks, group, shape.num_microbatches)
    for stage in range(shape.num_stages):
        in_front = (num_chunks - 1) * group + 2 * (shape.num_stages - 1 - stage)
        warmup = min(in_front, len(forwards))
        writer = OrderWriter(shape, stage)
        for position, chunk in enumerate(forwards):
            writer.write(f"F{chunk}")
            if position >= warmup:
                writer.write(f"B{_mirrored(forwards, position - warmup, num_chunks)}")
        for position in range(len(forwards) - warmup, len(forwards)):
            writer.write(f"B{_mirrored(forwards, position, num_chunks)}")
        yield writer.order


def looped_bfs(inputs: ScheduleInputs) -> Stages:
    """Looped breadth-first (Lamy-Poirier, 2023): all microbatches through a chunk, then the next.

    Backwards go the same way back: from the last chunk and the last microbatch.
    """
    num_microbatches, num_chunks = inputs.shape.num_microbatches, len(inputs.shape.chunks)
    for stage in range(inputs.shape.num_stages):
        writer = OrderWriter(inputs.shape, stage)
        for chunk in range(num_chunks):
            writer.write(f"F{chunk}", num_microbatches)
        num_forwards = len(writer.order)
        for chunk in reversed(range(num_chunks)):
            writer.write(f"B{chunk}", num_microbatches)
        backwards = [
            instruction._replace(microbatch=num_microbatches - 1 - instruction.microbatch)
            for instruction in writer.order[num_forwards:]
        ]
        yield (*writer.order[:num_forwards], *backwards)


def zero_bubble(inputs: ScheduleInputs) -> Stages:
    """ZB-H1, of undivided stages, and interleaved zero bubble (Qi et al., ICLR 2024).

    ZB-H1 is 1F1B whose weight parts fill its bubbles; no stage holds more microbatches than
    1F1B's first stage does. Stage s of P with v chunks and groups of g runs
    `(v - 1) g + P - 1 - s` forwards in front. Weight parts follow s input parts later, and what
    is left of them at the end.

    Raises:
        PipelineError: there are chunks, and the microbatches make no whole number of groups.
    """
    shape, num_chunks = inputs.shape, max(1, len(inputs.shape.chunks))
    num_stages, group = shape.num_stages, shape.num_microbatches
    if num_chunks > 1:
        group = _group_size(num_stages, shape.num_microbatches)
    forwards = _chunks_in_turn(num_chunks, group, shape.num_microbatches)
    for stage in range(num_stages):
        warmup = min((num_chunks - 1) * group + num_stages - 1 - stage, len(forwards))
        writer = OrderWriter(shape, stage)
        for chunk in forwards[:warmup]:
            writer.write(f"F{chunk}")
        for position in range(len(forwards)):
            if warmup + position < len(forwards):
                writer.write(f"F{forwards[warmup + position]}")
            writer.write(f"I{_mirrored(forwards, position, num_chunks)}")
            if position >= stage:
                writer.write("W")
        writer.write("W", stage)
        yield writer.order


def _group_size(num_stages: int, num_microbatches: int) -> int:
    """Microbatches of a group: P, or a little more so that all groups are whole.

    Raises:
        PipelineError: there are no such groups.
    """
    if not _has_whole_groups(num_stages, num_microbatches):
        below, above = (
            next(m for m in numbers if _has_whole_groups(num_stages, m))
            for numbers in (range(num_microbatches, 0, -1), itertools.count(num_microbatches))
        )
        raise PipelineError(
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
