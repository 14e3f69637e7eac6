"""Orders that others made: taken as they are, and refused by name where they cannot run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from flyball_profiles.stage_profile import StageProfile
from flyball_server.planning.documents.recorded_plan import model_of_plan
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.model.dag import build_dag
from flyball_server.planning.model.simulator import simulate
from flyball_server.planning.planner import PlanRequest, make_plan, model_of_request
from flyball_server.planning.schedules import make_schedule
from flyball_server.planning.schedules._base import (
    ActivationMemory,
    ExplicitOrder,
    ScheduleContext,
    VirtualStages,
)
from flyball_server.planning.schedules.explicit import explicit_order, num_microbatches_of
from flyball_wire.plan_options import PlanOptions, Policy

from .tiny_pipelines import (
    B,
    F,
    I,
    Shape,
    W,
    any_contexts,
    any_shapes,
    equal_profile,
    timed_profile,
)

Entry = Sequence[str | int]
Entries = Sequence[Sequence[Entry]]
STAGE: list[Entry] = [["forward", 0], ["forward", 1], ["backward", 0], ["backward", 1]]
ONE: list[Entry] = [["forward", 0], ["backward", 0]]
V: list[Entry] = [["forward", 0], ["forward", 0, 1], ["backward", 0, 1], ["backward", 0]]


def refusal(
    stages: Entries,
    *,
    virtual_stages: VirtualStages | None = None,
    num_microbatches: int = 1,
    profile: StageProfile | None = None,
    **options: Any,  # noqa: ANN401 - of any option
) -> PlanningError:
    """Return what a planner says that is asked to plan this."""
    with pytest.raises(PlanningError) as raised:
        make_plan(
            PlanRequest(
                profile=profile or equal_profile(2),
                num_microbatches=num_microbatches,
                options=PlanOptions(
                    blocking_power_w=(5.0,),
                    schedule="explicit",
                    policy=Policy.ENVELOPE,
                    order=tuple(tuple(map(tuple, stage)) for stage in stages),
                    virtual_stages=virtual_stages,
                    **options,
                ),
            )
        )
    assert "\n" not in str(raised.value)
    return raised.value


def test_an_order_is_run_as_it_is_written() -> None:
    order = explicit_order([STAGE, [*STAGE[::2], *STAGE[1::2]]], None)
    context = ScheduleContext(profile=equal_profile(2), num_microbatches=2, order=order)
    schedule = make_schedule("explicit", context)
    assert schedule.stages == order.stages
    assert schedule.virtual_stages == ((0,), (1,))
    assert num_microbatches_of(order) == 2


def test_an_order_of_chunks_is_run_as_it_is_written() -> None:
    profile = timed_profile(2, {F: 1.0, B: 2.0}, num_chunks=2)
    order = (tuple(map(tuple, V)),) * 2
    request = PlanRequest(
        profile=profile,
        num_microbatches=1,
        options=PlanOptions(
            blocking_power_w=(5.0,),
            schedule="explicit",
            policy=Policy.BASELINE,
            order=order,
            virtual_stages=((0, 3), (1, 2)),
        ),
    )
    plan = make_plan(request).plan
    assert plan.iteration_time_s == 4 * 1 + 4 * 2
    assert plan.virtual_stages == ((0, 3), (1, 2))
    simulation = simulate(*model_of_plan(profile, plan))
    assert simulation.iteration_time_s == plan.iteration_time_s


@given(
    any_shapes(max_stages=3, max_microbatches=4).flatmap(
        lambda shape: any_contexts(shape).map(lambda context: (shape, context))
    )
)
def test_any_schedule_that_flushes_written_down_as_an_order_is_the_same(
    drawn: tuple[Shape, ScheduleContext],
) -> None:
    shape, context = drawn
    made = make_schedule(shape[0], context)
    order = explicit_order(
        [[(str(kind), m, chunk) for kind, m, chunk in stage] for stage in made.stages],
        made.virtual_stages,
    )
    if made.is_periodic:
        return
    taken = make_schedule("explicit", replace(context, checkpoint=None, order=order))
    assert taken.stages == made.stages
    assert build_dag(taken) == build_dag(made)


@pytest.mark.parametrize(
    ("stages", "num_microbatches", "field", "said"),
    [
        ([], 1, "order", "every stage must run something"),
        ([ONE, []], 1, "order", "every stage must run something"),
        ([ONE, ONE[:1]], 1, "order", "stage 1 does not run one forward and one backward of mic"),
        ([ONE, [*ONE, ["backward", 0]]], 1, "order", "stage 1 runs an instruction twice"),
        ([ONE, [*ONE, ["forward", 0]]], 1, "order", "stage 1 runs an instruction twice"),
        ([ONE, ONE], 2, "order", "stage 0 does not run all 2 microbatches"),
        ([STAGE, STAGE], 1, "order", "microbatch 1, of 1 microbatches"),
        ([ONE, ONE[::-1]], 1, "order", "stage 1 runs backward of microbatch 0 before"),
        ([ONE, [["forward", 0, 1], ["backward", 0, 1]]], 1, "order", "runs chunk 1, but has 1"),
        ([ONE, ONE, ONE], 1, "order", "has 3 stages, the profile 2"),
        ([ONE], 1, "order", "has 1 stages, the profile 2"),
        (
            [[STAGE[0], STAGE[2], STAGE[1], STAGE[3]], [STAGE[1], STAGE[3], STAGE[0], STAGE[2]]],
            2,
            "order",
            "the order deadlocks: stage",
        ),
        (
            [[*ONE[:1], ["backward_input", 0], ["backward_weight", 0]], ONE],
            1,
            "profile",
            "has no backward_input of stage 0, which the schedule runs",
        ),
    ],
    ids=[
        "empty", "empty stage", "incomplete", "doubled", "doubled forward", "too few microbatches",
        "too many microbatches", "backward first", "chunk out of range", "too many stages",
        "too few stages", "deadlocking", "not profiled",
    ],
)  # fmt: skip
def test_an_order_that_cannot_be_planned_is_refused_by_its_name(
    stages: Entries, num_microbatches: int, field: str, said: str
) -> None:
    error = refusal(stages, num_microbatches=num_microbatches)
    assert said in error.message
    assert error.field == field


@pytest.mark.parametrize("num_stages", [1, 3])
def test_an_order_of_another_number_of_stages_is_refused_before_its_memory_is_looked_at(
    num_stages: int,
) -> None:
    error = refusal([ONE] * num_stages, activation_bytes=(1, 1), free_memory_bytes=(9, 9))
    assert error.field == "order"


@pytest.mark.parametrize(
    ("virtual_stages", "said"),
    [
        (((0, 3),), "1 entries for 2 stages"),
        (((0, 3), (1,)), "all stages must hold as many chunks"),
        (((0, 3), (1, 4)), "must hold each of 0 to 3 once, not 0, 1, 3, 4"),
        (((0, 1), (1, 2)), "must hold each of 0 to 3 once, not 0, 1, 1, 2"),
    ],
)
def test_chunks_that_make_no_model_are_refused(virtual_stages: VirtualStages, said: str) -> None:
    profile = timed_profile(2, {F: 1.0, B: 2.0}, num_chunks=2)
    error = refusal([V, V], virtual_stages=virtual_stages, profile=profile)
    assert said in error.message
    assert error.field == "virtual_stages"


def test_chunks_in_an_order_that_does_not_fit_their_places_deadlock() -> None:
    """Chunk 1 of stage 0 needs all that follows its chunk 0, but stands before it."""
    profile = timed_profile(2, {F: 1.0, B: 2.0}, num_chunks=2)
    error = refusal([[V[1], V[0], V[2], V[3]], V], virtual_stages=((0, 3), (1, 2)), profile=profile)
    assert "deadlocks" in error.message
    assert error.field == "order"


@pytest.mark.parametrize("num_chunks", [1, 3])
def test_an_order_of_other_chunks_than_were_profiled_is_refused(num_chunks: int) -> None:
    profile = timed_profile(2, {F: 1.0, B: 2.0}, num_chunks)
    error = refusal([V, V], virtual_stages=((0, 3), (1, 2)), profile=profile)
    assert "and 2 are run; measure each chunk" in error.message
    assert error.field == "profile"


def test_an_order_that_memory_cannot_hold_is_refused_and_one_byte_more_is_enough() -> None:
    """GPipe's order of two microbatches: stage 1 holds one more than 1F1B's one."""
    error = refusal(
        [STAGE, STAGE], num_microbatches=2, activation_bytes=(10,), free_memory_bytes=(0, 9)
    )
    assert error.message == (
        "explicit keeps the activations of 2 microbatches on stage 1, whose memory holds 1.9"
    )
    assert error.field == "free_memory_bytes"
    model_of_request(
        PlanRequest(
            profile=equal_profile(2),
            num_microbatches=2,
            options=PlanOptions(
                blocking_power_w=(5.0,),
                schedule="explicit",
                activation_bytes=(10,),
                free_memory_bytes=(0, 10),
                order=(tuple(map(tuple, STAGE)),) * 2,
            ),
        )
    )


@pytest.mark.parametrize(
    ("schedule", "free_bytes", "said"),
    [
        ("gpipe", (29, 99, 99), "of 6 microbatches on stage 0, whose memory holds 5.9"),
        ("zb-h1", (0, 10, 19), "of 3 microbatches on stage 2, whose memory holds 2.9"),
        ("zbv", (0, 9, 99), "of 3 microbatches on stage 1, whose memory holds 2.9"),
        ("interleaved-1f1b", (9, 99, 99), "of 4 microbatches on stage 0, whose memory holds 3.9"),
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
    with pytest.raises(PlanningError) as error:
        make_schedule(schedule, context)
    assert error.value.message == f"{schedule} keeps the activations {said}"
    assert error.value.field == "free_memory_bytes"
    short = [index for index in range(3) if f"stage {index}" in said]
    enough = tuple(size + (1 if stage in short else 0) for stage, size in enumerate(free_bytes))
    memory = ActivationMemory(activation_bytes=(10,) * 3, free_bytes=enough)
    make_schedule(schedule, replace(context, activation_memory=memory))


@pytest.mark.parametrize(
    "entry",
    [
        [],
        ["forward"],
        ["forward", 0, 0, 0],
        [0, "forward"],
        ["forward", "0"],
        ["forward", 0.0],
        ["forward", None],
        ["forward", -1],
        ["forward", 0, -1],
        ["forward", 0, "1"],
        ["forward", 0, None],
        ["forward", True],
        ["forward", 0, False],
        ["sideways", 0],
        ["FORWARD", 0],
    ],
)
def test_what_is_no_instruction_is_refused_with_its_place(entry: list[str | int]) -> None:
    with pytest.raises(PlanningError) as error:
        explicit_order([ONE, [*ONE, entry]], None)
    assert error.value.field == "order[1][2]"


def test_an_order_and_a_named_schedule_do_not_go_together() -> None:
    order = explicit_order([ONE, ONE], None)
    for name, given_order in (("gpipe", order), ("explicit", None)):
        context = ScheduleContext(profile=equal_profile(2), num_microbatches=1, order=given_order)
        with pytest.raises(PlanningError) as error:
            make_schedule(name, context)
        assert error.value.field == "order"


def test_an_order_without_instructions_has_no_microbatches_but_one() -> None:
    assert num_microbatches_of(ExplicitOrder(stages=())) == 1
