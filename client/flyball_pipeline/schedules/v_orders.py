"""Schedules of two chunks a stage in the shape of a V: ZBV and DualPipeV.

Chunk 0 of stage s is virtual stage s, chunk 1 is `2 P - 1 - s`: a microbatch goes down the
stages and up again, so that stage 0 has its loss without waiting for anyone.
"""

from __future__ import annotations

from flyball_pipeline.errors import PipelineError
from flyball_pipeline.schedules.inputs import ScheduleInputs, Stages
from flyball_pipeline.schedules.order_writer import OrderWriter


def zbv(inputs: ScheduleInputs) -> Stages:
    """ZBV (Qi et al., 2024): no bubble but the first where F, I and W take equally long."""
    num_stages, num_microbatches = inputs.shape.num_stages, inputs.shape.num_microbatches
    # The order is described for this many; missing ones are left out.
    num_described = max(2 * num_stages - 1, num_microbatches)
    for stage in range(num_stages):
        to_come = num_stages - stage
        writer = OrderWriter(inputs.shape, stage)
        writer.write("F0", 2 * to_come - 1)
        writer.write("F1 F0", stage)
        writer.write("F1 I1 W1", to_come)
        writer.write("F0 I0 W0 F1 I1 W1", num_described - writer.num_written("F0"))
        writer.write("I0 W0 F1 I1 W1", num_described - writer.num_written("F1"))
        writer.write("I0 I1", stage)
        writer.write("I0 W0", to_come)
        writer.write("W1", num_described - writer.num_written("W1"))
        writer.write("W0", num_described - writer.num_written("W0"))
        yield writer.order


def dualpipev(inputs: ScheduleInputs) -> Stages:
    """DualPipeV (DeepSeek, 2025): a forward of one chunk beside a backward of the other.

    Where the framework runs the two at once, they stand here one after the other, the forward
    first, as torch runs them.

    Raises:
        PipelineError: there are fewer than 2 P microbatches.
    """
    num_stages, num_microbatches = inputs.shape.num_stages, inputs.shape.num_microbatches
    if num_microbatches < 2 * num_stages:
        raise PipelineError(
            f"must be at least {2 * num_stages} for dualpipev over {num_stages} stages, not"
            f" {num_microbatches}",
            field="num_microbatches",
        )
    for stage in range(num_stages):
        later = num_stages - 1 - stage
        writer = OrderWriter(inputs.shape, stage)
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
        yield writer.order
