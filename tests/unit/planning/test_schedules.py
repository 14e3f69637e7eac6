"""The orders of GPipe, 1F1B and EnvPipe: what each stage runs, and when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball_profiles.stage_profile import InstructionKind, StageProfile
from flyball_server.planning.dag import build_dag
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.schedules import SCHEDULES, make_schedule
from flyball_server.planning.schedules._base import (
    MAX_NUM_MICROBATCHES,
    ActivationMemory,
    Instruction,
    Schedule,
    ScheduleContext,
)
from flyball_server.planning.schedules.envpipe import extra_warmup_forwards

from .tiny_pipelines import B, F, I, R, W, context_of, equal_profile, profile_of, profiles


def written(stage: tuple[Instruction, ...]) -> str:
    letters = {F: "F", B: "B", I: "I", W: "W"}
    return " ".join(f"{letters[item.kind]}{item.microbatch}" for item in stage)


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


@given(profiles(), st.integers(1, 6), st.sampled_from(sorted(SCHEDULES)))
def test_every_schedule_runs_everything_once_in_order_and_without_deadlock(
    profile: StageProfile, num_microbatches: int, name: str
) -> None:
    schedule = make_schedule(name, context_of(profile, num_microbatches))
    build_dag(schedule)  # raises where the order deadlocks
    assert schedule.name == name
    assert schedule.num_stages == profile.num_stages
    for stage, instructions in enumerate(schedule.stages):
        whole = (stage, B) in profile.points
        kinds = (F, B) if whole else (F, I, W)
        for kind in kinds:
            assert [item.microbatch for item in instructions if item.kind is kind] == list(
                range(num_microbatches)
            )
        assert len(instructions) == len(kinds) * num_microbatches
        for microbatch in range(num_microbatches):
            forward = instructions.index(Instruction(F, microbatch))
            backward = instructions.index(Instruction(kinds[1], microbatch))
            assert forward < backward


@given(profiles(), st.integers(1, 8), st.sampled_from(sorted(SCHEDULES)))
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
    stage: tuple[tuple[InstructionKind, int], ...], said: str
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
