"""Modules of the dashboard in a browser: figures, the table of jobs, series of steps."""

from __future__ import annotations

from typing import Any

import pytest
from tests.browser.modules import Modules
from tests.browser.views import (
    PREDICTED,
    estimate,
    headline,
    job,
    measured,
    plan,
    stage_of_step,
    step,
)

MINUS = "\u2212"
NONE = "\u2013"


# ------------------------------------------------------------------ figures


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("seconds(2.8241)", "2.824 s"),
        ("seconds(0.09996)", "99.96 ms"),
        ("seconds(1234.56)", "1234.6 s"),
        ("seconds(null)", NONE),
        ("joules(5867.25)", "5.867 kJ"),
        ("joules(999.96)", "1.000 kJ"),  # not 1000.0 J
        ("joules(0)", "0.000 J"),
        ("joules(-2500000)", f"{MINUS}2.500 MJ"),
        ("percent(0.04, {signed: true})", "0.0 %"),  # no +0.0
        ("percent(-0.04, {signed: true})", "0.0 %"),
        ("percent(5.04, {signed: true})", "+5.0 %"),
        ("percent(-21.54, {signed: true})", f"{MINUS}21.5 %"),
        ("megahertz(1049.7)", "1050 MHz"),
        ("counted(1, 'step')", "1 step"),
        ("counted(1234567, 'step')", "1 234 567 steps"),
        ("targetText('deadline:2.8837280000000014')", "deadline 2.88373 s"),
        ("targetText('slowdown:0.055')", "slowdown 5.5 %"),
        ("targetText('slowdown:5.5%')", "slowdown 5.5 %"),
        ("targetText('power:1250000')", "power 1250000 W"),
        ("targetText('later:1')", "later:1"),
        ("targetText('power:')", "power:"),
        ("interval({low: 1500, high: 2500}, m.joules)", "1.500 to 2.500 kJ"),
        ("interval({low: 900, high: 1100}, m.joules)", "900.0 J to 1.100 kJ"),
        ("interval({low: null, high: null}, m.joules)", ""),
        ("clockTime(new Date(2026, 0, 5, 9, 30, 7), new Date(2026, 0, 5, 23))", "09:30:07"),
        (
            "clockTime(new Date(2026, 0, 5, 9, 30, 7), new Date(2026, 0, 6, 1))",
            "2026-01-05 09:30:07",
        ),
    ],
)
def test_figures_have_units_and_significant_digits(modules: Modules, call: str, text: str) -> None:
    assert modules.run("format", f"m.{call}") == text


def test_figures_of_a_hidden_page_are_stale_without_a_banner(modules: Modules) -> None:
    body = """
        const connection = m.createConnection();
        return [true, false, true].map((connected) => {
            connection.set(connected, "");
            return [
                document.querySelector("#connection").textContent,
                document.documentElement.dataset.figures,
                document.querySelector("#banner").hidden,
            ];
        });
    """
    live = ["live", "live", True]
    assert modules.run("connection", body) == [live, ["not live", "stale", True], live]


# ------------------------------------------------------------------ the table of jobs


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("", ["gpt-a", "gpt-b", "llama"]),
        (" GPT  ended ", ["gpt-b"]),
        ("emulated", ["gpt-a"]),
        ("real slowdown", ["llama"]),
        ("slowdown 5 %", ["llama"]),  # as it is shown
        ("slowdown:0.05", ["llama"]),
        ("none", []),
    ],
)
def test_a_search_finds_jobs_with_all_its_words(
    modules: Modules, words: str, names: list[str]
) -> None:
    jobs = [
        job("gpt-a", emulated=True),
        job("gpt-b", state="ended"),
        job("llama", target="slowdown:0.05"),
    ]
    code = "m.searched(jobs, words).map((job) => job.job_id)"
    assert modules.run("jobs_page", code, jobs=jobs, words=words) == names


