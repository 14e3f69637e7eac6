"""Parts of `flyball demo`: options, measurement, verdict, report."""

from __future__ import annotations

import argparse
import io
import json
from typing import Any

import pytest

pytest.importorskip("deepspeed", reason="needs the extra 'demo'")

from rich.console import Console

from flyball_lab.demo import command, options
from flyball_lab.demo.options import (
    MAX_MICROBATCHES,
    MAX_STEPS,
    DemoOptions,
    child_environment,
    missing_prerequisites,
)
from flyball_lab.demo.report import print_report, result_document
from flyball_lab.demo.run_folder import ClocksOfStep
from flyball_lab.demo.verdict import (
    DemoResult,
    Measurement,
    energy_tolerance_percent,
    failed_condition,
    measure,
    steps_of,
)
from flyball_wire.command import CommandError
from flyball_wire.messages import (
    JobRegistration,
    JobState,
    JobStep,
    JobView,
    PlanView,
    RankView,
)

NUM_STEPS = 3
VERSION = 2
PLANNED_STEPS = (5, 6, 7, 8)
NUM_STEPS_IN_ALL = 9
_STAGES = [
    [["forward", 0, 1410], ["backward", 0, 1200]],
    [["forward", 0, 1410], ["backward", 0, 1410]],
]


def rank_view(rank: int, *, acknowledged_version: int | None = VERSION) -> RankView:
    return RankView(
        rank=rank,
        stage=rank,
        host="here",
        gpu_name="emulated A100",
        gpu_uuid=f"EMULATED-{rank}",
        emulated=True,
        client_version="0",
        acknowledged_version=acknowledged_version,
        current_step=5,
    )


def job_view(*ranks: RankView) -> JobView:
    return JobView(
        job_id="demo",
        state=JobState.PLANNED,
        registration=JobRegistration(num_stages=2, num_microbatches=1),
        ranks=ranks,
        newest_version=VERSION,
        active_version=VERSION,
        problem=None,
        created_at="2025-01-01T00:00:00Z",
    )


def plan_view() -> PlanView:
    return PlanView(
        job_id="demo",
        version=VERSION,
        first_step=PLANNED_STEPS[0],
        created_at="2025-01-01T00:00:00Z",
        plan={
            "iteration_time_s": 1.0,
            "energy_j": 90.0,
            "baseline": {"iteration_time_s": 1.0, "energy_j": 100.0},
            "stages": _STAGES,
        },
    )


def measurement(
    *,
    energy_j: float,
    iteration_time_s: float = 1.01,
    num_steps: int = NUM_STEPS,
    num_unplanned: int = 0,
) -> Measurement:
    return Measurement(
        num_steps=num_steps,
        iteration_time_s=iteration_time_s,
        energy_j=energy_j,
        num_overruns=0,
        num_unplanned=num_unplanned,
    )


def witnessed_clocks() -> dict[int, list[ClocksOfStep]]:
    """Return both devices at the highest clock until the plan's first step, then as planned."""
    highest: ClocksOfStep = (("forward", 1410), ("backward", 1410))
    planned: ClocksOfStep = (("forward", 1410), ("backward", 1200))
    num_before = PLANNED_STEPS[0]
    return {
        0: [highest] * num_before + [planned] * (NUM_STEPS_IN_ALL - num_before),
        1: [highest] * NUM_STEPS_IN_ALL,
    }


def demo_result(**spoiled: Any) -> DemoResult:  # noqa: ANN401 - any of the result's fields
    fields: dict[str, Any] = {
        "job": job_view(rank_view(0), rank_view(1)),
        "plan": plan_view(),
        "measured_baseline": measurement(energy_j=101.0),
        "measured_plan": measurement(energy_j=91.0),
        "witnessed": witnessed_clocks(),
        "planned_steps": PLANNED_STEPS,
        "losses": [4.5, 4.0, 3.5],
    }
    return DemoResult(**(fields | spoiled))


# ------------------------------------------------------------------ options


@pytest.mark.parametrize(
    ("option", "values", "rule"),
    [
        ("num_steps", (1, MAX_STEPS + 1), "--steps must be from 2 to 1000, not"),
        ("num_microbatches", (0, MAX_MICROBATCHES + 1), "--microbatches must be from 1 to 256"),
        ("time_scale", (0.49, 100.1, float("nan"), float("inf")), "--time-scale must be from 0.5"),
    ],
)
def test_a_size_out_of_bounds_is_refused_by_its_option(
    option: str, values: tuple[float, ...], rule: str
) -> None:
    for value in values:
        with pytest.raises(ValueError, match=rule):
            DemoOptions(**{option: value})  # type: ignore[arg-type] # of either kind


