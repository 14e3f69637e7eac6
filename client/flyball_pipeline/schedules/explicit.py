"""An order that a framework or a person wrote down, as the schedule `explicit`."""

from __future__ import annotations

from collections.abc import Sequence

from flyball_pipeline.errors import PipelineError
from flyball_pipeline.instruction import Instruction, InstructionKind
from flyball_pipeline.schedule import Schedule, VirtualStages
from flyball_pipeline.schedules.inputs import ExplicitOrder, ScheduleInputs

EXPLICIT = "explicit"


def explicit(inputs: ScheduleInputs) -> Schedule:
    """Return the order that the inputs have.

    Raises:
        PipelineError: they have none, or one that is not complete.
    """
    order = inputs.order
    if order is None:
        raise PipelineError("schedule explicit needs an order", field="order")
    if len(order.stages) not in {0, inputs.shape.num_stages}:
        raise PipelineError(
            f"has {len(order.stages)} stages, the profile {inputs.shape.num_stages}", field="order"
        )
    kinds = {instruction.kind for stage in order.stages for instruction in stage}
    if InstructionKind.STEP in kinds and len(order.stages) > 1:
        raise PipelineError(
            "step is a whole training step, where there is no pipeline; stages run forward and"
            " backward",
            field="order",
        )
    return schedule_of_order(order, inputs.shape.num_microbatches)


def schedule_of_order(order: ExplicitOrder, num_microbatches: int) -> Schedule:
    """Return the order as a schedule.

    Raises:
        PipelineError: it is not complete.
    """
    return Schedule(
        name=EXPLICIT,
        num_microbatches=num_microbatches,
        stages=order.stages,
        virtual_stages=order.virtual_stages,
    )


def explicit_order(
    stages: Sequence[Sequence[Sequence[str | int]]], virtual_stages: VirtualStages | None
) -> ExplicitOrder:
    """An order from plain data.

    Args:
        stages: per stage, `[kind, microbatch]` or `[kind, microbatch, chunk]` in the order of
            execution.
        virtual_stages: per stage, where in the model each of its chunks stands; None: one chunk
            each.

    Raises:
        PipelineError: an entry is none; names its place.
    """
    return ExplicitOrder(
        stages=tuple(
            tuple(
                instruction_of(entry, f"order[{stage}][{position}]")
                for position, entry in enumerate(entries)
            )
            for stage, entries in enumerate(stages)
        ),
        virtual_stages=virtual_stages or (),
    )


def num_microbatches_of(order: ExplicitOrder) -> int:
    """One more than the highest microbatch."""
    return 1 + max((item.microbatch for stage in order.stages for item in stage), default=0)


def instruction_of(entry: object, where: str) -> Instruction:
    """Return what `[kind, microbatch]` or `[kind, microbatch, chunk]` names.

    Raises:
        PipelineError: it is none of these; `where` is its field.
    """
    match entry:
        case (str(kind), int(microbatch)):
            chunk = 0
        case (str(kind), int(microbatch), int(chunk)):
            pass
        case _:
            raise PipelineError(
                "must be [kind, microbatch] or [kind, microbatch, chunk]", field=where
            )
    if isinstance(microbatch, bool) or isinstance(chunk, bool):
        raise PipelineError("microbatch and chunk must be counts from 0", field=where)
    if kind not in set(InstructionKind):
        raise PipelineError(
            f"unknown instruction {kind!r}; known: {', '.join(InstructionKind)}", field=where
        )
    if chunk < 0 or microbatch < 0:
        raise PipelineError("microbatch and chunk must be counts from 0", field=where)
    return Instruction(InstructionKind(kind), microbatch, chunk)
