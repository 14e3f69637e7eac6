"""Order of Megatron's schedules, of every stage, before the first step.

Taken from Megatron's own functions, which compute it from their arguments alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from flyball_wire.messages import JobRegistration

# (microbatch, model chunk), both from 0.
Place = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class MegatronOrder:
    """Order of one stage in a step.

    Attributes:
        num_warmup: forwards in front of the first backward; then one of each in turn.
        forwards: microbatch and chunk of each forward, in the order of execution.
        backwards: microbatch and chunk of each backward, in the order of execution.
    """

    num_warmup: int
    forwards: tuple[Place, ...]
    backwards: tuple[Place, ...]

    def instructions(self) -> tuple[tuple[str, int, int], ...]:
        """Return (kind, microbatch, chunk) in the order of execution."""
        forwards = [("forward", *place) for place in self.forwards]
        backwards = [("backward", *place) for place in self.backwards]
        order = forwards[: self.num_warmup]
        num_alternating = len(forwards) - self.num_warmup
        for forward, backward in zip(forwards[self.num_warmup :], backwards, strict=False):
            order += [forward, backward]
        return (*order, *backwards[num_alternating:])


def one_f_one_b(*, stage: int, num_stages: int, num_microbatches: int) -> MegatronOrder:
    """Return 1F1B without model chunks: min(stages behind, microbatches) warm-up forwards."""
    places = tuple((microbatch, 0) for microbatch in range(num_microbatches))
    return MegatronOrder(
        num_warmup=min(num_stages - stage - 1, num_microbatches), forwards=places, backwards=places
    )


def interleaved(
    schedules: Any,  # noqa: ANN401 - a module without types
    *,
    num_stages: int,
    num_chunks: int,
    num_microbatches: int,
    group_size: int,
) -> tuple[MegatronOrder, ...]:
    """Return interleaved 1F1B of each stage.

    Args:
        schedules: `megatron.core.pipeline_parallel.schedules`.
        num_stages: ranks of the pipeline.
        num_chunks: of the model, per stage.
        num_microbatches: of a step.
        group_size: microbatches that a chunk runs in succession:
            `config.microbatch_group_size_per_vp_stage`.
    """
    forwards = tuple(schedules.get_schedule_table(num_microbatches, num_chunks, group_size))
    # Backwards visit the chunks the other way round.
    backwards = tuple((microbatch, num_chunks - 1 - chunk) for microbatch, chunk in forwards)
    return tuple(
        MegatronOrder(
            num_warmup=schedules.get_pp_rank_microbatches(
                num_microbatches,
                num_chunks,
                group_size,
                p2p_communicator=_seen_from(stage, num_stages, num_chunks),
            )[2],
            forwards=forwards,
            backwards=backwards,
        )
        for stage in range(num_stages)
    )


def _seen_from(stage: int, num_stages: int, num_chunks: int) -> SimpleNamespace:
    """Return the attributes of a P2PCommunicator that Megatron counts warm-up forwards with."""
    return SimpleNamespace(
        pp_group=SimpleNamespace(size=lambda: num_stages, rank=lambda: stage),
        virtual_pipeline_model_parallel_size=num_chunks,
    )


def registration_of(
    orders: Sequence[MegatronOrder], num_microbatches: int, num_ranks: int
) -> JobRegistration:
    """Return the registration of the pipeline, without planning options.

    Args:
        orders: of all stages.
        num_microbatches: of a step.
        num_ranks: of the job.
    """
    num_stages = len(orders)
    registration = JobRegistration(
        num_stages=num_stages,
        num_microbatches=num_microbatches,
        num_ranks=num_ranks,
        schedule="1f1b",
    )
    num_chunks = len({chunk for _, chunk in orders[0].forwards})
    if num_chunks == 1:
        return registration
    return replace(
        registration,
        schedule="explicit",
        order=tuple(order.instructions() for order in orders),
        virtual_stages=tuple(
            tuple(chunk * num_stages + stage for chunk in range(num_chunks))
            for stage in range(num_stages)
        ),
    )
