"""What the dashboard's views are made of, in a browser: figures, jobs' order and rows, steps."""

from __future__ import annotations

import pytest
from tests.browser.modules import Modules, modules
from tests.browser.views import estimate, job, measured, plan, stage_of_step, step

__all__ = ["modules"]

NARROW = "\u202f"  # between a figure and its unit
MINUS = "\u2212"
NONE = "\u2013"


# ------------------------------------------------------------------ figures


@pytest.mark.parametrize(
    ("call", "shown"),
    [
        ("seconds(2.8241)", "2.824 s"),
        ("seconds(0.1)", "0.100 s"),
        ("seconds(0.09996)", "99.96 ms"),
        ("seconds(1234.56)", "1234.6 s"),
        ("seconds(null)", NONE),
        ("joules(5867.25)", "5.867 kJ"),
        ("joules(999.96)", "1.000 kJ"),  # not 1000.0 J
        ("joules(16454)", "16.45 kJ"),
        ("joules(0)", "0.000 J"),
        ("joules(-2500000)", f"{MINUS}2.500 MJ"),
        ("watts(1948.3)", "1.948 kW"),
        ("watts(251.26)", "251.3 W"),
        ("percent(20.06)", "20.1 %"),
        ("percent(0.04, {signed: true})", "0.0 %"),  # no +0.0
        ("percent(-0.04, {signed: true})", "0.0 %"),
        ("percent(5.04, {signed: true})", "+5.0 %"),
        ("percent(-21.54, {signed: true})", f"{MINUS}21.5 %"),
        ("percent(0.123, {digits: 2})", "0.12 %"),
        ("megahertz(1049.7)", "1050 MHz"),
        ("count(1234567)", "1 234 567"),
        ("counted(1, 'step')", "1 step"),
        ("counted(1000, 'step')", f"1{NARROW}000 steps"),
        ("percentAbove(3, 2)", "50"),
        ("targetText('fastest')", "fastest"),
        ("targetText('deadline:2.8837280000000014')", "deadline 2.88373 s"),
        ("targetText('slowdown:0.055')", "slowdown 5.5 %"),
        ("targetText('power:1250000')", "power 1250000 W"),
        ("targetText('later:1')", "later:1"),
        ("targetText('power:')", "power:"),
    ],
)
def test_figures_are_shown_with_units_and_the_digits_that_count(
    modules: Modules, call: str, shown: str
) -> None:
    found = modules.run("format", f"return String(m.{call});")
    assert found.replace(NARROW, " ") == shown.replace(NARROW, " ")


def test_an_interval_names_its_unit_once_where_both_ends_have_the_same(modules: Modules) -> None:
    body = "return m.interval(estimate, m.joules);"
    same = modules.run("format", body, estimate=estimate(2e3, 1500.0, 2500.0))
    assert same == f"1.500 to 2.500{NARROW}kJ"
    other = modules.run("format", body, estimate=estimate(1e3, 900.0, 1100.0))
    assert other == f"900.0{NARROW}J to 1.100{NARROW}kJ"
    assert modules.run("format", body, estimate=estimate(1e3)) == ""


def test_times_of_other_days_have_their_date(modules: Modules) -> None:
    body = "return m.clockTime(new Date(2026, 0, 5, 9, 30, 7), new Date(2026, 0, day, 23, 0));"
    assert modules.run("format", body, day=5) == "09:30:07"
    assert modules.run("format", body, day=6) == "2026-01-05 09:30:07"


@pytest.mark.parametrize(
    ("ticks", "shown"),
    [
        ("jouleTicks([6000, 6500, 7000])", ["6.0 kJ", "6.5 kJ", "7.0 kJ"]),
        ("jouleTicks([990000, 1000000])", ["0.99 MJ", "1.00 MJ"]),
        ("jouleTicks([4500, 4750, 5000])", ["4.50 kJ", "4.75 kJ", "5.00 kJ"]),  # none is rounded
        ("secondTicks([0.5, 1])", ["0.5 s", "1.0 s"]),
        ("secondTicks([0.02, 0.04])", ["20 ms", "40 ms"]),
        ("wattTicks([200, 225, 250])", ["200 W", "225 W", "250 W"]),
        ("wattTicks([0])", ["0 W"]),
    ],
)
def test_an_axis_has_one_prefix_and_tells_its_ticks_apart(
    modules: Modules, ticks: str, shown: list[str]
) -> None:
    found = modules.run("axis_ticks", f"return m.{ticks};")
    assert [tick.replace(NARROW, " ") for tick in found] == shown