@pytest.mark.parametrize(
    ("column", "falling", "names"),
    [
        ("time", False, ["job-10", "job-9", "none"]),
        ("time", True, ["job-9", "job-10", "none"]),
        ("energy", True, ["job-10", "job-9", "none"]),
        ("saving", False, ["job-9", "job-10", "none"]),
        ("name", False, ["job-9", "job-10", "none"]),  # as numbers
        ("name", True, ["none", "job-10", "job-9"]),
    ],
)
def test_jobs_are_sorted_by_a_column(
    modules: Modules, column: str, falling: bool, names: list[str]
) -> None:
    jobs = [
        job("none"),
        job("job-10", measured=measured(2.0, 50.0), saving_percent=estimate(5)),
        job("job-9", measured=measured(3.0, None), saving_percent=estimate(-1)),
    ]
    code = "m.sorted(jobs, { column, falling }).map((job) => job.job_id)"
    assert modules.run("jobs_page", code, jobs=jobs, column=column, falling=falling) == names


def test_unsorted_jobs_on_a_plan_come_first_whatever_their_heartbeat(modules: Modules) -> None:
    jobs = [
        job("over", state="ended", created_at="2026-01-09T00:00:00+00:00"),
        job("unplanned", active_version=None, created_at="2026-01-08T00:00:00+00:00"),
        job("old", last_seen_at="2026-01-09T00:00:00+00:00"),
        job("new", created_at="2026-01-06T00:00:00+00:00"),
        job("silent", num_present=0),
    ]
    code = "m.sorted(jobs, { column: null, falling: false }).map((job) => job.job_id)"
    names = ["new", "old", "unplanned", "over", "silent"]
    assert modules.run("jobs_page", code, jobs=jobs) == names


def test_savings_have_the_costs_and_emissions_that_the_planner_has_factors_for(
    modules: Modules,
) -> None:
    code = """
      const element = document.createElement("div");
      m.showTotals(element, jobs);
      const shown = [...element.querySelectorAll(".total:nth-child(n + 3) .figure")];
      return shown.map((each) => each.textContent);
    """
    saved = {"saved_j": estimate(7.2e6, 3.6e6, 10.8e6), "saved_of_j": 36e6}
    unpriced = job("a", **saved)
    assert modules.run("jobs_page", code, jobs=[unpriced]) == ["2.000 kWh", NONE]
    factors = {"price_per_kwh": 0.3, "currency": "CHF", "co2_g_per_kwh": 600.0}
    priced = [job(name, factors=factors, **saved) for name in "ab"]
    figures = modules.run("jobs_page", code, jobs=priced)
    assert figures == ["4.000 kWh", "1.20 CHF", "2.400 kg CO₂", NONE]


def test_totals_never_add_emulated_jobs_to_real_ones(modules: Modules) -> None:
    jobs = [
        job(  # 2 kW
            "a",
            measured=measured(2.0, 4000.0),
            saved_j=estimate(100, 90, 110),
            headline=headline(),
        ),
        job("b", measured=measured(2.0, None), saved_j=estimate(50, 40, 60)),
        job("c", num_present=0, measured=measured(2.0, 9000.0), saved_j=estimate(7, 5, 9)),
        job("d", emulated=True, measured=measured(1.0, 500.0), saved_j=estimate(1000)),
    ]
    real, emulated = modules.run("jobs_page", "m.totalsOf(jobs)", jobs=jobs)
    assert real == {
        **{"emulated": False, "num_jobs": 3, "num_running": 2, "num_present": 16},
        **{"num_expected": 16, "num_saving": 3, "num_slower": 1, "num_powered": 1, "power_w": 2000},
        **{"saved_j": 157, "saved_low_j": 135, "saved_high_j": 179, "saved_of_j": 0},
        "factors": job()["factors"],
    }
    assert (emulated["saved_j"], emulated["saved_low_j"], emulated["power_w"]) == (1000, None, 500)
    assert modules.run("jobs_page", "m.totalsOf([])") == []


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "runs v1"),
        ({"newest_version": 2}, "v2 waits for its ranks"),
        ({"num_registered": 5, "num_present": 5}, "3 of 8 ranks to come"),
        ({"num_registered": 0, "num_present": 0}, "no rank has registered"),
        ({"num_present": 0}, "last heartbeat 5 min ago"),
        ({"state": "ended"}, "last heartbeat 5 min ago"),
        ({"newest_version": None, "active_version": None}, ""),
    ],
)
def test_a_row_has_its_jobs_progress(
    modules: Modules, changes: dict[str, object], text: str
) -> None:
    code = "m.progressText(job, new Date('2026-01-05T09:45:30Z'))"
    assert modules.run("job_words", code, job=job(**changes)) == text


