from __future__ import annotations

import pytest

from flyball_lab.demo.verdict import Measurement, measure, steps_of
from flyball_wire.messages import JobStep


def _step(
    number: int,
    *,
    versions: tuple[int | None, ...] = (None,),
    time_s: float = 1.0,
    energy_j: float | None = 10.0,
    num_ranks: int = 4,
) -> JobStep:
    return JobStep(
        step=number,
        num_ranks=num_ranks,
        plan_versions=versions,
        time_s=time_s,
        energy_j=energy_j,
        num_unplanned=1,
        num_overruns=2,
    )


def test_steps_of_a_phase_are_those_that_all_ranks_ran_on_exactly_its_version() -> None:
    steps = [
        _step(4, versions=(1,)),
        _step(0),
        _step(2, versions=(None, 1)),
        _step(1, num_ranks=3),
        _step(3, versions=(1,)),
        _step(5, versions=(2,)),
    ]

    assert [step.step for step in steps_of(steps, plan_version=1, num_ranks=4)] == [3, 4]
    assert [step.step for step in steps_of(steps, plan_version=None, num_ranks=4)] == [0]


def test_time_is_the_median_and_energy_the_mean_without_the_warm_up_step() -> None:
    steps = [
        _step(0, time_s=100.0, energy_j=1000.0),
        _step(1, time_s=1.0, energy_j=10.0),
        _step(2, time_s=9.0, energy_j=40.0),
        _step(3, time_s=2.0, energy_j=25.0),
    ]

    assert measure(steps) == Measurement(
        num_steps=3, iteration_time_s=2.0, energy_j=25.0, num_overruns=6, num_unplanned=3
    )


@pytest.mark.parametrize("steps", [[], [_step(0)]])
def test_a_phase_without_a_step_after_its_warm_up_is_not_measured(steps: list[JobStep]) -> None:
    assert measure(steps) is None


def test_a_phase_with_an_energy_that_could_not_be_read_is_not_measured() -> None:
    assert measure([_step(0), _step(1), _step(2, energy_j=None)]) is None
