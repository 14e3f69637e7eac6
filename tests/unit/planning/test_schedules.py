"""Orders: what each stage runs and when, and what is no order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball_profiles.stage_profile import InstructionKind, StageProfile
from flyball_server.planning.model.dag import build_dag
from flyball_server.planning.schedules import make_schedule
from flyball_server.planning.schedules._base import (
    MAX_NUM_MICROBATCHES,
    ActivationMemory,
    Instruction,
    Schedule,
    ScheduleContext,
    VirtualStages,
)
from flyball_server.planning.schedules.envpipe import extra_warmup_forwards

from .tiny_pipelines import (
    B,
    F,
    I,
    R,
    S,
    Shape,
    W,
    any_contexts,
    any_shapes,
    context_of,
    equal_profile,
    model_of,
    profile_of,
    profiles,
    refuses,
    timed_profile,
    written,
)


@pytest.mark.parametrize(
    ("name", "num_microbatches", "expected"),
    [
        ("gpipe", 3, ["F0 F1 F2 B0 B1 B2"] * 2),
        ("1f1b", 3, ["F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2"]),
        ("1f1b", 1, ["F0 B0"] * 2),
        ("envpipe", 4, ["F0 F1 F2 B0 F3 B1 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"]),
    ],
)
def test_two_equal_stages_run_these_orders(
    name: str, num_microbatches: int, expected: list[str]
) -> None:
    schedule = make_schedule(name, context_of(equal_profile(2), num_microbatches))
    assert [written(stage) for stage in schedule.stages] == expected


def test_a_split_backward_runs_its_weight_part_right_after_its_input_part() -> None:
    parts = {kind: [(2, 1.0, 1.0), (1, 2.0, 1.0)] for kind in (F, I, W)}
    schedule = make_schedule("1f1b", context_of(profile_of([parts, parts]), 2))
    assert [written(stage) for stage in schedule.stages] == [
        "F0 F1 I0 W0 I1 W1",
        "F0 I0 W0 F1 I1 W1",
    ]


@given(
    any_shapes(max_stages=4, max_microbatches=6).flatmap(
        lambda shape: st.tuples(st.just(shape), any_contexts(shape))
    )
)
def test_every_schedule_runs_everything_once_in_order_and_without_deadlock(
    drawn: tuple[Shape, ScheduleContext],
) -> None:
    (name, num_stages, num_chunks, num_microbatches), context = drawn
    schedule = make_schedule(name, context)
    build_dag(schedule)  # raises where the order deadlocks
    assert schedule.name == name
    assert (schedule.num_stages, schedule.num_chunks) == (num_stages, num_chunks)
    for instructions in schedule.stages:
        assert len(set(instructions)) == len(instructions)
        for chunk in range(num_chunks):
            for microbatch in range(num_microbatches):
                run = [unit.kind for unit in instructions if unit[1:] == (microbatch, chunk)]
                if schedule.is_periodic:  # the forward may be of a later microbatch's period
                    run.sort(key=[F, R, B, I, W].index)
                assert run in ([F, B], [F, R, B], [F, I, W], [F, R, I, W], [S])
                assert (run == [S]) == (name == "step")
        assert {unit.microbatch for unit in instructions} == set(range(num_microbatches))
        assert {unit.chunk for unit in instructions} == set(range(num_chunks))


@given(profiles(), st.integers(1, 8), st.sampled_from(["gpipe", "1f1b", "envpipe"]))
def test_forwards_and_backwards_alternate_between_warm_up_and_drain(
    profile: StageProfile, num_microbatches: int, name: str
) -> None:
    context = context_of(profile, num_microbatches)
    extra = extra_warmup_forwards(context)
    for stage, instructions in enumerate(make_schedule(name, context).stages):
        in_front = {
            "gpipe": num_microbatches,
            "1f1b": profile.num_stages - stage,
            "envpipe": profile.num_stages - stage + extra[stage],
        }[name]
        in_front = min(in_front, num_microbatches)
        compact = "".join(
            "F" if item.kind is F else "B" for item in instructions if item.kind is not W
        )
        alternating = num_microbatches - in_front
        assert compact == "F" * in_front + "BF" * alternating + "B" * in_front


@pytest.mark.parametrize("num_microbatches", [0, -1, MAX_NUM_MICROBATCHES + 1, 2**60])
def test_a_number_of_microbatches_out_of_bounds_is_refused(num_microbatches: int) -> None:
    with refuses("num_microbatches", "must be from 1 to 65536"):
        context_of(equal_profile(2), num_microbatches)


@pytest.mark.parametrize(
    ("activation_bytes", "free_bytes", "field"),
    [
        ((0, 1), (1, 1), "activation_bytes"),
        ((1, 1), (-1, 1), "free_memory_bytes"),
        ((1, 1), (1,), "free_memory_bytes"),
    ],
)
def test_activation_memory_that_does_not_fit_is_refused(
    activation_bytes: tuple[int, ...], free_bytes: tuple[int, ...], field: str
) -> None:
    with refuses(field):
        ScheduleContext(
            profile=equal_profile(2),
            num_microbatches=2,
            activation_memory=ActivationMemory(
                activation_bytes=activation_bytes, free_bytes=free_bytes
            ),
        )


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        ((), "every stage must run something"),
        (
            ((B, 0), (F, 0), (F, 1), (B, 1)),
            "stage 1 runs backward of microbatch 0 before the instruction",
        ),
        (((F, 0), (W, 0), (I, 0), (F, 1), (B, 1)), "runs backward_weight of microbatch 0 before"),
        (((R, 0), (F, 0), (B, 0), (F, 1), (B, 1)), "stage 1 runs recompute of microbatch 0 before"),
        (((F, 0), (B, 0), (R, 0), (F, 1), (B, 1)), "stage 1 runs backward of microbatch 0 before"),
        (((F, 0, 1), (B, 0, 1)), "stage 1 runs chunk 1, but has 1; virtual_stages gives"),
        (((F, 0), (F, 0), (B, 0)), "runs an instruction twice"),
        (((F, 0), (B, 0)), "does not run all 2 microbatches"),
        (((F, 0), (B, 0), (F, 1)), "one forward and one backward of microbatch 1"),
        (((F, 0), (B, 0), (F, 1), (B, 1), (W, 1)), "one forward and one backward of microbatch 1"),
        (((F, 0), (B, 0), (F, 2), (B, 2)), "microbatch 2, of 2 microbatches"),
    ],
)
def test_a_stage_that_runs_too_little_or_too_much_is_refused(
    stage: tuple[tuple[InstructionKind, int] | tuple[InstructionKind, int, int], ...], said: str
) -> None:
    whole = tuple(Instruction(kind, m) for m in (0, 1) for kind in (F, B))
    wrong = tuple(Instruction(*unit) for unit in stage)
    with refuses("schedule", said):
        Schedule(name="by hand", num_microbatches=2, stages=(whole, wrong))


@pytest.mark.parametrize(
    ("num_stages", "chunk", "virtual_stages", "field", "said"),
    [
        (0, 0, (), "schedule", "every stage must run something"),
        (1, 1, ((0, 1),), "schedule", "does not run all 1 microbatches of every chunk"),
        (2, 0, ((0,), (1,), (2,)), "virtual_stages", "3 entries for 2 stages"),
        (2, 0, ((0, 2), (1,)), "virtual_stages", "all stages must hold the same number of chunks"),
        (2, 0, ((0,), (2,)), "virtual_stages", "must hold each of 0 to 1 once, not 0, 2"),
    ],
)
def test_chunks_that_make_no_model_are_refused(
    num_stages: int, chunk: int, virtual_stages: VirtualStages, field: str, said: str
) -> None:
    stages = ((Instruction(F, 0, chunk), Instruction(B, 0, chunk)),) * num_stages
    with refuses(field, said):
        Schedule(name="by hand", num_microbatches=1, stages=stages, virtual_stages=virtual_stages)


@pytest.mark.parametrize(
    ("name", "kinds", "num_chunks", "num_microbatches", "field", "said"),
    [
        ("2f2b", (F, B), 1, 2, "schedule", "unknown '2f2b'; known: gpipe, 1f1b, envpipe"),
        ("interleaved-1f1b", (F, B), 1, 2, "profile", "runs at least 2 per stage"),
        ("zbv", (F, I, W), 1, 4, "profile", "zbv runs 2 per stage"),
        ("zb-h1", (F, B), 1, 4, "profile", "has no backward_input of stage 0; zb-h1"),
        ("zbv", (F, B), 2, 4, "profile", "has no backward_input of stage 0, chunk 0; zbv"),
        ("torchgpipe", (F, B), 1, 2, "profile", "has no recompute of stage 0"),
        ("interleaved-1f1b", (F, B), 2, 5, "num_microbatches", "5 cannot be divided into groups"),
        ("interleaved-zb", (F, I, W), 2, 5, "num_microbatches", "over 2 stages; 4 and 6 can"),
        ("dualpipev", (F, I, W), 2, 3, "num_microbatches", "must be at least 4 for dualpipev"),
        ("pipedream-2bw", (F, B), 1, 1, "num_microbatches", "must be at least 2, one per stage"),
    ],
)
def test_a_schedule_that_profile_or_microbatches_do_not_allow_is_refused(
    name: str,
    kinds: tuple[InstructionKind, ...],
    num_chunks: int,
    num_microbatches: int,
    field: str,
    said: str,
) -> None:
    profile = timed_profile(2, dict.fromkeys(kinds, 1.0), num_chunks)
    with refuses(field, said):
        model_of(profile, num_microbatches, name)


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ((F, B), "F0 F1 F0.1 F1.1 B0.1 B1.1 B0 B1"),
        ((F, B, I, W), "F0 F1 F0.1 F1.1 B0.1 B1.1 B0 B1"),
        ((F, I, W), "F0 F1 F0.1 F1.1 I0.1 W0.1 I1.1 W1.1 I0 W0 I1 W1"),
    ],
)
def test_interleaving_runs_a_backward_as_it_was_profiled(
    kinds: tuple[InstructionKind, ...], expected: str
) -> None:
    """Two stages, two microbatches: stage 0 runs all its forwards before its first backward."""
    profile = timed_profile(2, dict.fromkeys(kinds, 1.0), num_chunks=2)
    schedule = make_schedule("interleaved-1f1b", context_of(profile, 2))
    assert written(schedule.stages[0]) == expected
    assert schedule.virtual_stages == ((0, 2), (1, 3))