@pytest.mark.parametrize(
    ("changes", "badge", "note", "has_sign"),
    [
        ({}, "\u25cfplanned", "runs v1", False),
        (
            {"condition": {"name": "slow GPU", "action": "rank 2 is slow"}},
            "\u25bcslow GPU",
            "rank 2 is slow",
            True,
        ),
        (
            {"condition": {"name": "steps differ", "action": None}},
            "\u2248steps differ",
            "runs v1",
            False,
        ),
        (
            {"state": "planning-failed", "problem": "no plan"},
            "\u25b2planning-failed",
            "no plan",
            True,
        ),
    ],
)
def test_a_row_says_what_hides_behind_its_state_and_has_a_sign_where_someone_has_to_act(
    modules: Modules, changes: dict[str, object], badge: str, note: str, has_sign: bool
) -> None:
    code = """
      const cell = m.jobCells(job, new Date())[1];
      return [cell.querySelector(".badge").textContent, cell.querySelector(".note").textContent,
              cell.querySelector(".to-do") !== null];
    """
    assert modules.run("jobs_row", code, job=job(**changes)) == [badge, note, has_sign]


@pytest.mark.parametrize(
    ("changes", "marked"),
    [
        # Job, state, GPUs; time, energy, saved; the gap, whose column says that it is predicted.
        ({}, [False] * 3 + [True] * 3 + [False]),
        (
            {
                "measured": measured(2.0, 600.0),
                "saving_percent": estimate(10),
                "headline": headline(),
            },
            [False] * 7,
        ),
    ],
)
def test_a_row_marks_predicted_figures(
    modules: Modules, changes: dict[str, object], marked: list[bool]
) -> None:
    code = """m.jobCells(job, new Date()).map((cell) =>
        cell.querySelector(".figure.predicted") !== null)"""
    shown = {"headline": headline(is_measured=False), "predicted": PREDICTED, **changes}
    assert modules.run("jobs_row", code, job=job(**shown)) == marked


@pytest.mark.parametrize("tone", ["gain", "trade", "loss", "none"])
def test_a_saving_is_never_shown_without_its_time_and_caveats(modules: Modules, tone: str) -> None:
    code = """
      const cell = m.jobCells(job, new Date())[5];
      const figure = cell.querySelector(".figure");
      return [figure.className, cell.querySelector(".bar-value").parentNode.classList[1],
              cell.querySelector(".note[title]").title, cell.textContent];
    """
    shown = job(
        measured=measured(2.0, 600.0),
        saving_percent=estimate(10),
        headline=headline(tone=tone, caveats=["Of another time.", "Of other GPUs."]),
    )
    *classes, caveats, text = modules.run("jobs_row", code, job=shown)
    assert classes == [f"figure tone-{tone}", f"tone-{tone}"]
    assert caveats == "Of another time. Of other GPUs."
    assert "at 2.0 % more time" in text


COMPARED = {
    "measured_baseline_time_s": estimate(2.0),
    "measured_baseline_energy_j": estimate(800.0),
    "slowdown_percent": estimate(0.5, 0.4, 0.6),
    "saving_percent": estimate(25.0, 24.0, 26.0),
}


@pytest.mark.parametrize(
    ("clocks", "note"),
    [
        ("plan", ""),
        ("highest", "at the highest clocks"),
        ("default", "at default clocks"),
        ("profiling", "while profiling"),
    ],
)
def test_only_a_figure_of_the_plan_has_a_change(modules: Modules, clocks: str, note: str) -> None:
    code = "m.jobCells(job, new Date()).slice(3, 5).map((cell) => cell.textContent)"
    shown = job(measured=measured(2.0, 600.0, clocks), **COMPARED)
    for text in modules.run("jobs_row", code, job=shown):
        assert "baseline" in text
        assert note in text
        assert ("%" in text) == (clocks == "plan")