def test_figures_that_nobody_follows_are_old_without_a_word_of_the_planner(
    modules: Modules,
) -> None:
    body = """
        const connection = m.createConnection();
        const shown = () => [
            document.querySelector("#connection").textContent,
            document.documentElement.dataset.figures,
            document.querySelector("#banner").hidden,
        ];
        const found = [];
        for (const connected of [true, false, true]) {
            connection.set(connected, "");
            found.push(shown());
        }
        return found;
    """
    live = ["live", "live", True]
    assert modules.run("connection", body) == [live, ["not live", "stale", True], live]


# ------------------------------------------------------------------ the table of jobs


def test_a_search_finds_jobs_that_have_all_of_its_words(modules: Modules) -> None:
    jobs = [
        job("gpt-a", emulated=True),
        job("gpt-b", state="ended"),
        job("llama", target="slowdown:0.05"),
    ]
    body = "return m.searched(jobs, words).map((job) => job.job_id);"
    cases = {
        "": ["gpt-a", "gpt-b", "llama"],
        "GPT": ["gpt-a", "gpt-b"],
        " gpt  ended ": ["gpt-b"],
        "emulated": ["gpt-a"],
        "real slowdown": ["llama"],
        "slowdown 5 %": ["llama"],  # as it is shown
        "slowdown:0.05": ["llama"],
        "none": [],
    }
    for words, names in cases.items():
        assert modules.run("jobs_order", body, jobs=jobs, words=words) == names, words


def test_jobs_stand_by_the_column_and_those_without_a_value_last(modules: Modules) -> None:
    jobs = [
        job("none"),
        job("job-10", measured=measured(2.0, 50.0), saving_percent=estimate(5)),
        job("job-9", measured=measured(3.0, None), saving_percent=estimate(-1)),
    ]
    body = "return m.sorted(jobs, { column, falling }).map((job) => job.job_id);"
    cases = [
        ("time", False, ["job-10", "job-9", "none"]),
        ("time", True, ["job-9", "job-10", "none"]),
        ("energy", True, ["job-10", "job-9", "none"]),
        ("saving", False, ["job-9", "job-10", "none"]),
        ("name", False, ["job-9", "job-10", "none"]),  # as numbers
        ("name", True, ["none", "job-10", "job-9"]),
    ]
    for column, falling, names in cases:
        found = modules.run("jobs_order", body, jobs=jobs, column=column, falling=falling)
        assert found == names, (column, falling)


def test_unsorted_the_jobs_on_a_plan_come_first_and_do_not_move_when_heard_of(
    modules: Modules,
) -> None:
    jobs = [
        job("over", state="ended", created_at="2026-01-09T00:00:00+00:00"),
        job("unplanned", active_version=None, created_at="2026-01-08T00:00:00+00:00"),
        job("old", heard_at="2026-01-09T00:00:00+00:00"),
        job("new", created_at="2026-01-06T00:00:00+00:00"),
        job("silent", num_present=0),
    ]
    body = "return m.sorted(jobs, { column: null, falling: false }).map((job) => job.job_id);"
    assert modules.run("jobs_order", body, jobs=jobs) == [
        "new",
        "old",
        "unplanned",
        "over",
        "silent",
    ]


