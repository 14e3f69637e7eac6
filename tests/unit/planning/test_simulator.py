"""The simulator on pipelines small enough to be worked out on paper."""

from __future__ import annotations

import pytest

from flyball_server.planning.model.pipeline_model import build_model
from flyball_server.planning.model.simulator import simulate
from flyball_server.planning.schedules._base import Instruction, Schedule
from flyball_server.planning.schedules.envpipe import extra_warmup_forwards

from .tiny_pipelines import B, F, I, W, context_of, equal_profile, model_of, profile_of

SHAPES = [(1, 1), (1, 5), (2, 1), (2, 2), (3, 2), (4, 1), (4, 3), (4, 4), (4, 12), (8, 5), (8, 32)]


def test_two_stages_and_two_microbatches_run_as_on_paper() -> None:
    """Stage 0: F0 F1 B0 B1, stage 1: F0 B0 F1 B1; forward 1 s, backward 2 s."""
    model = model_of(equal_profile(2), 2)
    simulation = simulate(model, model.baseline())
    assert simulation.start_s == (0, 1, 4, 7, 1, 2, 4, 5)
    assert simulation.finish_s == (1, 2, 6, 9, 2, 4, 5, 7)
    assert simulation.wait_s == (0, 0, 2, 1, 1, 0, 0, 0)
    assert simulation.float_s == (0, 2, 1, 0, 0, 0, 0, 0)
    assert simulation.critical_path == (0, 4, 5, 6, 7, 3)
    assert simulation.iteration_time_s == 9
    assert simulation.bubble_fraction == pytest.approx(1 / 3, abs=1e-15)


def test_a_slow_middle_stage_sets_the_pace() -> None:
    """Stage 1 takes 4 + 4 s for each of 3 microbatches, and waits 1 s for the first, F0.

    Stage 2 adds 1 + 1 s between the first F and B of stage 1; stage 0 adds its last B.
    Stage 1: F0 1-5, F1 5-9, B0 9-13, F2 13-17, B1 17-21, B2 21-25; stage 0: B2 25-26.
    """
    fast = {F: [(2, 1.0, 1.0), (1, 9.0, 1.0)], B: [(2, 1.0, 1.0), (1, 9.0, 1.0)]}
    slow = {F: [(2, 4.0, 1.0), (1, 9.0, 1.0)], B: [(2, 4.0, 1.0), (1, 9.0, 1.0)]}
    model = model_of(profile_of([fast, slow, fast]), 3)
    simulation = simulate(model, model.baseline())
    assert simulation.iteration_time_s == 26
    on_path = [
        (model.dag.stage[n], *model.dag.instruction[n][:2]) for n in simulation.critical_path
    ]
    assert on_path == [
        (0, F, 0), (1, F, 0), (1, F, 1), (1, B, 0), (1, F, 2), (1, B, 1), (1, B, 2), (0, B, 2),
    ]  # fmt: skip


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("num_stages", "num_microbatches"), SHAPES)
def test_bubble_fraction_of_equal_stages_is_the_textbook_formula(
    schedule: str, num_stages: int, num_microbatches: int
) -> None:
    model = model_of(equal_profile(num_stages), num_microbatches, schedule)
    simulation = simulate(model, model.baseline())
    slots = num_microbatches + num_stages - 1
    assert simulation.iteration_time_s == 3 * slots
    assert simulation.bubble_fraction == pytest.approx((num_stages - 1) / slots, abs=1e-15)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "envpipe"])
@pytest.mark.parametrize(("num_stages", "num_microbatches"), SHAPES)
def test_a_stage_holds_the_activations_of_its_forwards_in_front(
    schedule: str, num_stages: int, num_microbatches: int
) -> None:
    """GPipe: all; 1F1B: one less on each later stage; EnvPipe: its extra forwards more."""
    profile = equal_profile(num_stages)
    model = model_of(profile, num_microbatches, schedule)
    extra = extra_warmup_forwards(context_of(profile, num_microbatches))
    more = {"gpipe": (num_microbatches,) * num_stages, "1f1b": (0,) * num_stages}
    assert simulate(model, model.baseline()).peak_activations == tuple(
        min(num_stages - stage + extra_forwards, num_microbatches)
        for stage, extra_forwards in enumerate(more.get(schedule, extra))
    )


def test_a_split_backward_holds_its_activation_until_the_weight_part() -> None:
    """F0 I0 F1 W0 I1 W1: microbatch 0 is still held when F1 starts."""
    units = [(F, 0), (I, 0), (F, 1), (W, 0), (I, 1), (W, 1)]
    schedule = Schedule(
        name="weights later",
        num_microbatches=2,
        stages=(tuple(Instruction(*unit) for unit in units),),
    )
    parts = {kind: [(2, 1.0, 1.0), (1, 2.0, 1.0)] for kind in (F, I, W)}
    model = build_model(profile_of([parts]), schedule, (5.0,))
    assert simulate(model, model.baseline()).peak_activations == (2,)


def test_instructions_of_nanoseconds_have_a_true_critical_path() -> None:
    """The two-stage pipeline again, a billion times faster: no wait is taken for rounding."""
    stage = {F: [(2, 1e-9, 1.0), (1, 9e-9, 1.0)], B: [(2, 2e-9, 1.0), (1, 9e-9, 1.0)]}
    model = model_of(profile_of([stage, stage]), 2)
    assert simulate(model, model.baseline()).critical_path == (0, 4, 5, 6, 7, 3)