def test_the_changes_of_a_job_are_those_of_its_plan_and_more_than_noise(modules: Modules) -> None:
    code = "m.figureRows(job).map((row) => row.measured)"
    on_plan = job(measured=measured(2.0, 600.0), **COMPARED)
    assert modules.run("figures_panel", code, job=on_plan) == [
        ["2.000 s", "2.000 s", "+0.5 %"],
        ["600.0 J", "800.0 J", f"{MINUS}25.0 %"],
        ["300.0 W", "400.0 W", f"{MINUS}25.0 %"],
    ]
    at_highest = job(measured=measured(2.0, 800.0, "highest"), **COMPARED)
    unsure = {"slowdown_percent": estimate(0.5, -0.1, 1.1), "saving_percent": estimate(25.0)}
    is_noise = job(measured=measured(2.0, 600.0), **{**COMPARED, **unsure})
    for shown in (at_highest, is_noise):
        for row in modules.run("figures_panel", code, job=shown):
            assert row[2] == NONE


FIGURES = """
  const element = document.createElement("div");
  m.createFiguresPanel(element).update({ overview: job });
  return [...element.querySelectorAll(".hero")].map((hero) => hero.textContent);
"""


def test_a_reserve_is_shown_with_its_cost_or_as_not_chosen(modules: Modules) -> None:
    choice = {
        **{"jitter_percent": 1.0, "time_error_percent": 0.0, "cost_points": 0.35},
        **{"slowdown_percent": 0.32, "slowdown_without_percent": 0.52},
    }
    for given, text in (
        (choice, "costs 0.35 points of saving; the mean iteration is about 0.32 % longer than"),
        (None, "not chosen for this plan"),
    ):
        reserve = {"share": 0.0039, "choice": given}
        predicted = {**PREDICTED, "reserve": reserve}
        shown = modules.run("figures_panel", FIGURES, job=job(predicted=predicted))
        assert shown[-1].startswith(f"Reserve for noise0.39 %{text}")


def test_the_gap_names_late_clock_changes_where_they_cost_energy(modules: Modules) -> None:
    gap = {"gap_percent": 2.0, "lower_bound_j": 500.0}
    late = ", of it 1.00 % for late clock changes"
    for late_changes_j, text in ((5.0, late), (0.001, ""), (0.0, "")):
        predicted = {**PREDICTED, **gap, "late_changes_j": late_changes_j}
        shown = modules.run("figures_panel", FIGURES, job=job(predicted=predicted))
        assert any(
            hero.endswith(f"needs at most 2.00 % more energy than any plan as fast{text}")
            for hero in shown
        )


def test_times_beside_the_instructions_are_shown_with_their_origin(modules: Modules) -> None:
    code = """
      const element = document.createElement("section");
      m.createFiguresPanel(element).update({ overview: job });
      const line = element.querySelector(".delays");
      return [line.hidden, line.textContent];
    """
    text = "a tail of 60 ms (given), transfers of 8 ms; measured in 12 steps of v1 where not given"
    shown = modules.run("figures_panel", code, job=job(delays={"text": text}))
    assert shown == [False, f"Besides the instructions, the plan counts {text}."]
    assert modules.run("figures_panel", code, job=job())[0] is True


def test_the_newest_steps_own_plan_is_shown(modules: Modules) -> None:
    code = """
      const element = document.createElement("section");
      m.createFiguresPanel(element).update({ overview: job });
      const line = element.querySelector(".own-plan");
      return [line.hidden, line.textContent];
    """
    text = "step 7: 18 % slack, 1065 to 1410 MHz"
    shown = modules.run("figures_panel", code, job=job(own_plan={"text": text}))
    assert shown == [False, f"Newest step's own plan: {text}."]
    assert modules.run("figures_panel", code, job=job())[0] is True


# ------------------------------------------------------------------ series of steps


def series(
    modules: Modules, steps: list[dict[str, Any]], *history: dict[str, Any]
) -> dict[str, Any]:
    """Return the columns of a job of two stages and ranks."""
    code = "m.stepSeries(steps, history, { num_stages: 2, num_ranks: 2 })"
    found: dict[str, Any] = modules.run("step_series", code, steps=steps, history=history)
    return found


def test_no_line_goes_over_missing_steps(modules: Modules) -> None:
    found = series(modules, [step(1), step(2), step(6)])
    assert found["step"] == [1, 2, 4, 6]
    assert found["time_s"] == [2, 2, None, 2]
    assert found["energy_j"] == [600, 600, None, 600]
    assert found["power_w"][0] == [100, 100, None, 100]
    assert found["version"] == [1, 1, 1, 1]
    # None is missing where a job measures each tenth.
    assert series(modules, [step(10), step(20), step(30)])["step"] == [10, 20, 30]