def test_the_bounds_themselves_are_accepted_and_all_steps_of_the_longest_demo_are_listed() -> None:
    DemoOptions(num_steps=2, num_microbatches=1, time_scale=0.5)
    longest = DemoOptions(num_steps=MAX_STEPS, num_microbatches=MAX_MICROBATCHES, time_scale=100)
    assert longest.max_steps <= command._ALL_STEPS


def test_a_bad_size_ends_the_command_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(*_: object, **__: object) -> int:
        raise AssertionError("the demo was started")

    monkeypatch.setattr(command, "missing_prerequisites", list)
    monkeypatch.setattr(command, "_run_in", start)
    parser = argparse.ArgumentParser()
    command.COMMAND.configure(parser)
    with pytest.raises(CommandError, match=r"^--steps must be from"):
        command.COMMAND.run(parser.parse_args(["--steps", "1001"]))


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing_prerequisites() == []
    monkeypatch.setattr(options, "find_spec", lambda name: None if name == "rich" else name)
    assert missing_prerequisites() == [
        "rich (of the extra 'demo': pip install '.[demo]' in a clone of Flyball)"
    ]
    parser = argparse.ArgumentParser()
    command.COMMAND.configure(parser)
    with pytest.raises(CommandError, match=r"^missing: rich \(of the extra"):
        command.COMMAND.run(parser.parse_args([]))


def test_variables_of_another_planner_or_launcher_are_not_passed_on() -> None:
    others = {"FLYBALL_TOKEN": "secret", "FLYBALL_DATABASE": "x", "RANK": "3", "LOCAL_SIZE": "4"}
    environment = child_environment({**others, "A": "b"})
    assert not others.keys() & environment.keys()
    assert (environment["A"], environment["DS_ACCELERATOR"]) == ("b", "cpu")


# ------------------------------------------------------------------ measurement


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
    figures = [(100.0, 1000.0), (1.0, 10.0), (9.0, 40.0), (2.0, 25.0)]
    steps = [_step(n, time_s=time_s, energy_j=j) for n, (time_s, j) in enumerate(figures)]
    assert measure(steps) == Measurement(
        num_steps=3, iteration_time_s=2.0, energy_j=25.0, num_overruns=6, num_unplanned=3
    )


@pytest.mark.parametrize("steps", [[], [_step(0)], [_step(0), _step(1), _step(2, energy_j=None)]])
def test_a_phase_without_measured_steps_after_its_warm_up_is_not_measured(
    steps: list[JobStep],
) -> None:
    assert measure(steps) is None


# ------------------------------------------------------------------ verdict


def _failed(**spoiled: Any) -> str | None:  # noqa: ANN401 - any of the result's fields
    return failed_condition(demo_result(**spoiled), DemoOptions(num_steps=NUM_STEPS))


def test_a_result_within_three_percent_of_the_prediction_fails_no_condition() -> None:
    assert _failed() is None
    baseline = measurement(energy_j=102.9, iteration_time_s=0.971)
    plan = measurement(energy_j=87.4, iteration_time_s=0.973)
    assert _failed(measured_baseline=baseline, measured_plan=plan) is None


@pytest.mark.parametrize(
    ("time_scale", "allowed_s"), [(0.5, 1.12), (1.0, 1.06), (1.5, 1.04), (2.0, 1.03), (100.0, 1.03)]
)
def test_what_the_computer_takes_of_its_own_may_be_a_larger_share_where_time_runs_faster(
    time_scale: float, allowed_s: float
) -> None:
    options = DemoOptions(num_steps=NUM_STEPS, time_scale=time_scale)
    for iteration_time_s, fails in ((allowed_s - 1e-6, False), (allowed_s + 1e-6, True)):
        result = demo_result(
            measured_baseline=measurement(energy_j=101.0, iteration_time_s=iteration_time_s),
            measured_plan=measurement(energy_j=91.0, iteration_time_s=iteration_time_s),
        )
        assert (failed_condition(result, options) is not None) == fails


def test_the_energy_may_be_off_by_what_the_counters_hide() -> None:
    # 100 ms / sqrt(6 x 6) are 16.7 ms; three of them in 10 s are 0.5 %.
    measured = measurement(energy_j=1.0, num_steps=10, iteration_time_s=1.0)
    assert energy_tolerance_percent(measured, num_ranks=6) == pytest.approx(3.5)


