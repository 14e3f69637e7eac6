"""The simulator on pipelines small enough to be worked out on paper."""

from __future__ import annotations

import pytest

from flyball_server.planning.model.pipeline_model import build_model
from flyball_server.planning.model.simulator import simulate
from flyball_server.planning.schedules._base import Instruction, Schedule
from flyball_server.planning.schedules.envpipe import extra_warmup_forwards

from .tiny_pipelines import B, F, I, W, context_of, equal_profile, model_of, node_of, profile_of

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


def test_a_split_backward_sends_its_gradient_before_the_weight_part() -> None:
    """Stage 1: F 0-1 after stage 0's F 0-1: 1-2, I 2-4, W 4-7; stage 0's I starts at 4."""
    parts = {
        F: [(2, 1.0, 1.0), (1, 9.0, 1.0)],
        I: [(2, 2.0, 1.0), (1, 9.0, 1.0)],
        W: [(2, 3.0, 1.0), (1, 9.0, 1.0)],
    }
    model = model_of(profile_of([parts, parts]), 1)
    simulation = simulate(model, model.baseline())
    assert simulation.start_s == (0, 4, 6, 1, 2, 4)
    assert simulation.iteration_time_s == 9


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


def test_energy_is_busy_energy_and_blocking_power_over_the_rest() -> None:
    """9 s, busy 6 s a stage and 160 J in all; 3 s of waiting at 5 W and at 7 W."""
    model = model_of(equal_profile(2), 2, blocking_power_w=(5.0, 7.0))
    assert simulate(model, model.baseline()).energy_j == 160 + 3 * 5 + 3 * 7


def test_a_slower_clock_inside_the_float_costs_no_time_and_saves_as_on_paper() -> None:
    """F1 of stage 0 at 1000 MHz: 8 J for 10 J, and 0.25 s less of waiting at 5 W."""
    model = model_of(equal_profile(2), 2)
    assignment = model.baseline()
    assignment[node_of(model, 0, F, 1)] = 1
    simulation = simulate(model, assignment)
    assert simulation.iteration_time_s == 9
    assert simulation.energy_j == 190 - 2 - 0.25 * 5


@pytest.mark.parametrize(("num_stages", "num_microbatches"), SHAPES)
def test_gpipe_holds_all_activations_at_its_peak(num_stages: int, num_microbatches: int) -> None:
    model = model_of(equal_profile(num_stages), num_microbatches, "gpipe")
    peaks = simulate(model, model.baseline()).peak_activations
    assert peaks == (num_microbatches,) * num_stages


@pytest.mark.parametrize(("num_stages", "num_microbatches"), SHAPES)
def test_one_f_one_b_holds_one_activation_less_on_each_later_stage(
    num_stages: int, num_microbatches: int
) -> None:
    model = model_of(equal_profile(num_stages), num_microbatches)
    peaks = simulate(model, model.baseline()).peak_activations
    assert peaks == tuple(min(num_stages - s, num_microbatches) for s in range(num_stages))


@pytest.mark.parametrize(("num_stages", "num_microbatches"), SHAPES)
def test_envpipe_holds_its_extra_forwards_more(num_stages: int, num_microbatches: int) -> None:
    profile = equal_profile(num_stages)
    model = model_of(profile, num_microbatches, "envpipe")
    extra = extra_warmup_forwards(context_of(profile, num_microbatches))
    peaks = simulate(model, model.baseline()).peak_activations
    assert peaks == tuple(
        min(num_stages - s + extra[s], num_microbatches) for s in range(num_stages)
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
