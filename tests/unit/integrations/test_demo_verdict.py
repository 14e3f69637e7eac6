from __future__ import annotations

from typing import Any

import pytest
from tests.unit.integrations.demo_results import (
    NUM_STEPS,
    demo_result,
    job_view,
    measurement,
    rank_view,
    witnessed_clocks,
)

from flyball_lab.demo.verdict import error_percent, failed_condition


def _failed(**spoiled: Any) -> str | None:  # noqa: ANN401 - any of the result's fields
    return failed_condition(demo_result(**spoiled), num_steps=NUM_STEPS)


def test_a_result_in_which_everything_holds_fails_nothing() -> None:
    assert _failed() is None


def test_no_plan_fails() -> None:
    assert _failed(plan=None, measured_plan=None) == "no plan came from the planner"


@pytest.mark.parametrize("acknowledged", [None, 1])
def test_a_rank_that_did_not_acknowledge_this_plan_fails(acknowledged: int | None) -> None:
    job = job_view(rank_view(0), rank_view(1, acknowledged_version=acknowledged))

    assert _failed(job=job) == ("plan 2 was not acknowledged over HTTP by all ranks; not by [1]")


def test_a_rank_that_never_registered_fails() -> None:
    assert "acknowledged" in str(_failed(job=job_view(rank_view(0))))


def test_a_phase_that_was_not_measured_fails() -> None:
    assert "no measured steps" in str(_failed(measured_plan=None))


def test_too_few_measured_steps_fail() -> None:
    few = measurement(energy_j=91.0, num_steps=NUM_STEPS - 1)

    assert _failed(measured_plan=few) == ("the planner received 2 of 3 measured steps on the plan")


def test_instructions_outside_the_plan_fail() -> None:
    surprised = measurement(energy_j=91.0, num_unplanned=2)

    assert _failed(measured_plan=surprised) == "2 instructions ran outside the plan"


def test_a_planned_clock_that_the_device_did_not_see_fails() -> None:
    witnessed = witnessed_clocks()
    witnessed[0][7] = (("forward", 1410), ("backward", 1410))

    assert _failed(witnessed=witnessed) == (
        "the device of rank 0 saw the planned clock in 1 of 2 instructions of step 7"
    )


def test_an_instruction_that_the_device_did_not_see_fails() -> None:
    witnessed = witnessed_clocks()
    witnessed[1][5] = (("forward", 1410),)

    assert "1 of 2 instructions of step 5" in str(_failed(witnessed=witnessed))


def test_a_plan_that_no_rank_ran_fails() -> None:
    assert _failed(planned_steps=()) == "no rank ran a step on the plan"


@pytest.mark.parametrize("plan_energy_j", [101.0, 102.0])
def test_energy_that_was_not_saved_fails(plan_energy_j: float) -> None:
    assert "no energy was saved" in str(_failed(measured_plan=measurement(energy_j=plan_energy_j)))


@pytest.mark.parametrize(
    ("spoiled", "named"),
    [
        ({"measured_baseline": measurement(energy_j=103.1)}, "energy of the baseline is +3.1 %"),
        ({"measured_baseline": measurement(energy_j=96.9)}, "energy of the baseline is -3.1 %"),
        ({"measured_plan": measurement(energy_j=92.8)}, "energy of the plan is +3.1 %"),
        (
            {"measured_baseline": measurement(energy_j=101.0, iteration_time_s=1.031)},
            "iteration time of the baseline is +3.1 %",
        ),
        (
            {"measured_plan": measurement(energy_j=91.0, iteration_time_s=0.969)},
            "iteration time of the plan is -3.1 %",
        ),
    ],
)
def test_more_than_three_percent_from_the_prediction_fails(
    spoiled: dict[str, Any], named: str
) -> None:
    failed = str(_failed(**spoiled))

    assert named in failed
    assert "\n" not in failed


def test_just_within_three_percent_holds() -> None:
    assert (
        _failed(
            measured_baseline=measurement(energy_j=102.9, iteration_time_s=1.029),
            measured_plan=measurement(energy_j=87.4, iteration_time_s=0.971),
        )
        is None
    )


def test_error_percent_is_how_far_above_the_prediction() -> None:
    assert error_percent(103.0, 100.0) == pytest.approx(3.0)
    assert error_percent(50.0, 100.0) == pytest.approx(-50.0)
