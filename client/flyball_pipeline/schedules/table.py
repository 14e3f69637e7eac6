"""Schedules by name. A new schedule is a generator beside these and an entry in `SCHEDULES`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from flyball_pipeline.errors import PipelineError
from flyball_pipeline.instruction import (
    SPLIT_BACKWARD,
    WHOLE_BACKWARD,
    WHOLE_STEP,
    Kinds,
    PipelineShape,
)
from flyball_pipeline.schedule import Schedule, VirtualStages, looped, v_shaped
from flyball_pipeline.schedules.envpipe import ENVPIPE, envpipe
from flyball_pipeline.schedules.explicit import EXPLICIT, explicit
from flyball_pipeline.schedules.gpipe import gpipe, torchgpipe
from flyball_pipeline.schedules.inputs import OrderMaker, ScheduleInputs
from flyball_pipeline.schedules.interleaved import (
    interleaved_one_f_one_b,
    looped_bfs,
    zero_bubble,
)
from flyball_pipeline.schedules.one_f_one_b import (
    early_recompute,
    one_f_one_b,
    pipedream,
    pipedream_2bw,
)
from flyball_pipeline.schedules.v_orders import dualpipev, zbv
from flyball_pipeline.schedules.whole_step import STEP, whole_step

TORCHGPIPE = "torchgpipe"


class InAuto(Enum):
    """Part of a schedule in `auto`'s choice."""

    ALWAYS = "always"
    NAMED = "named"  # `auto:zbv`
    NEVER = "never"


@dataclass(frozen=True, kw_only=True)
class ScheduleEntry:
    """Facts of a schedule.

    Attributes:
        make: returns the order of each stage.
        kinds: kinds that a stage runs at least.
        num_chunks: number of model chunks of a stage; None: two or more.
        places: given the numbers of stages and chunks, returns each chunk's place in the model.
        weight_versions: given the number of stages, returns the versions of weights that each
            holds; None: every iteration flushes.
        in_auto: its part in `auto`, which compares what flushes and computes what 1F1B computes.
        is_replayed: whether recorded runs of it are replayed.
    """

    make: OrderMaker
    kinds: Kinds = WHOLE_BACKWARD
    num_chunks: int | None = 1
    places: Callable[[int, int], VirtualStages] = looped
    weight_versions: Callable[[int], tuple[int, ...]] | None = None
    in_auto: InAuto = InAuto.NEVER
    is_replayed: bool = False


def _v_shaped(num_stages: int, num_chunks: int) -> VirtualStages:
    del num_chunks  # a V has two legs
    return v_shaped(num_stages)


SCHEDULES: dict[str, ScheduleEntry] = {
    "1f1b": ScheduleEntry(make=one_f_one_b, in_auto=InAuto.ALWAYS, is_replayed=True),
    ENVPIPE: ScheduleEntry(make=envpipe, in_auto=InAuto.ALWAYS, is_replayed=True),
    "gpipe": ScheduleEntry(make=gpipe, in_auto=InAuto.ALWAYS, is_replayed=True),
    TORCHGPIPE: ScheduleEntry(make=torchgpipe),
    "early-recompute-1f1b": ScheduleEntry(make=early_recompute),
    "zb-h1": ScheduleEntry(make=zero_bubble, kinds=SPLIT_BACKWARD, in_auto=InAuto.ALWAYS),
    "interleaved-1f1b": ScheduleEntry(
        make=interleaved_one_f_one_b, num_chunks=None, in_auto=InAuto.ALWAYS
    ),
    "looped-bfs": ScheduleEntry(make=looped_bfs, num_chunks=None, in_auto=InAuto.ALWAYS),
    "interleaved-zb": ScheduleEntry(
        make=zero_bubble, kinds=SPLIT_BACKWARD, num_chunks=None, in_auto=InAuto.ALWAYS
    ),
    "zbv": ScheduleEntry(
        make=zbv, kinds=SPLIT_BACKWARD, num_chunks=2, places=_v_shaped, in_auto=InAuto.NAMED
    ),
    "dualpipev": ScheduleEntry(
        make=dualpipev, kinds=SPLIT_BACKWARD, num_chunks=2, places=_v_shaped, in_auto=InAuto.NAMED
    ),
    "pipedream": ScheduleEntry(
        make=pipedream, weight_versions=lambda num_stages: tuple(range(num_stages, 0, -1))
    ),
    "pipedream-2bw": ScheduleEntry(
        make=pipedream_2bw, weight_versions=lambda num_stages: (2,) * num_stages
    ),
    STEP: ScheduleEntry(make=whole_step, kinds=WHOLE_STEP),
    EXPLICIT: ScheduleEntry(make=lambda inputs: explicit(inputs).stages),
}


def make_schedule(name: str, inputs: ScheduleInputs) -> Schedule:
    """Return the order called `name`.

    Raises:
        PipelineError: there is no such schedule, an input is for another, or the pipeline's shape
            does not fit.
    """
    if name not in SCHEDULES:
        raise PipelineError(f"unknown {name!r}; known: {', '.join(SCHEDULES)}", field="schedule")
    for field, value, its_schedule in (
        ("order", inputs.order, EXPLICIT),
        ("extra_forwards", inputs.extra_forwards, ENVPIPE),
        ("checkpoint", inputs.checkpoint, TORCHGPIPE),
    ):
        if value is not None and name != its_schedule:
            raise PipelineError(f"is for schedule {its_schedule}, not {name}", field=field)
    if name == EXPLICIT:
        return explicit(inputs)
    entry, shape = SCHEDULES[name], inputs.shape
    if entry.num_chunks == 1:
        shape = replace(shape, chunks=())
    else:
        _check_chunks(name, entry.num_chunks, shape)
    if entry.kinds == SPLIT_BACKWARD:
        _check_split_backward(name, shape)
    return Schedule(
        name=name,
        num_microbatches=shape.num_microbatches,
        stages=tuple(map(tuple, entry.make(replace(inputs, shape=shape)))),
        virtual_stages=entry.places(shape.num_stages, len(shape.chunks) or 1),
        weight_versions=entry.weight_versions and entry.weight_versions(shape.num_stages),
    )


def schedules_in_auto(*parts: InAuto) -> tuple[str, ...]:
    """Return the names of the schedules with one of these parts in `auto`."""
    return tuple(name for name, entry in SCHEDULES.items() if entry.in_auto in parts)


def _check_chunks(schedule: str, num_chunks: int | None, shape: PipelineShape) -> None:
    """Check that stages hold at least two chunks, or exactly `num_chunks`.

    Raises:
        PipelineError: they hold fewer, or another number.
    """
    measured = len(shape.chunks)
    if measured < 2 or num_chunks not in (None, measured):
        wanted = "at least 2" if num_chunks is None else str(num_chunks)
        raise PipelineError(
            f"has {measured or 'no'} chunks; {schedule} runs {wanted} per stage: measure each and"
            " give its number in the column chunk",
            field="profile",
        )


def _check_split_backward(schedule: str, shape: PipelineShape) -> None:
    """Check that every stage's backward is measured in its two parts.

    Raises:
        PipelineError: a stage's is not.
    """
    for number, chunk in enumerate(shape.chunks or (shape.stages,)):
        for stage, kinds in enumerate(chunk):
            for kind in sorted(SPLIT_BACKWARD - kinds):
                where = f"stage {stage}" + (f", chunk {number}" if shape.chunks else "")
                raise PipelineError(
                    f"has no {kind} of {where}; {schedule} runs a backward in two parts",
                    field="profile",
                )