@pytest.mark.parametrize(
    ("spoiled", "said"),
    [
        ({"plan": None, "measured_plan": None}, "no plan came from the planner"),
        (
            {"job": job_view(rank_view(0), rank_view(1, acknowledged_version=None))},
            "plan 2 was not acknowledged over HTTP by all ranks; not by [1]",
        ),
        ({"job": job_view(rank_view(0))}, "was not acknowledged"),
        ({"measured_plan": None}, "no measured steps"),
        (
            {"measured_plan": measurement(energy_j=91.0, num_steps=NUM_STEPS - 1)},
            "the planner received 2 of 3 measured steps on the plan",
        ),
        (
            {"measured_plan": measurement(energy_j=91.0, num_unplanned=2)},
            "2 instructions ran outside the plan",
        ),
        ({"planned_steps": ()}, "no rank ran a step on the plan"),
        ({"measured_plan": measurement(energy_j=101.0)}, "no energy was saved"),
        ({"measured_baseline": measurement(energy_j=106.0)}, "energy of the baseline is +6.0 %"),
        ({"measured_plan": measurement(energy_j=95.4)}, "energy of the plan is +6.0 %"),
        (
            {"measured_baseline": measurement(energy_j=101.0, iteration_time_s=1.031)},
            "iteration time of the baseline is +3.1 %",
        ),
        (
            {
                "measured_baseline": measurement(energy_j=101.0, iteration_time_s=1.0),
                "measured_plan": measurement(energy_j=91.0, iteration_time_s=1.021),
            },
            "iteration time of the plan, relative to the baseline's, is +2.1 %",
        ),
    ],
)
def test_a_condition_that_does_not_hold_is_one_line(spoiled: dict[str, Any], said: str) -> None:
    failed = str(_failed(**spoiled))
    assert said in failed
    assert "\n" not in failed


@pytest.mark.parametrize(
    ("rank", "step", "clocks"),
    [(0, 7, (("forward", 1410), ("backward", 1410))), (1, 5, (("forward", 1410),))],
)
def test_a_clock_or_an_instruction_that_the_device_did_not_witness_fails(
    rank: int, step: int, clocks: tuple[tuple[str, int], ...]
) -> None:
    witnessed = witnessed_clocks()
    witnessed[rank][step] = clocks
    assert _failed(witnessed=witnessed) == (
        f"the device of rank {rank} was asked for the planned clock at 1 of 2 instructions"
        f" of step {step}"
    )


# ------------------------------------------------------------------ report


def test_the_report_has_measured_and_predicted_figures_side_by_side_and_calls_them_emulated() -> (
    None
):
    result = demo_result()
    assert result.phases is not None
    output = io.StringIO()
    print_report(
        Console(file=output, width=80),
        result.phases,
        result.losses,
        plan_lines=["Stage 0 | [F0 1410 0.0]  B0 1200 1.5"],
        further_lines=["see http://127.0.0.1:1/docs"],
    )
    report = output.getvalue()
    assert report.count("(emulated)") == 4
    assert "emulated A100" in report
    assert "-0.0" not in report
    baseline = next(line for line in report.splitlines() if "baseline" in line)
    for cell in ("1.010 (+1.0 %)", "1.000", "101 (+1.0 %)", "100", "3"):
        assert cell in baseline
    saved = next(line for line in report.splitlines() if "saved" in line)
    assert "9.9 %" in saved  # 1 - 91/101, measured
    assert "10.0 %" in saved  # 1 - 90/100, predicted
    assert "Loss 4.50 -> 3.50 in 3 steps" in " ".join(report.split())
    assert "Stage 0 | [F0 1410 0.0]  B0 1200 1.5" in report.splitlines()
    assert "see http://127.0.0.1:1/docs" in report.splitlines()


def test_the_document_is_json_that_is_called_emulated_with_nulls_for_what_is_missing() -> None:
    document = json.loads(json.dumps(result_document(demo_result(), failed=None)))
    assert (document["emulated"], document["succeeded"]) == (True, True)
    assert document["measured"]["plan"]["energy_j"] == 91.0
    assert document["predicted"]["baseline"] == {"iteration_time_s": 1.0, "energy_j": 100.0}
    without_plan = demo_result(plan=None, measured_plan=None)
    document = result_document(without_plan, failed="no plan came")
    assert (document["succeeded"], document["failed_condition"]) == (False, "no plan came")
    assert document["plan_version"] is None
    assert document["predicted"] == {"baseline": None, "plan": None}
    assert document["measured"]["plan"] is None
