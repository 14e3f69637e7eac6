"""Schedules of two chunks a stage in the shape of a V: ZBV and DualPipeV.

Chunk 0 of stage s is virtual stage s, chunk 1 is `2 P - 1 - s`: a microbatch goes down the
stages and up again, so that stage 0 has its loss without waiting for anyone.
"""

from __future__ import annotations

from flyball_server.planning.errors import PlanningError
from flyball_server.planning.schedules._base import Instruction, Schedule, ScheduleContext, v_shaped
from flyball_server.planning.schedules.order_writer import (
    OrderWriter,
    chunks_of,
    require_split_backward,
)


def make_zbv(context: ScheduleContext) -> Schedule:
    """ZBV (Qi et al., 2024): no bubble but the first where F, I and W take equally long.

    Raises:
        PlanningError: the profile has not two chunks, or a backward not in two parts.
    """
    name = "zbv"
    num_stages = context.profile.num_stages
    chunks = chunks_of(context.profile, name, 2)
    require_split_backward(chunks, name)
    # The order is described for this many; missing ones are left out.
    num_described = max(2 * num_stages - 1, context.num_microbatches)
    stages: list[tuple[Instruction, ...]] = []
    for stage in range(num_stages):
        to_come = num_stages - stage
        writer = OrderWriter(chunks, stage, context.num_microbatches)
        writer.write("F0", 2 * to_come - 1)
        writer.write("F1 F0", stage)
        writer.write("F1 I1 W1", to_come)
        writer.write("F0 I0 W0 F1 I1 W1", num_described - writer.num_written("F0"))
        writer.write("I0 W0 F1 I1 W1", num_described - writer.num_written("F1"))
        writer.write("I0 I1", stage)
        writer.write("I0 W0", to_come)
        writer.write("W1", num_described - writer.num_written("W1"))
        writer.write("W0", num_described - writer.num_written("W0"))
        stages.append(writer.order)
    return context.schedule(name, stages, virtual_stages=v_shaped(num_stages))


def make_dualpipev(context: ScheduleContext) -> Schedule:
    """DualPipeV (DeepSeek, 2025): a forward of one chunk beside a backward of the other.

    Where the framework runs the two at once, they stand here one after the other, the forward
    first, as torch runs them.

    Raises:
        PlanningError: the profile has not two chunks, a backward not in two parts, or there
            are fewer than 2 P microbatches.
    """
    name = "dualpipev"
    num_stages, num_microbatches = context.profile.num_stages, context.num_microbatches
    chunks = chunks_of(context.profile, name, 2)
    require_split_backward(chunks, name)
    if num_microbatches < 2 * num_stages:
        raise PlanningError(
            f"must be at least {2 * num_stages} for dualpipev over {num_stages} stages, not"
            f" {num_microbatches}",
            field="num_microbatches",
        )
    stages: list[tuple[Instruction, ...]] = []
    for stage in range(num_stages):
        later = num_stages - 1 - stage
        writer = OrderWriter(chunks, stage, num_microbatches)
        writer.write("F0", 2 * later)
        writer.write("F0 F1", stage + 1)
        writer.write("I1 W F1", later)
        writer.write("F0 B1 F1 B0", num_microbatches - 2 * num_stages + stage + 1)
        writer.write("B1 F1 B0", later)
        # From the middle of the drain on, weight parts are put off to fill its bubbles.
        num_whole = (stage + 1) // 2
        writer.write("B1 B0", num_whole)
        writer.write("I1 I0" if stage % 2 else "B1 I0")
        writer.write("I1 I0", stage - num_whole)
        writer.write("W I0", later)
        writer.write("W", stage + 1)
        stages.append(writer.order)
    return context.schedule(name, stages, virtual_stages=v_shaped(num_stages))
