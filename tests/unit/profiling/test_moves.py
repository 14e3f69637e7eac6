"""What `next_move` decides, on small emulated jobs."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from tests.unit.profiling.emulated_training import ProfilingRun, Truth, profile_online
from tests.unit.profiling.true_profiles import a100_truth, setup_of

from flyball_profiles.stage_profile import OperatingPoint, StageProfile
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.probe_plan import probe_document, probe_from_document
from flyball_server.profiling.moves import Finished, KeepWatching, Probe, Refused, next_move
from flyball_server.profiling.observations import ProbedVersion, ProbeSetup, StageStep

TRUTH = a100_truth(12, stages=(0, 7))
SETUP = setup_of(TRUTH)


@cache
def whole_run() -> ProfilingRun:
    return profile_online(SETUP, TRUTH, seed=1)


def steps_before(step: int) -> list[StageStep]:
    return [each for each in whole_run().observed if each.step < step]


def refused(
    setup: ProbeSetup = SETUP, truth: Truth = TRUTH, *, steps: int = 60, **changes: object
) -> str:
    """The problem, when all steps were observed with these changes."""
    run = profile_online(setup, truth, seed=1, observe=lambda step: replace(step, **changes))  # type: ignore[arg-type]
    assert isinstance(run.last, Refused)
    assert "\n" not in run.last.problem
    assert run.observed[-1].step <= steps
    return run.last.problem


def test_a_new_job_starts_at_the_highest_clocks() -> None:
    move = next_move(SETUP, [], [])
    assert isinstance(move, Probe)
    assert move.plan.num_steps == 1
    assert {mhz for stage in move.plan.cycle_mhz[0] for mhz in stage} == {1410}


def test_it_waits_for_a_first_step_and_then_for_enough_steps() -> None:
    (first, *_) = whole_run().versions
    assert next_move(SETUP, [replace(first, first_step=None)], []) == KeepWatching(num_steps=1)
    assert next_move(SETUP, [first], []) == KeepWatching(num_steps=12)
    assert next_move(SETUP, [first], steps_before(7)) == KeepWatching(num_steps=5)
    assert isinstance(next_move(SETUP, [first], steps_before(12)), Probe)


def test_the_same_observations_give_the_same_move_after_a_restart() -> None:
    versions = whole_run().versions
    stored = [
        replace(version, plan=probe_from_document(probe_document(version.plan)))
        for version in versions[:2]
    ]
    end = (versions[1].first_step or 0) + versions[1].plan.num_steps
    move = next_move(SETUP, stored, list(reversed(steps_before(end))))
    assert isinstance(move, Probe)
    assert move.plan == versions[2].plan


def test_it_walks_down_from_the_highest_clocks_a_few_levels_a_version() -> None:
    lowest = [
        min(mhz for row in version.plan.cycle_mhz for stage in row for mhz in stage)
        for version in whole_run().versions
    ]
    assert lowest[0] == 1410
    assert lowest[0] > lowest[1] > lowest[2]
    assert lowest[1] > 1100


def test_forward_and_backward_of_a_stage_are_slowed_in_different_steps() -> None:
    plan = whole_run().versions[1].plan
    both = 0
    for row in plan.cycle_mhz:
        for instructions, clocks_mhz in zip(plan.stages, row, strict=True):
            slowed = {
                instruction.kind
                for instruction, mhz in zip(instructions, clocks_mhz, strict=True)
                if mhz < 1410
            }
            both += len(slowed) == 2
    assert both == 0


def test_the_profile_has_probed_and_interpolated_points_with_errors() -> None:
    last = whole_run().last
    assert isinstance(last, Finished)
    points = last.result.points
    assert {point.num_probes > 0 for point in points} == {True, False}
    assert all(point.time_error_s > 0 and point.energy_error_j > 0 for point in points)
    assert last.result.profile(SETUP).num_stages == 2
    assert last.result.blocking_power_error_w is not None
    assert last.result.cost.extra_time_s > 0
    assert last.result.cost.extra_energy_j is not None


def test_steps_before_the_first_version_do_not_count() -> None:
    (first, *_) = whole_run().versions
    early = [replace(step, step=step.step - 12) for step in steps_before(12)]
    assert next_move(SETUP, [first], early) == KeepWatching(num_steps=12)


def test_an_energy_counter_that_never_moves_is_refused() -> None:
    problem = refused(energy_j=0.0)
    assert problem.startswith("stage 0: its energy counters have not moved in 1")


def test_an_energy_counter_that_cannot_be_read_is_refused() -> None:
    problem = refused(energy_j=None)
    assert problem == "stage 0: no step's energy could be read from its energy counters"


def test_steps_that_never_run_as_planned_are_refused() -> None:
    assert "as planned on every stage" in refused(is_clean=False)


def test_times_that_scatter_beyond_use_are_refused() -> None:
    run = whole_run()
    wild = [
        replace(
            step,
            instructions=tuple(
                replace(times, variance_s2=times.mean_s**2) for times in step.instructions
            ),
        )
        for step in steps_before(12)
    ]
    move = next_move(SETUP, run.versions[:1], wild)
    assert isinstance(move, Refused)
    assert move.problem.startswith("stage 0: ")
    assert "takes a time that scatters by 9" in move.problem


def test_noise_that_the_steps_do_not_average_out_is_refused_with_the_point() -> None:
    noisy = replace(TRUTH, noise=0.06)
    problem = refused(replace(SETUP, max_steps=60), noisy, steps=70)
    assert problem.startswith("stage ")
    assert " MHz is known within " in problem
    assert problem.endswith("the limit is 3.0 %") or problem.endswith("the limit is 2.0 %")


def test_a_cap_that_allows_nothing_is_refused() -> None:
    problem = refused(replace(SETUP, slowdown_cap=1e-4, max_steps=60), steps=70)
    assert "could not be run below 1410 MHz without more than 0.01 % of slowdown" in problem


def test_the_walk_ends_below_the_valley() -> None:
    # Each step down costs more energy from 1200 MHz on: nothing below is of use.
    valley = StageProfile(
        points={
            key: tuple(
                replace(point, energy_j=point.energy_j + 0.2 * max(0, 1200 - point.frequency_mhz))
                for point in points
            )
            for key, points in TRUTH.profile.points.items()
        },
        num_ranks_per_stage=TRUTH.profile.num_ranks_per_stage,
    )
    run = profile_online(SETUP, replace(TRUTH, profile=valley), seed=1)
    assert isinstance(run.last, Finished)
    lowest = min(point.frequency_mhz for point in run.last.result.points)
    assert 950 < lowest < 1150


def test_a_plateau_where_power_limits_the_gpu_does_not_end_the_walk() -> None:
    # Down to 1250 MHz times stay and energies rise a little; below, energies fall far.
    def on_plateau(points: tuple[OperatingPoint, ...]) -> tuple[OperatingPoint, ...]:
        return tuple(
            replace(
                point,
                time_s=points[0].time_s,
                energy_j=points[0].energy_j * (1 + (1410 - point.frequency_mhz) / 3000),
            )
            if point.frequency_mhz > 1250
            else point
            for point in points
        )

    plateau = StageProfile(
        points={key: on_plateau(points) for key, points in TRUTH.profile.points.items()},
        num_ranks_per_stage=TRUTH.profile.num_ranks_per_stage,
    )
    run = profile_online(SETUP, replace(TRUTH, profile=plateau), seed=1)
    for stage in range(2):
        of_stage = {
            mhz for each in run.versions for row in each.plan.cycle_mhz for mhz in row[stage]
        }
        assert min(of_stage) < 1000


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"clocks_mhz": ((1410, 1200),)}, "clocks_mhz"),
        ({"clocks_mhz": ((1410, 1200), (1200, 1410))}, "clocks_mhz"),
        ({"clocks_mhz": ((1410, 1200), (1410,))}, "clocks_mhz"),
        ({"num_ranks": (1, 0)}, "num_ranks"),
        ({"slowdown_cap": 0.0}, "slowdown_cap"),
        ({"slowdown_cap": float("nan")}, "slowdown_cap"),
        ({"blocking_power_w": (70.0, -1.0)}, "blocking_power_w"),
        ({"max_steps": 0}, "max_steps"),
    ],
)
def test_a_setup_that_does_not_fit_is_refused(changes: dict[str, object], field: str) -> None:
    with pytest.raises(PlanningError, match=f"^{field}: "):
        replace(SETUP, **changes)  # type: ignore[arg-type]


def test_a_version_without_a_first_step_is_never_probed_over() -> None:
    versions = whole_run().versions
    waiting: list[ProbedVersion] = [*versions[:1], replace(versions[1], first_step=None)]
    assert isinstance(next_move(SETUP, waiting, steps_before(40)), KeepWatching)
