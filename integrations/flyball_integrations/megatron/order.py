"""Order of Megatron's schedules, of every stage, before the first step.

Taken from Megatron's own functions, which compute it from their arguments alone.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from flyball_pipeline.instruction import Instruction, InstructionKind, equal_stages
from flyball_pipeline.schedule import Schedule, looped
from flyball_pipeline.schedules.explicit import EXPLICIT
from flyball_pipeline.schedules.inputs import ScheduleInputs
from flyball_pipeline.schedules.one_f_one_b import alternate
from flyball_pipeline.schedules.table import make_schedule
from flyball_wire.messages import JobRegistration


def one_f_one_b(num_stages: int, num_microbatches: int) -> Schedule:
    """Return 1F1B without model chunks."""
    shape = equal_stages(num_stages, num_microbatches)
    return make_schedule("1f1b", ScheduleInputs(shape=shape))


def interleaved(
    schedules: Any,  # noqa: ANN401 - a module without types
    *,
    num_stages: int,
    num_chunks: int,
    num_microbatches: int,
    group_size: int,
) -> Schedule:
    """Return interleaved 1F1B as Megatron runs it.

    Args:
        schedules: `megatron.core.pipeline_parallel.schedules`.
        num_stages: ranks of the pipeline.
        num_chunks: of the model, per stage.
        num_microbatches: of a step.
        group_size: microbatches that a chunk runs in succession:
            `config.microbatch_group_size_per_vp_stage`.
    """
    places = schedules.get_schedule_table(num_microbatches, num_chunks, group_size)
    forwards = [Instruction(InstructionKind.FORWARD, *place) for place in places]
    # Backwards visit the chunks the other way round.
    backwards = [
        [Instruction(InstructionKind.BACKWARD, microbatch, num_chunks - 1 - chunk)]
        for microbatch, chunk in places
    ]
    num_warmup = [
        schedules.get_pp_rank_microbatches(
            num_microbatches,
            num_chunks,
            group_size,
            p2p_communicator=_seen_from(stage, num_stages, num_chunks),
        )[2]
        for stage in range(num_stages)
    ]
    return Schedule(
        name=EXPLICIT,
        num_microbatches=num_microbatches,
        stages=tuple(tuple(alternate(forwards, backwards, number + 1)) for number in num_warmup),
        virtual_stages=looped(num_stages, num_chunks),
    )


def _seen_from(stage: int, num_stages: int, num_chunks: int) -> SimpleNamespace:
    """Return the attributes of a P2PCommunicator that Megatron counts warm-up forwards with."""
    return SimpleNamespace(
        pp_group=SimpleNamespace(size=lambda: num_stages, rank=lambda: stage),
        virtual_pipeline_model_parallel_size=num_chunks,
    )


def registration_of(order: Schedule, num_ranks: int) -> JobRegistration:
    """Return the registration of the pipeline, without planning options."""
    registration = JobRegistration(
        num_stages=order.num_stages,
        num_microbatches=order.num_microbatches,
        num_ranks=num_ranks,
        schedule=order.name,
    )
    if order.name != EXPLICIT:
        return registration
    return replace(registration, order=order.stages, virtual_stages=order.virtual_stages)