def test_energy_and_power_are_those_of_whole_readings(modules: Modules) -> None:
    one_stage = step(2, num_ranks=1, energy_j=200.0, stages=[stage_of_step(1, 400.0)])
    unread = step(3, energy_j=None, stages=[stage_of_step(0, None), stage_of_step(1, 400.0)])
    found = series(modules, [step(1), one_stage, unread])
    assert found["time_s"] == [2, 2, 2]
    assert found["energy_j"] == [600, None, None]
    assert found["power_w"] == [[100, None, None], [200, 200, 200]]


def test_each_step_has_the_prediction_and_clocks_of_its_version(modules: Modules) -> None:
    def clocks(*clocks_mhz: float | None) -> dict[str, Any]:
        return {
            "stages": [
                stage_of_step(stage, 200.0, sm_clock_mhz=mhz)
                for stage, mhz in enumerate(clocks_mhz)
            ]
        }

    mixed = step(3, plan_versions=[1, 2], **clocks(None, 1380.0))
    steps = [step(1, None, **clocks(1410.0, None)), step(2, **clocks(1200.5, None)), mixed]
    found = series(modules, [*steps, step(4, 9)], plan(1, 2))
    assert found["version"] == [None, 1, "mixed", 9]
    assert found["predicted_time_s"] == [None, 1.9, None, None]
    assert found["predicted_energy_j"] == [None, 590, None, None]
    assert found["clock_mhz"] == [[1410.0, 1200.5, None, None], [None, None, 1380.0, None]]
    assert found["planned_mhz"] == [[None, 1000.0, None, None], [None, 1410.0, None, None]]
    runs = modules.run("step_series", "m.versionRuns(series)", series=found)
    assert [each["version"] for each in runs] == [None, 1, "mixed", 9]


def test_clocks_have_the_colours_of_the_timeline_though_no_stage_runs_at_the_highest(
    modules: Modules,
) -> None:
    slowed = plan(1, 0, stage_clock_mhz=[1296.0])
    code = "const scale = m.scaleOf([plan]); return [scale.slowest_mhz, scale.fastest_mhz];"
    assert modules.run("step_marks", code, plan=slowed) == [1296, 1410]
    unprofiled = {**slowed, "highest_mhz": None}
    assert modules.run("step_marks", code, plan=unprofiled) == [1296, 1296]


def test_a_comparisons_steps_at_the_highest_clocks_are_not_its_plans(modules: Modules) -> None:
    compared = plan(2, 5, kind="comparison", baseline_cycle=[False, True, True, False])
    history = [plan(1, 0), compared]
    known = [step(4), *(step(number, 2) for number in range(5, 13)), step(13, 2, num_ranks=1)]
    code = """
        const answers = [{ versions: [] }, history, known];
        return m.sideOf(job, version, answers).steps.map((each) => each.step);
    """
    args = {"job": job(num_ranks=2), "history": history, "known": known}
    assert modules.run("compare_page", code, version=2, **args) == [5, 8, 9, 12]
    assert modules.run("compare_page", code, version=1, **args) == [4]
    found = series(modules, known[:5], *history)
    baseline = compared["predicted"]["baseline_iteration_time_s"]
    assert found["predicted_time_s"] == [1.9, 1.9, baseline, baseline, 1.9]
    assert found["planned_mhz"][0] == [1000.0, 1000.0, 1410, 1410, 1000.0]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (estimate(-0.01, -12.4, 12.3), f"0.0 % ({MINUS}12.4 to 12.3 %)"),
        (estimate(15.2), "15.2 %"),
        (None, NONE),
    ],
)
def test_a_compared_change_has_its_interval(
    modules: Modules, change: dict[str, Any] | None, text: str
) -> None:
    assert modules.run("compare_page", "m.changeText(change)", change=change) == text