def test_totals_never_add_emulated_jobs_to_real_ones(modules: Modules) -> None:
    jobs = [
        job("a", measured=measured(2.0, 4000.0), saved_j=estimate(100, 90, 110)),  # 2 kW
        job("b", measured=measured(2.0, None), saved_j=estimate(50, 40, 60)),
        job("c", num_present=0, measured=measured(2.0, 9000.0), saved_j=estimate(7, 5, 9)),
        job("d", emulated=True, measured=measured(1.0, 500.0), saved_j=estimate(1000)),
    ]
    real, emulated = modules.run("jobs_totals", "return m.totalsOf(jobs);", jobs=jobs)
    assert real == {
        "emulated": False,
        "num_jobs": 3,
        "num_running": 2,
        "num_present": 16,
        "num_expected": 16,
        "num_saving": 3,
        "saved_j": 157,
        "saved_low_j": 135,
        "saved_high_j": 179,
        "num_powered": 1,
        "power_w": 2000,
    }
    assert (emulated["saved_j"], emulated["saved_low_j"], emulated["power_w"]) == (1000, None, 500)
    assert len(modules.run("jobs_totals", "return m.totalsOf(jobs);", jobs=jobs[:3])) == 1
    assert modules.run("jobs_totals", "return m.totalsOf([]);") == []


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "runs v1"),
        ({"newest_version": 2}, "v2 waits for its ranks"),
        ({"num_registered": 5, "num_present": 5}, "3 of 8 ranks to come"),
        ({"num_registered": 0, "num_present": 0}, "no rank has registered"),
        ({"num_present": 0}, "heard of 5 min ago"),
        ({"state": "ended"}, "heard of 5 min ago"),
        ({"newest_version": None, "active_version": None}, ""),
    ],
)
def test_a_row_says_what_its_job_does_or_waits_for(
    modules: Modules, changes: dict[str, object], text: str
) -> None:
    body = "return m.progressText(job, new Date('2026-01-05T09:45:30Z'));"
    assert modules.run("job_words", body, job=job("job", **changes)) == text


def test_a_row_marks_what_is_predicted_and_never_what_is_measured(modules: Modules) -> None:
    body = """
        const cells = m.jobCells(job, new Date());
        return cells.map((cell) => cell.querySelector(".figure.predicted") !== null);
    """
    predicted = plan(1, 0, "2026-01-05T09:30:00Z")["predicted"]
    only_predicted = job("job", predicted=predicted)
    # Job, state, GPUs; time, energy, saved; the gap, whose column says that it is predicted.
    assert modules.run("jobs_row", body, job=only_predicted) == [False] * 3 + [True] * 3 + [False]
    both = job(
        "job", predicted=predicted, measured=measured(2.0, 600.0), saving_percent=estimate(10)
    )
    assert modules.run("jobs_row", body, job=both) == [False] * 7


@pytest.mark.parametrize("clocks", ["plan", "highest", "default", "profiling"])
def test_a_change_stands_only_beside_a_figure_of_the_plan(modules: Modules, clocks: str) -> None:
    body = "return m.jobCells(job, new Date()).slice(3, 5).map((cell) => cell.textContent);"
    compared = job(
        "job",
        measured=measured(2.0, 600.0, clocks),
        measured_baseline_time_s=estimate(2.0),
        measured_baseline_energy_j=estimate(800.0),
        slowdown_percent=estimate(0.5),
        saving_percent=estimate(25.0),
    )
    for text in modules.run("jobs_row", body, job=compared):
        assert "baseline" in text
        assert ("%" in text) == (clocks == "plan")
        others = ("at the highest clocks", "at default clocks", "while profiling")
        assert any(words in text for words in others) == (clocks != "plan")


def test_a_job_that_costs_energy_says_so_with_a_minus(modules: Modules) -> None:
    body = "return m.jobCells(job, new Date())[5].textContent;"
    costly = job("job", measured=measured(2.0, 600.0), saving_percent=estimate(-3, -4, -2))
    text = modules.run("jobs_row", body, job=costly).replace(NARROW, " ")
    assert f"{MINUS}3.0 %" in text
    assert f"{MINUS}4.0 to {MINUS}2.0 %" in text


