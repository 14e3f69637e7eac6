"""Orders that compute activations again: torchgpipe's and Merak's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball_profiles.stage_profile import InstructionKind
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.model.pipeline_model import PipelineModel, build_model
from flyball_server.planning.model.simulator import simulate
from flyball_server.planning.schedules import make_schedule
from flyball_server.planning.schedules._base import ScheduleContext

from .tiny_pipelines import TICK_S, B, F, R, equal_profile, model_of, node_of, timed_profile

TIMES_S = {F: 1.0, R: 1.0, B: 2.0}


def torchgpipe(num_stages: int, num_microbatches: int, checkpoint: str | None) -> PipelineModel:
    profile = timed_profile(num_stages, TIMES_S)
    context = ScheduleContext(
        profile=profile, num_microbatches=num_microbatches, checkpoint=checkpoint
    )
    return build_model(profile, make_schedule("torchgpipe", context), (5.0,))


def written(model: PipelineModel, stage: int) -> str:
    letters = {F: "F", B: "B", R: "R"}
    units = model.schedule.stages[stage]
    return " ".join(f"{letters[unit.kind]}{unit.microbatch}" for unit in units)


@pytest.mark.parametrize(
    ("checkpoint", "expected"),
    [
        ("never", "F0 F1 F2 B2 B1 B0"),
        ("except_last", "F0 F1 F2 B2 R1 B1 R0 B0"),
        (None, "F0 F1 F2 B2 R1 B1 R0 B0"),
        ("always", "F0 F1 F2 R2 B2 R1 B1 R0 B0"),
    ],
)
def test_torchgpipe_runs_backwards_from_the_last_and_computes_again_what_it_did_not_keep(
    checkpoint: str | None, expected: str
) -> None:
    model = torchgpipe(2, 3, checkpoint)
    assert [written(model, stage) for stage in range(2)] == [expected] * 2


@given(st.integers(1, 5), st.integers(1, 6), st.sampled_from(["never", "except_last", "always"]))
def test_torchgpipe_takes_a_forward_more_for_each_microbatch_computed_again(
    num_stages: int, num_microbatches: int, checkpoint: str
) -> None:
    """Equal stages of 1 s forward and recompute and 2 s backward.

    Forwards go down in M + K-1 s. The last stage is then busy for R recomputations and M
    backwards; above it backwards of 2 s follow each other with a recomputation between, so the
    last gradient goes up through K-1 more backwards. (Recomputing waits for no gradient: above
    the last stage the first recomputation hides behind the wait.)
    """
    simulation = simulate(
        model := torchgpipe(num_stages, num_microbatches, checkpoint), model.baseline()
    )
    recomputed = {
        "never": 0,
        "except_last": num_microbatches - 1,
        "always": num_microbatches,
    }[checkpoint]
    assert simulation.iteration_time_s == (
        num_microbatches + num_stages - 1 + recomputed + 2 * (num_microbatches + num_stages - 1)
    )


def test_a_backward_with_its_recomputation_is_longer_for_some_microbatches_than_for_others() -> (
    None
):
    model = torchgpipe(1, 3, "except_last")
    simulation = simulate(model, model.baseline())
    ends_s = [simulation.finish_s[node_of(model, 0, B, m)] for m in (2, 1, 0)]
    assert ends_s == [5, 8, 11]  # 3 forwards, then 2 s; then 3 s twice


def test_torchgpipes_recomputation_is_ready_when_the_gradient_comes() -> None:
    """Stage 0 has run its forwards at 2 s, recomputes until 3 s, gets its gradient at 6 s."""
    model = torchgpipe(2, 2, "always")
    simulation = simulate(model, model.baseline())
    recompute, backward = (node_of(model, 0, kind, 1) for kind in (R, B))
    assert simulation.start_s[recompute] == 2
    assert simulation.start_s[backward] == 6
    assert simulation.wait_s[recompute] == 0


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "early-recompute-1f1b"])
def test_a_checkpoint_mode_is_torchgpipes_alone(schedule: str) -> None:
    context = ScheduleContext(
        profile=timed_profile(2, TIMES_S), num_microbatches=2, checkpoint="always"
    )
    with pytest.raises(PlanningError, match=f"is for schedule torchgpipe, not {schedule}") as e:
        make_schedule(schedule, context)
    assert e.value.field == "checkpoint"


def test_an_unknown_checkpoint_mode_is_refused_with_those_known() -> None:
    with pytest.raises(PlanningError, match="unknown 'often'; known: except_last, always") as e:
        torchgpipe(2, 2, "often")
    assert e.value.field == "checkpoint"


def test_early_recomputation_stands_before_each_backward_but_on_the_last_stage() -> None:
    model = model_of(timed_profile(3, TIMES_S), 4, "early-recompute-1f1b")
    assert [written(model, stage) for stage in range(3)] == [
        "F0 F1 F2 R0 B0 F3 R1 B1 R2 B2 R3 B3",
        "F0 F1 R0 B0 F2 R1 B1 F3 R2 B2 R3 B3",
        "F0 B0 F1 B1 F2 B2 F3 B3",
    ]


def test_the_last_stage_needs_no_profile_of_a_recomputation_that_it_never_runs() -> None:
    profile = timed_profile(2, TIMES_S)
    without = {key: points for key, points in profile.points.items() if key != (1, R)}
    model = model_of(type(profile)(points=without, num_ranks_per_stage=(1, 1)), 2)
    assert model.dag.num_nodes == 8
    shorter = type(profile)(points=without, num_ranks_per_stage=(1, 1))
    assert model_of(shorter, 2, "early-recompute-1f1b").dag.num_nodes == 10


@given(
    st.integers(2, 4),
    st.integers(1, 6),
    st.lists(st.integers(1, 20), min_size=3, max_size=3),
)
def test_early_recomputation_never_waits_for_the_gradient(
    num_stages: int, num_microbatches: int, ticks: list[int]
) -> None:
    """Each starts when whatever stands before it on its stage has ended."""
    forward_s, again_s, backward_s = (n * TICK_S for n in ticks)
    profile = timed_profile(num_stages, {F: forward_s, R: again_s, B: backward_s})
    model = model_of(profile, num_microbatches, "early-recompute-1f1b")
    simulation = simulate(model, model.baseline())
    waits_s = [
        wait_s
        for wait_s, unit in zip(simulation.wait_s, model.dag.instruction, strict=True)
        if unit.kind is R
    ]
    assert waits_s == [0.0] * num_microbatches * (num_stages - 1)


def test_early_recomputation_hides_in_the_wait_for_the_first_gradient() -> None:
    """One microbatch, K stages: forwards K s and backwards 2 K s as if nothing ran again."""
    for num_stages in (2, 3, 5):
        model = model_of(timed_profile(num_stages, TIMES_S), 1, "early-recompute-1f1b")
        assert simulate(model, model.baseline()).iteration_time_s == 3 * num_stages


def test_the_profile_of_a_recomputation_does_not_change_an_order_without_one() -> None:
    kinds: set[InstructionKind] = set()
    for stage in model_of(timed_profile(2, TIMES_S), 2).schedule.stages:
        kinds |= {unit.kind for unit in stage}
    assert kinds == {F, B}
    assert model_of(equal_profile(2), 2).schedule.num_microbatches == 2