@pytest.mark.parametrize(
    ("version", "clock_mhz", "text"),
    [
        (1, 1380.4, "stage 1: 100.0 W, planned 1410 MHz on average, measured 1380 MHz"),
        (1, None, "stage 1: 100.0 W, planned 1410 MHz on average"),
        (None, 1380.4, "stage 1: 100.0 W, measured 1380 MHz"),
        (None, None, "stage 1: 100.0 W"),
    ],
)
def test_a_stage_is_described_with_the_known_clocks(
    modules: Modules, version: int | None, clock_mhz: float | None, text: str
) -> None:
    shown = step(0, version, stages=[stage_of_step(1, 200.0, sm_clock_mhz=clock_mhz)])
    state = {"history": [plan(1, 0)], "overview": job()}
    code = "m.stageText(step, 1, state)"
    assert modules.run("live_charts", code, step=shown, state=state) == text


def test_held_back_clocks_are_counted_by_reason(modules: Modules) -> None:
    capped = stage_of_step(1, 400.0, num_clock_misses=6, num_power_capped=3, num_thermally_capped=1)
    steps = [step(1), step(2, stages=[stage_of_step(0, 200.0), capped])]
    reasons = {"power": 3, "thermal": 1, "other": 2}
    assert series(modules, steps)["heldBack"] == [
        {"power": 0, "thermal": 0, "other": 0, "stages": []},
        {**reasons, "stages": [{"stage": 1, **reasons}]},
    ]
    state = {"history": [], "overview": job(num_ranks=2)}
    text = modules.run("live_charts", "m.stepText(step, state)", step=steps[1], state=state)
    assert "stage 1 held back 3\u00d7 by power, 1\u00d7 by heat, 2\u00d7 cause unknown" in text


def test_a_step_on_an_unknown_plan_is_called_so(modules: Modules) -> None:
    steps = [step(1), step(2, plan_versions=[1], unknown_versions=[7])]
    found = series(modules, steps, plan(1, 1))
    assert (found["version"], found["predicted_time_s"]) == ([1, "unknown"], [1.9, None])
    state = {"history": [plan(1, 1)], "overview": job(num_ranks=2)}
    text = modules.run("live_charts", "m.stepText(step, state)", step=steps[1], state=state)
    assert "2: v1 and unknown v7, not counted" in text


@pytest.mark.parametrize(
    ("changes", "first_steps"),
    [
        ({}, [30]),
        ({"is_planned": False}, []),
        ({"from_time": "2026-01-05T12:00:00+00:00"}, []),
    ],
)
def test_a_straggler_is_planned_for_from_the_first_version_after_it(
    modules: Modules, changes: dict[str, object], first_steps: list[int]
) -> None:
    history = [
        plan(1, 10, "2026-01-05T09:00:00Z"),
        plan(2, None, "2026-01-05T10:00:01Z"),  # overtaken
        plan(3, 30, "2026-01-05T10:00:02Z"),
        plan(4, 40, "2026-01-05T11:00:00Z"),
    ]
    straggler = {"rank": 5, "from_time": "2026-01-05T10:00:00+00:00", "is_planned": True}
    code = "m.plannedStragglers([straggler], history).map((each) => each.first_step)"
    found = modules.run("step_series", code, straggler={**straggler, **changes}, history=history)
    assert found == first_steps


def test_charts_follow_the_newest_steps_until_a_range_is_chosen(modules: Modules) -> None:
    body = """
        const window = new m.ChartWindow();
        const steps = Array.from({ length: 600 }, (_, step) => ({ step }));
        return [
            () => 0,
            () => window.choose(99.5, 200.4, steps),
            () => steps.push({ step: 600 }),
            () => window.zoom(0.5, 150, steps),
            () => window.zoom(1e-9, 150, steps),
            () => window.choose(300.1, 302.9, steps),
            () => steps.splice(0, 300),
            () => window.choose(400, 500, steps),
            () => window.followNewest(100),
        ].map((change) => {
            change();
            const shown = window.shown(steps);
            return [shown[0].step, shown.at(-1).step];
        });
    """
    assert modules.run("live_charts", body) == [
        [100, 599],
        [100, 200],
        [100, 200],  # newer ones do not push it on
        [125, 175],
        [125, 175],  # no closer than to some steps
        [125, 175],
        [300, 600],  # the chosen steps have been dropped
        [400, 500],
        [501, 600],
    ]
