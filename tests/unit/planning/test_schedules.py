"""Orders: what each stage runs and when, and what is no order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball_profiles.stage_profile import InstructionKind, StageProfile
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.model.dag import build_dag
from flyball_server.planning.schedules import make_schedule
from flyball_server.planning.schedules._base import (
    MAX_NUM_MICROBATCHES,
    ActivationMemory,
    Instruction,
    Schedule,
    ScheduleContext,
)
from flyball_server.planning.schedules.envpipe import extra_warmup_forwards

from .tiny_pipelines import (
    B,
    F,
    I,
    R,
    Shape,
    W,
    any_contexts,
    any_shapes,
    context_of,
    equal_profile,
    model_of,
    profile_of,
    profiles,
    timed_profile,
)


def written(stage: tuple[Instruction, ...]) -> str:
    letters = {F: "F", B: "B", I: "I", W: "W", R: "R"}
    return " ".join(
        f"{letters[item.kind]}{item.microbatch}" + (f".{item.chunk}" if item.chunk else "")
        for item in stage
    )


def stages_of(name: str, num_stages: int, num_microbatches: int) -> list[str]:
    schedule = make_schedule(name, context_of(equal_profile(num_stages), num_microbatches))
    return [written(stage) for stage in schedule.stages]


def test_gpipe_runs_all_forwards_then_all_backwards() -> None:
    assert stages_of("gpipe", 2, 3) == ["F0 F1 F2 B0 B1 B2"] * 2


def test_one_f_one_b_warms_up_then_alternates_then_drains() -> None:
    assert stages_of("1f1b", 3, 4) == [
        "F0 F1 F2 B0 F3 B1 B2 B3",
        "F0 F1 B0 F2 B1 F3 B2 B3",
        "F0 B0 F1 B1 F2 B2 F3 B3",
    ]


def test_one_f_one_b_with_fewer_microbatches_than_stages_never_runs_one_too_many() -> None:
    assert stages_of("1f1b", 3, 1) == ["F0 B0"] * 3


def test_envpipe_runs_more_forwards_in_front_except_on_the_last_stage() -> None:
    assert stages_of("envpipe", 2, 4) == ["F0 F1 F2 B0 F3 B1 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"]


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
                assert run in ([F, B], [F, R, B], [F, I, W], [F, R, I, W])
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


def test_an_unknown_schedule_is_refused_with_those_known() -> None:
    with pytest.raises(PlanningError, match="unknown '2f2b'; known: gpipe, 1f1b, envpipe") as error:
        make_schedule("2f2b", context_of(equal_profile(2), 2))
    assert error.value.field == "schedule"


@pytest.mark.parametrize("num_microbatches", [0, -1, MAX_NUM_MICROBATCHES + 1, 2**60])
def test_a_number_of_microbatches_out_of_bounds_is_refused(num_microbatches: int) -> None:
    with pytest.raises(PlanningError, match="must be from 1 to 65536") as error:
        context_of(equal_profile(2), num_microbatches)
    assert error.value.field == "num_microbatches"


@pytest.mark.parametrize(
    ("activation_bytes", "free_bytes", "field"),
    [
        ((0, 1), (1, 1), "activation_bytes"),
        ((-5, 1), (1, 1), "activation_bytes"),
        ((1, 1), (-1, 1), "free_memory_bytes"),
        ((1, 1), (1,), "free_memory_bytes"),
        ((1, 1, 1), (1, 1, 1), "activation_bytes"),
    ],
)
def test_activation_memory_that_does_not_fit_is_refused(
    activation_bytes: tuple[int, ...], free_bytes: tuple[int, ...], field: str
) -> None:
    with pytest.raises(PlanningError) as error:
        ScheduleContext(
            profile=equal_profile(2),
            num_microbatches=2,
            activation_memory=ActivationMemory(
                activation_bytes=activation_bytes, free_bytes=free_bytes
            ),
        )
    assert error.value.field == field


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        ((), "every stage must run something"),
        (((B, 0), (F, 0), (F, 1), (B, 1)), "stage 1 runs backward of microbatch 0 before what it"),
        (((F, 0), (W, 0), (I, 0), (F, 1), (B, 1)), "runs backward_weight of microbatch 0 before"),
        (((F, 0), (I, 0), (W, 0), (I, 1), (F, 1), (W, 1)), "backward_input of microbatch 1 before"),
        (((R, 0), (F, 0), (B, 0), (F, 1), (B, 1)), "stage 1 runs recompute of microbatch 0 before"),
        (((F, 0), (B, 0), (R, 0), (F, 1), (B, 1)), "stage 1 runs backward of microbatch 0 before"),
        (((F, 0), (R, 0), (F, 1), (B, 1)), "one forward and one backward of microbatch 0"),
        (((F, 0, 1), (B, 0, 1)), "stage 1 runs chunk 1, but has 1; virtual_stages says"),
        (((F, 0, -1), (B, 0, -1)), "stage 1 runs chunk -1, but has 1"),
        (((F, 0), (F, 0), (B, 0)), "runs an instruction twice"),
        (((F, 0), (B, 0)), "does not run all 2 microbatches"),
        (((F, 0), (B, 0), (F, 1)), "one forward and one backward of microbatch 1"),
        (((F, 0), (B, 0), (B, 1)), "one forward and one backward of microbatch 1"),
        (((F, 0), (B, 0), (F, 1), (I, 1)), "one forward and one backward of microbatch 1"),
        (((F, 0), (B, 0), (F, 1), (B, 1), (W, 1)), "one forward and one backward of microbatch 1"),
        (((F, 0), (B, 0), (F, 2), (B, 2)), "microbatch 2, of 2 microbatches"),
        (((F, 0), (B, 0), (F, -1), (B, -1)), "microbatch -1, of 2 microbatches"),
    ],
)
def test_a_stage_that_runs_too_little_or_too_much_is_refused(
    stage: tuple[tuple[InstructionKind, int] | tuple[InstructionKind, int, int], ...], said: str
) -> None:
    whole = tuple(Instruction(kind, m) for m in (0, 1) for kind in (F, B))
    wrong = tuple(Instruction(*unit) for unit in stage)
    with pytest.raises(PlanningError, match=said) as error:
        Schedule(name="by hand", num_microbatches=2, stages=(whole, wrong))
    assert error.value.field == "schedule"


def test_a_recomputation_beside_forward_and_backward_is_welcome() -> None:
    stage = (Instruction(F, 0), Instruction(R, 0), Instruction(B, 0))
    assert Schedule(name="by hand", num_microbatches=1, stages=(stage,)).num_stages == 1


def test_a_schedule_without_stages_is_refused() -> None:
    with pytest.raises(PlanningError, match="every stage must run something"):
        Schedule(name="by hand", num_microbatches=1, stages=())


@pytest.mark.parametrize(
    ("virtual_stages", "said"),
    [
        (((0,),), "1 entries for 2 stages; give one per stage"),
        (((0,), (1,), (2,)), "3 entries for 2 stages; give one per stage"),
        (((0, 2), (1,)), "all stages must hold as many chunks"),
        (((0,), (0,)), "must hold each of 0 to 1 once, not 0, 0"),
        (((0,), (2,)), "must hold each of 0 to 1 once, not 0, 2"),
        (((-1,), (0,)), "must hold each of 0 to 1 once, not -1, 0"),
    ],
)
def test_chunks_that_make_no_model_are_refused(
    virtual_stages: tuple[tuple[int, ...], ...], said: str
) -> None:
    stage = (Instruction(F, 0), Instruction(B, 0))
    with pytest.raises(PlanningError, match=said) as error:
        Schedule(
            name="by hand",
            num_microbatches=1,
            stages=(stage, stage),
            virtual_stages=virtual_stages,
        )
    assert error.value.field == "virtual_stages"


def test_a_stage_that_lacks_one_chunk_is_refused() -> None:
    stage = (Instruction(F, 0, 1), Instruction(B, 0, 1))
    with pytest.raises(PlanningError, match="does not run all 1 microbatches of every chunk"):
        Schedule(name="by hand", num_microbatches=1, stages=(stage,), virtual_stages=((0, 1),))


@pytest.mark.parametrize("name", ["interleaved-1f1b", "looped-bfs", "interleaved-zb"])
def test_a_profile_that_does_not_tell_chunks_apart_cannot_be_interleaved(name: str) -> None:
    with pytest.raises(PlanningError, match=f"{name} runs at least 2 a stage") as e:
        make_schedule(name, context_of(timed_profile(2, {F: 1, I: 1, W: 1}), 2))
    assert e.value.field == "profile"


@pytest.mark.parametrize("name", ["zbv", "dualpipev"])
@pytest.mark.parametrize("num_chunks", [1, 3])
def test_a_v_has_two_chunks(name: str, num_chunks: int) -> None:
    profile = timed_profile(2, {F: 1, I: 1, W: 1}, num_chunks)
    with pytest.raises(PlanningError, match=f"{name} runs 2 a stage") as error:
        make_schedule(name, context_of(profile, 4))
    assert error.value.field == "profile"


@pytest.mark.parametrize(
    ("name", "num_chunks"), [("zb-h1", 1), ("interleaved-zb", 2), ("zbv", 2), ("dualpipev", 2)]
)
def test_a_backward_that_was_not_profiled_in_its_parts_cannot_be_split(
    name: str, num_chunks: int
) -> None:
    profile = timed_profile(2, {F: 1, B: 2}, num_chunks)
    where = "stage 0" + (", chunk 0" if num_chunks > 1 else "")
    with pytest.raises(PlanningError, match=f"has no backward_input of {where}; {name}") as error:
        make_schedule(name, context_of(profile, 4))
    assert error.value.field == "profile"


@pytest.mark.parametrize("name", ["torchgpipe", "early-recompute-1f1b"])
def test_a_recomputation_that_was_not_profiled_cannot_be_planned(name: str) -> None:
    with pytest.raises(PlanningError, match="has no recompute of stage 0, which the sched") as e:
        model_of(equal_profile(2), 2, name)
    assert e.value.field == "profile"


@pytest.mark.parametrize(
    ("name", "num_stages", "num_microbatches", "said"),
    [
        (
            "interleaved-1f1b",
            2,
            5,
            "5 make no whole groups for interleaving over 2 stages; 4 and 6 do",
        ),
        (
            "interleaved-zb",
            4,
            9,
            "9 make no whole groups for interleaving over 4 stages; 8 and 10 do",
        ),
        ("dualpipev", 3, 5, "must be at least 6 for dualpipev over 3 stages, not 5"),
    ],
)
def test_a_number_of_microbatches_that_a_schedule_cannot_have_is_refused(
    name: str, num_stages: int, num_microbatches: int, said: str
) -> None:
    profile = timed_profile(num_stages, {F: 1, B: 2, I: 1, W: 1}, 2)
    with pytest.raises(PlanningError, match=said) as error:
        make_schedule(name, context_of(profile, num_microbatches))
    assert error.value.field == "num_microbatches"


def test_two_versions_of_weights_need_a_microbatch_per_stage() -> None:
    with pytest.raises(PlanningError, match="must be at least 3, one per stage") as error:
        make_schedule("pipedream-2bw", context_of(equal_profile(3), 2))
    assert error.value.field == "num_microbatches"


@pytest.mark.parametrize(
    ("kinds", "num_chunks", "expected"),
    [
        ((F, B), 2, "F0 F1 F0.1 F1.1 B0.1 B1.1 B0 B1"),
        ((F, B, I, W), 2, "F0 F1 F0.1 F1.1 B0.1 B1.1 B0 B1"),
        ((F, I, W), 2, "F0 F1 F0.1 F1.1 I0.1 W0.1 I1.1 W1.1 I0 W0 I1 W1"),
    ],
)
def test_interleaving_runs_a_backward_as_it_was_profiled(
    kinds: tuple[InstructionKind, ...], num_chunks: int, expected: str
) -> None:
    """Two stages, two microbatches: stage 0 runs all its forwards before its first backward."""
    profile = timed_profile(2, dict.fromkeys(kinds, 1.0), num_chunks)
    schedule = make_schedule("interleaved-1f1b", context_of(profile, 2))
    assert written(schedule.stages[0]) == expected
    assert schedule.virtual_stages == ((0, 2), (1, 3))
