"""Parts of `flyball demo`: options, measurement, verdict, report."""

from __future__ import annotations

import argparse
import io
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("deepspeed", reason="needs the extra 'demo'")

import json

from rich.console import Console

from flyball_lab.demo import command, options
from flyball_lab.demo.lengths import LengthsResult, num_tokens, work_factor
from flyball_lab.demo.options import (
    DemoOptions,
    child_environment,
    demo_blocking_power_w,
    missing_prerequisites,
)
from flyball_lab.demo.report import print_report
from flyball_lab.demo.run_folder import ClocksOfStep, DemoFailedError
from flyball_lab.demo.verdict import (
    DemoResult,
    Measurement,
    failed_condition,
    measure,
    unjudged_time,
)
from flyball_wire.command.command import CommandError
from flyball_wire.measurements import JobStep
from flyball_wire.messages import JobRegistration, JobState, JobView, PlanView, RankView
from flyball_wire.read_models import TimelineOfPlan, TimelineRow
from flyball_wire.savings import BaselineOrigin, Estimate, VersionSavings

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
            "energy_j": 900.0,
            "baseline": {"iteration_time_s": 1.0, "energy_j": 1000.0},
            "stages": _STAGES,
        },
    )


def timeline(num_microbatches: int = 1) -> TimelineOfPlan:
    """Two stages that forward, wait 2 ms and go back; the second one is on the critical path."""
    rows = tuple(
        TimelineRow(
            stage=stage,
            dp_rank=0,
            blocking_power_w=80.0,
            kinds=("forward", "backward") * num_microbatches,
            microbatches=tuple(i // 2 for i in range(2 * num_microbatches)),
            chunks=(0,) * 2 * num_microbatches,
            clock_mhz=(1410, 990) * num_microbatches,
            start_s=tuple(0.1 * i + 0.002 * (i + 1) for i in range(2 * num_microbatches)),
            duration_s=(0.1,) * 2 * num_microbatches,
            energy_j=(1.0,) * 2 * num_microbatches,
            float_s=(0.0,) * 2 * num_microbatches,
        )
        for stage in range(2)
    )
    return TimelineOfPlan(
        iteration_time_s=1.0,
        energy_j=900.0,
        bubble_fraction=0.0,
        rows=rows,
        critical_path=tuple((1, i) for i in range(2 * num_microbatches)),
    )


def measurement(
    *,
    energy_j: float,
    iteration_time_s: float = 1.0,
    mean_time_s: float | None = None,
    num_unplanned: int = 0,
) -> Measurement:
    return Measurement(
        num_steps=NUM_STEPS,
        iteration_time_s=iteration_time_s,
        mean_time_s=iteration_time_s if mean_time_s is None else mean_time_s,
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
        "timeline": timeline(),
        "measured_baseline": measurement(energy_j=1010.0),
        "measured_plan": measurement(energy_j=910.0),
        "witnessed": witnessed_clocks(),
        "planned_steps": PLANNED_STEPS,
        "losses": [4.5, 4.0, 3.5],
    }
    return DemoResult(**(fields | spoiled))


# ------------------------------------------------------------------ options


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(exit_on_error=False)
    command.COMMAND.configure(made)
    return made


def test_all_steps_of_the_longest_demo_are_listed() -> None:
    assert parser().parse_args(["--steps", "1000"]).steps == 1000
    assert DemoOptions(num_steps=1000).max_steps <= command._ALL_STEPS


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing_prerequisites() == []
    monkeypatch.setattr(options, "find_spec", lambda name: None if name == "rich" else name)
    assert missing_prerequisites() == [
        "rich (of the extra 'demo': pip install '.[demo]' in a clone of Flyball)"
    ]
    with pytest.raises(CommandError, match=r"^missing: rich \(of the extra"):
        command.COMMAND.run(parser().parse_args([]))


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


def measured(steps: list[JobStep], version: int | None, num_steps: int) -> Measurement:
    return measure(steps, plan_version=version, num_ranks=4, num_steps=num_steps)


def test_steps_of_a_phase_are_those_that_all_ranks_ran_on_exactly_its_version() -> None:
    steps = [
        _step(4, versions=(1,), time_s=4.0),
        _step(0),
        _step(2, versions=(None, 1), time_s=2.0),
        _step(5, num_ranks=3, time_s=5.0),
        _step(3, versions=(1,), time_s=3.0),
        _step(6, versions=(2,), time_s=6.0),
    ]
    # The first is a warm-up.
    assert measured(steps, 1, 1).iteration_time_s == 4.0
    with pytest.raises(DemoFailedError, match="received 0 of 1 measured steps at the highest"):
        measured(steps, None, 1)


# ------------------------------------------------------------------ verdict

OPTIONS = DemoOptions(num_steps=NUM_STEPS)


def _failed(**spoiled: Any) -> str | None:  # noqa: ANN401 - any of the result's fields
    return failed_condition(demo_result(**spoiled), OPTIONS)


def test_a_result_within_three_percent_of_the_prediction_fails_no_condition() -> None:
    assert _failed() is None
    assert unjudged_time(demo_result(), OPTIONS) is None
    baseline = measurement(energy_j=1029.0, iteration_time_s=0.971)
    plan = measurement(energy_j=874.0, iteration_time_s=0.973)
    assert _failed(measured_baseline=baseline, measured_plan=plan) is None


@pytest.mark.parametrize(
    ("time_scale", "allowed_s"), [(0.5, 1.12), (1.0, 1.06), (1.5, 1.04), (2.0, 1.03), (100.0, 1.03)]
)
def test_what_the_computer_takes_of_its_own_may_be_a_larger_share_where_time_runs_faster(
    time_scale: float, allowed_s: float
) -> None:
    options = DemoOptions(num_steps=NUM_STEPS, time_scale=time_scale)
    for iteration_time_s, is_judged in ((allowed_s - 1e-6, True), (allowed_s + 1e-6, False)):
        result = demo_result(
            measured_baseline=measurement(energy_j=1010.0, iteration_time_s=iteration_time_s),
            measured_plan=measurement(energy_j=910.0, iteration_time_s=iteration_time_s),
        )
        assert (unjudged_time(result, options) is None) == is_judged
        assert failed_condition(result, options) is None


@pytest.mark.parametrize(
    ("baseline_s", "plan_s", "said"),
    [
        (1.034, 1.02, "the iteration time of the baseline is 3.4 % off the prediction"),
        (
            1.02,
            1.034,
            "the iteration time of the plan is 3.4 % off the prediction, more than the 3.0",
        ),
        (1.0, 1.021, "of the plan, relative to the baseline's, is 2.1 % off the prediction"),
        (1.025, 1.0, "of the plan, relative to the baseline's, is 2.4 % off the prediction"),
    ],
)
def test_times_of_a_busy_computer_are_not_judged_and_fail_nothing(
    baseline_s: float, plan_s: float, said: str
) -> None:
    result = demo_result(
        measured_baseline=measurement(energy_j=1010.0, iteration_time_s=baseline_s),
        measured_plan=measurement(energy_j=910.0, iteration_time_s=plan_s),
    )
    assert failed_condition(result, OPTIONS) is None
    unjudged = str(unjudged_time(result, OPTIONS))
    assert unjudged.startswith("this computer is too busy to judge time: ")
    assert said in unjudged


def test_energy_is_judged_without_what_ranks_take_that_wait_for_a_busy_computer() -> None:
    """Two ranks wait 0.5 s longer on the plan, in the mean: that is no energy of the plan."""
    waited_j = 0.5 * 2 * demo_blocking_power_w()
    assert waited_j > 50.0
    late = measurement(energy_j=910.0 + waited_j, iteration_time_s=1.4, mean_time_s=1.5)
    assert _failed(measured_plan=late) is None
    for energy_j in (910.0, 910.0 + 2 * waited_j):
        wrong = replace(late, energy_j=energy_j)
        assert "energy of the plan is" in str(_failed(measured_plan=wrong))


@pytest.mark.parametrize(
    ("spoiled", "said"),
    [
        (
            {"job": job_view(rank_view(0), rank_view(1, acknowledged_version=None))},
            "plan 2 was not acknowledged over HTTP by all ranks; not by [1]",
        ),
        ({"job": job_view(rank_view(0))}, "was not acknowledged"),
        (
            {"measured_plan": measurement(energy_j=910.0, num_unplanned=2)},
            "2 instructions ran outside the plan",
        ),
        ({"planned_steps": ()}, "no rank ran a step on the plan"),
        ({"measured_plan": measurement(energy_j=1010.0)}, "no energy was saved"),
        ({"measured_baseline": measurement(energy_j=1060.0)}, "energy of the baseline is +6.0 %"),
        ({"measured_plan": measurement(energy_j=954.0)}, "energy of the plan is +6.0 %"),
        (
            {"measured_baseline": measurement(energy_j=1010.0, iteration_time_s=0.969)},
            "iteration time of the baseline is -3.1 %",
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
    output = io.StringIO()
    print_report(Console(file=output, width=80), demo_result(), ["see http://127.0.0.1:1/docs"])
    report = output.getvalue()
    assert report.count("(emulated)") == 4
    assert "emulated A100" in report
    assert "-0.0" not in report
    baseline = next(line for line in report.splitlines() if "baseline" in line)
    for cell in ("1.000 (+0.0 %)", "1.000", "1010 (+1.0 %)", "1000", "3"):
        assert cell in baseline
    saved = next(line for line in report.splitlines() if "saved" in line)
    assert "9.9 %" in saved  # 1 - 910/1010, measured
    assert "10.0 %" in saved  # 1 - 900/1000, predicted
    assert "Loss 4.50 -> 3.50 in 3 steps" in " ".join(report.split())
    lines = report.splitlines()
    heading = next(i for i, line in enumerate(lines) if line.startswith("The plan: kind and"))
    assert lines[heading + 1 : heading + 3] == [
        "Stage 0 |  F0 1410 2.0   B0 990 2.0",
        "Stage 1 | [F0 1410 2.0] [B0 990 2.0]",
    ]
    assert lines[-1] == "see http://127.0.0.1:1/docs"


# ------------------------------------------------------------------ sequences that differ


def percent(mean: float, half: float = 1.0) -> Estimate:
    return Estimate(mean=mean, low=mean - half, high=mean + half, num_steps=8)


def lengths_result(saving: Estimate | None, slowdown: Estimate | None = None) -> LengthsResult:
    """Two steps of 900 J each that are predicted to save 100 J: 10 %."""
    savings = VersionSavings(
        version=3,
        baseline=BaselineOrigin.INTERLEAVED,
        saving_percent=saving,
        slowdown_percent=slowdown or percent(0.0),
        num_steps=8,
        policy="frontier",
        target="fastest",
        predicted_time_s=1.0,
        predicted_energy_j=1.0,
        predicted_saving_percent=1.0,
    )
    return LengthsResult(savings=savings, predicted_j=[(100.0, 900.0), (100.0, 900.0)])


def test_lengths_have_a_heavy_tail_and_as_much_work_as_the_profile() -> None:
    lengths = [num_tokens(number) for number in range(4000)]
    assert lengths == [num_tokens(number) for number in range(4000)]
    assert sum(map(work_factor, lengths)) / 4000 == pytest.approx(1.0, abs=0.03)
    assert (min(lengths), sorted(lengths)[2000], max(lengths)) == (2, 7, 24)


@pytest.mark.parametrize(
    ("saving", "said"),
    [
        (percent(10.0), None),
        (percent(13.9), None),
        (percent(14.1), "predicted 10.0 %, and at most 3.0 points beyond the interval"),
        (percent(5.9), "measured saving at equal work is 5.9 % [4.9, 6.9]"),
        (percent(-0.5), "saved no energy at equal work: -0.5 % [-1.5, 0.5]"),
        (None, "saved no energy at equal work: not measured"),
    ],
)
def test_a_saving_at_equal_work_is_judged_by_the_predicted_one(
    saving: Estimate | None, said: str | None
) -> None:
    failed = lengths_result(saving).failed_condition()
    assert (failed is None) is (said is None)
    assert (said or "") in (failed or "")


def test_time_beyond_that_of_the_highest_clocks_is_that_of_a_busy_computer() -> None:
    at_most, beyond = (lengths_result(percent(9.0), percent(mean)) for mean in (2.0, 2.1))
    assert at_most.unjudged_time(DemoOptions()) is None
    assert "too busy to judge time" in str(beyond.unjudged_time(DemoOptions()))


def test_what_is_measured_predicted_and_emulated_is_called_so() -> None:
    result = lengths_result(percent(9.0))
    lines = result.lines()
    row = next(line for line in lines if line.startswith("energy saved"))
    assert row.endswith(" 10.0 %")
    assert "9.0 % [8.0, 10.0]" in row
    for begin in ("Measured: 8 steps", "Predicted: mean of 2", "Emulated: "):
        assert any(line.startswith(begin) for line in lines)
    document = json.loads(json.dumps(result.document(failed=None, unjudged=None)))
    assert (document["emulated"], document["succeeded"]) == (True, True)
    assert document["predicted"] == {"saving_percent": pytest.approx(10.0)}
