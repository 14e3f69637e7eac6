"""Inputs of a schedule's order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from flyball_pipeline.instruction import Checkpoint, Instruction, PipelineShape
from flyball_pipeline.schedule import VirtualStages


@dataclass(frozen=True, kw_only=True)
class ExplicitOrder:
    """An order that someone else made: a framework's, or one written by hand.

    Attributes:
        stages, virtual_stages: as in Schedule.
    """

    stages: tuple[tuple[Instruction, ...], ...]
    virtual_stages: VirtualStages = ()


@dataclass(frozen=True, kw_only=True)
class ScheduleInputs:
    """Inputs of an order: the pipeline's shape, and what single schedules need beside it.

    Attributes:
        checkpoint: for `torchgpipe`; None: all microbatches but the last.
        order: for `explicit`, the order itself.
        extra_forwards: for `envpipe`, per stage the forwards in front beyond those of 1F1B; None:
            one for each later stage, as far as there are microbatches.
    """

    shape: PipelineShape
    checkpoint: Checkpoint | None = None
    order: ExplicitOrder | None = None
    extra_forwards: tuple[int, ...] | None = None


Stages = Iterable[Sequence[Instruction]]
"""Per stage, its instructions in the order of execution."""

OrderMaker = Callable[[ScheduleInputs], Stages]
