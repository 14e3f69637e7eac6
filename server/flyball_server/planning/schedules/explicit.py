"""An order that a framework or a person wrote down, as the schedule `explicit`."""

from __future__ import annotations

from collections.abc import Sequence

from flyball_profiles.stage_profile import InstructionKind
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.schedules._base import (
    ExplicitOrder,
    Instruction,
    Schedule,
    ScheduleContext,
    VirtualStages,
)

EXPLICIT = "explicit"


def make_explicit(context: ScheduleContext) -> Schedule:
    """Return the order that the context has.

    Raises:
        PlanningError: it has none, or one that is not complete.
    """
    if context.order is None:
        raise PlanningError("schedule explicit needs an order", field="order")
    if len(context.order.stages) not in {0, context.profile.num_stages}:
        raise PlanningError(
            f"has {len(context.order.stages)} stages, the profile {context.profile.num_stages}",
            field="order",
        )
    kinds = {instruction.kind for stage in context.order.stages for instruction in stage}
    if InstructionKind.STEP in kinds and len(context.order.stages) > 1:
        raise PlanningError(
            "step is a whole training step, where there is no pipeline; stages run forward and"
            " backward",
            field="order",
        )
    return schedule_of_order(context.order, context.num_microbatches)


def schedule_of_order(order: ExplicitOrder, num_microbatches: int) -> Schedule:
    """Return the order as a schedule.

    Raises:
        PlanningError: it is not complete.
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
        PlanningError: an entry is none; names its place.
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
        PlanningError: it is none of these; `where` is its field.
    """
    match entry:
        case (str(kind), int(microbatch)):
            chunk = 0
        case (str(kind), int(microbatch), int(chunk)):
            pass
        case _:
            raise PlanningError(
                "must be [kind, microbatch] or [kind, microbatch, chunk]", field=where
            )
    if isinstance(microbatch, bool) or isinstance(chunk, bool):
        raise PlanningError("microbatch and chunk must be counts from 0", field=where)
    if kind not in set(InstructionKind):
        raise PlanningError(
            f"unknown instruction {kind!r}; known: {', '.join(InstructionKind)}", field=where
        )
    if chunk < 0 or microbatch < 0:
        raise PlanningError("microbatch and chunk must be counts from 0", field=where)
    return Instruction(InstructionKind(kind), microbatch, chunk)