def test_the_changes_of_a_job_are_those_of_its_plan_only(modules: Modules) -> None:
    body = "return m.figureRows(job).map((row) => row.measured);"
    compared = {
        "measured_baseline_time_s": estimate(2.0),
        "measured_baseline_energy_j": estimate(800.0),
        "slowdown_percent": estimate(0.5),
        "saving_percent": estimate(25.0),
    }
    on_plan = job("job", measured=measured(2.0, 600.0), **compared)
    time, energy, power = [
        [cell.replace(NARROW, " ") for cell in row]
        for row in modules.run("figures_panel", body, job=on_plan)
    ]
    assert time == ["2.000 s", "2.000 s", "+0.5 %"]
    assert energy == ["600.0 J", "800.0 J", f"{MINUS}25.0 %"]
    assert power == ["300.0 W", "400.0 W", f"{MINUS}25.0 %"]
    at_highest = job("job", measured=measured(2.0, 800.0, "highest"), **compared)
    for row in modules.run("figures_panel", body, job=at_highest):
        assert row[2] == NONE


# ------------------------------------------------------------------ steps in charts


SERIES = "return m.stepSeries(steps, history, { num_stages: 2, num_ranks: 2 });"


def test_power_is_each_stages_energy_over_its_time(modules: Modules) -> None:
    steps = [
        step(1),
        step(2, stages=[stage_of_step(1, 400.0)]),
        step(3, stages=[stage_of_step(0, None), stage_of_step(1, 400.0)]),
    ]
    found = modules.run("step_series", SERIES, steps=steps, history=[])
    assert found["power_w"] == [[100, None, None], [200, 200, 200]]


def test_no_line_goes_over_steps_that_are_missing(modules: Modules) -> None:
    found = modules.run("step_series", SERIES, steps=[step(1), step(2), step(6)], history=[])
    assert found["step"] == [1, 2, 4, 6]
    assert found["time_s"] == [2, 2, None, 2]
    assert found["energy_j"] == [600, 600, None, 600]
    assert found["power_w"][0] == [100, 100, None, 100]
    assert found["version"] == [1, 1, 1, 1]
    # None is missing where a job measures each tenth.
    found = modules.run("step_series", SERIES, steps=[step(10), step(20), step(30)], history=[])
    assert found["step"] == [10, 20, 30]


def test_what_some_ranks_drew_is_not_shown_as_an_iterations_energy(modules: Modules) -> None:
    steps = [step(1), step(2, num_ranks=1, energy_j=200.0), step(3, energy_j=None)]
    found = modules.run("step_series", SERIES, steps=steps, history=[])
    assert found["energy_j"] == [600, None, None]
    assert found["time_s"] == [2, 2, 2]


def test_each_step_has_the_prediction_of_the_version_that_it_ran(modules: Modules) -> None:
    steps = [step(1, None), step(2, 1), step(3, plan_versions=[1, 2]), step(4, 9)]
    history = [plan(1, 2, "2026-01-05T09:30:00Z")]
    found = modules.run("step_series", SERIES, steps=steps, history=history)
    assert found["version"] == [None, 1, None, 9]
    assert found["predicted_time_s"] == [None, 1.9, None, None]
    assert found["predicted_energy_j"] == [None, 590, None, None]
    runs = modules.run("step_series", "return m.versionRuns(series);", series=found)
    assert [(run["from"], run["to"], run["version"]) for run in runs] == [
        (0, 0, None),
        (1, 1, 1),
        (2, 2, None),
        (3, 3, 9),
    ]


def test_clocks_that_were_held_back_are_counted_by_their_reason(modules: Modules) -> None:
    capped = stage_of_step(1, 400.0, num_clock_misses=6, num_power_capped=3, num_thermally_capped=1)
    steps = [step(1), step(2, stages=[stage_of_step(0, 200.0), capped])]
    found = modules.run("step_series", SERIES, steps=steps, history=[])["heldBack"]
    assert found[0] == {"power": 0, "thermal": 0, "other": 0, "stages": []}
    assert found[1] == {
        "power": 3,
        "thermal": 1,
        "other": 2,
        "stages": [{"stage": 1, "power": 3, "thermal": 1, "other": 2}],
    }
    state = {"history": [], "overview": job("job", num_ranks=2)}
    text = modules.run("step_words", "return m.stepText(step, state);", step=steps[1], state=state)
    assert "stage 1 held back 3\u00d7 by power, 1\u00d7 by heat, 2\u00d7 cause unknown" in text


