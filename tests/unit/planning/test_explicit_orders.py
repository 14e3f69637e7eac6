"""Orders that others made: taken as they are, and refused by name where they cannot run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from flyball_pipeline.dag import build_dag
from flyball_pipeline.errors import PipelineError
from flyball_pipeline.schedules.explicit import explicit_order, num_microbatches_of
from flyball_pipeline.schedules.inputs import ExplicitOrder
from flyball_server.planning.planner import model_of_request
from flyball_server.planning.scheduling import ActivationMemory, ScheduleContext, schedule_for

from .tiny_pipelines import (
    B,
    F,
    I,
    Shape,
    W,
    any_contexts,
    any_shapes,
    refuses,
    request_of,
    timed_profile,
)

Entry = Sequence[str | int]
STAGE: list[Entry] = [["forward", 0], ["forward", 1], ["backward", 0], ["backward", 1]]
ONE: list[Entry] = [["forward", 0], ["backward", 0]]
SPLIT: list[Entry] = [["forward", 0], ["backward_input", 0], ["backward_weight", 0]]
MEMORY = {"activation_bytes": (10, 10), "free_memory_bytes": (9, 9)}
IN_A_V = {"virtual_stages": ((0, 3), (1, 2))}
V: list[Entry] = [["forward", 0], ["forward", 0, 1], ["backward", 0, 1], ["backward", 0]]


@given(
    any_shapes(max_stages=3, max_microbatches=4).flatmap(
        lambda shape: any_contexts(shape).map(lambda context: (shape, context))
    )
)
def test_any_schedule_that_flushes_written_down_as_an_order_is_the_same(
    drawn: tuple[Shape, ScheduleContext],
) -> None:
    shape, context = drawn
    made = schedule_for(shape[0], context)
    order = explicit_order(
        [[(str(kind), m, chunk) for kind, m, chunk in stage] for stage in made.stages],
        made.virtual_stages,
    )
    if made.is_periodic:
        return
    taken = schedule_for("explicit", replace(context, checkpoint=None, order=order))
    assert taken.stages == made.stages
    assert build_dag(taken) == build_dag(made)


@pytest.mark.parametrize(
    ("schedule", "free_bytes", "said"),
    [
        ("gpipe", (29, 99, 99), "of 6 microbatches on stage 0, whose memory holds 5.9"),
        ("zb-h1", (0, 10, 19), "of 3 microbatches on stage 2, whose memory holds 2.9"),
        ("dualpipev", (4, 99, 99), "of 3.5 microbatches on stage 0, whose memory holds 3.4"),
    ],
)
def test_a_schedule_that_memory_cannot_hold_is_refused_a_chunk_being_part_of_a_stage(
    schedule: str, free_bytes: tuple[int, ...], said: str
) -> None:
    """Three stages, six microbatches of 10 bytes; two chunks; 1F1B holds 3, 2 and 1 of them."""
    num_chunks = 1 if schedule in {"zb-h1", "gpipe"} else 2
    context = ScheduleContext(
        profile=timed_profile(3, {F: 1.0, B: 2.0, I: 1.0, W: 1.0}, num_chunks),
        num_microbatches=6,
        activation_memory=ActivationMemory(activation_bytes=(10,) * 3, free_bytes=free_bytes),
    )
    with pytest.raises(PipelineError) as error:
        schedule_for(schedule, context)
    assert error.value.message == f"{schedule} keeps the activations {said}"
    assert error.value.field == "free_memory_bytes"
    short = [index for index in range(3) if f"stage {index}" in said]
    enough = tuple(size + (1 if stage in short else 0) for stage, size in enumerate(free_bytes))
    memory = ActivationMemory(activation_bytes=(10,) * 3, free_bytes=enough)
    schedule_for(schedule, replace(context, activation_memory=memory))


def test_an_order_has_the_microbatches_that_it_runs_and_at_least_one() -> None:
    assert num_microbatches_of(explicit_order([STAGE], None)) == 2
    assert num_microbatches_of(ExplicitOrder(stages=())) == 1


@pytest.mark.parametrize(
    ("num_chunks", "stages", "options", "field", "said"),
    [
        (1, [], {}, "order", "every stage must run something"),
        (1, [ONE, ONE[:1]], {}, "order", "stage 1 does not run one forward and one backward"),
        (1, [ONE, ONE, ONE], MEMORY, "order", "has 3 stages, the profile 2"),
        (1, [ONE, [*ONE, *STAGE]], {}, "order", "stage 1 runs an instruction twice"),
        (1, [ONE, SPLIT], {}, "profile", "has no backward_input of stage 1"),
        (2, [V, V], {"virtual_stages": ((0, 3),)}, "virtual_stages", "1 entries for 2 stages"),
        (2, [[V[1], V[0], *V[2:]], V], IN_A_V, "order", "deadlocks"),
        (1, [V, V], IN_A_V, "profile", "and 2 are run; measure each chunk"),
        (1, [ONE, ONE], {"schedule": "gpipe"}, "order", ""),
        (1, None, {}, "order", ""),
    ],
)
def test_an_order_that_cannot_be_planned_is_refused(
    num_chunks: int,
    stages: list[list[Entry]] | None,
    options: dict[str, Any],
    field: str,
    said: str,
) -> None:
    profile = timed_profile(2, {F: 1.0, B: 2.0}, num_chunks)
    order = stages if stages is None else tuple(tuple(map(tuple, stage)) for stage in stages)
    options = {"schedule": "explicit", "order": order, **options}
    with refuses(field, said):
        model_of_request(request_of(profile, **options))


@pytest.mark.parametrize(
    "entry",
    [
        *([], ["forward"], ["forward", 0, 0, 0], [0, "forward"], ["sideways", 0]),
        *(["forward", wrong] for wrong in ("0", 0.0, None, True, -1)),
        *(["forward", 0, wrong] for wrong in ("1", None, False, -1)),
    ],
)
def test_what_is_no_instruction_is_refused_with_its_place(entry: list[str | int]) -> None:
    with refuses("order[1][2]"):
        explicit_order([ONE, [*ONE, entry]], None)