def test_the_spread_of_stages_leaves_out_those_without_a_value(modules: Modules) -> None:
    body = "return m.spread([[1, 5, null], [3, null, null], [2, 7, null]], 3);"
    assert modules.run("step_series", body) == {
        "lowest": [1, 5, None],
        "middle": [2, 6, None],
        "highest": [3, 7, None],
    }


def test_one_step_far_out_does_not_press_the_others_flat(modules: Modules) -> None:
    body = "return m.usualRange([values, line]);"
    values = [2.0 + 0.01 * (index % 2) for index in range(99)]
    low, high = modules.run("step_series", body, values=[*values, 60.0], line=[1.9] * 100)
    assert low < 1.9
    assert 2.01 < high < 2.5
    # With few values each counts, and one alone has room on both sides.
    low, high = modules.run("step_series", body, values=[2.0, 3.0], line=[None, None])
    assert (low < 2.0, high > 3.0) == (True, True)
    low, high = modules.run("step_series", body, values=[2.0], line=[None])
    assert low < 2.0 < high
    assert modules.run("step_series", body, values=[None], line=[None]) == [0, 1]


def test_an_axis_of_clocks_shows_the_highest_however_few_steps_had_it(modules: Modules) -> None:
    body = "return m.wholeRange([measured, planned]);"
    measured, planned = [1530.0, *[1000.0] * 99], [None, *[990.0] * 99]
    low, high = modules.run("step_series", body, measured=measured, planned=planned)
    assert (low, high) == (990.0 - 0.08 * 540, 1530.0 + 0.08 * 540)
    assert modules.run("step_series", body, measured=[None], planned=[None]) == [0, 1]


def test_a_straggler_is_planned_for_from_the_first_version_made_after_it_began(
    modules: Modules,
) -> None:
    history = [
        plan(1, 10, "2026-01-05T09:00:00Z"),
        plan(2, None, "2026-01-05T10:00:01Z"),  # overtaken
        plan(3, 30, "2026-01-05T10:00:02Z"),
        plan(4, 40, "2026-01-05T11:00:00Z"),
    ]
    straggler = {
        "rank": 5,
        "source": "detected",
        "reason": "thermal",
        "slowdown": 1.12,
        "from_time": "2026-01-05T10:00:00+00:00",
        "until_time": None,
        "is_planned": True,
    }
    body = "return m.plannedStragglers(stragglers, history);"
    (found,) = modules.run("step_series", body, stragglers=[straggler], history=history)
    assert (found["straggler"]["rank"], found["first_step"]) == (5, 30)
    waiting = {**straggler, "is_planned": False}
    assert modules.run("step_series", body, stragglers=[waiting], history=history) == []
    late = {**straggler, "from_time": "2026-01-05T12:00:00+00:00"}
    assert modules.run("step_series", body, stragglers=[late], history=history) == []


def test_charts_follow_the_newest_steps_until_a_range_is_chosen(modules: Modules) -> None:
    body = """
        const window = new m.ChartWindow();
        const steps = Array.from({ length: 600 }, (_, step) => ({ step }));
        const ends = () => {
            const shown = window.shown(steps);
            return [shown[0].step, shown.at(-1).step];
        };
        const found = [ends()];
        window.choose(99.5, 200.4, steps); found.push(ends());
        steps.push({ step: 600 }); found.push(ends());
        window.zoom(0.5, 150, steps); found.push(ends());
        window.zoom(1e-9, 150, steps); found.push(ends());
        window.choose(300.1, 302.9, steps); found.push(ends());
        steps.splice(0, 300); found.push(ends());
        window.choose(400, 500, steps); found.push(ends());
        window.followNewest(100); found.push(ends());
        return found;
    """
    assert modules.run("live_charts", body) == [
        [100, 599],
        [100, 200],
        [100, 200],  # newer ones do not push it on
        [125, 175],
        [125, 175],  # no closer than to some steps
        [125, 175],
        [300, 600],  # what was chosen is too old to be kept
        [400, 500],
        [501, 600],
    ]
