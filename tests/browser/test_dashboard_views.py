"""The dashboard's two views with a planner behind them: the table of jobs, charts and plans."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect
from tests.browser.dashboard import Dashboard
from tests.browser.fixtures import StartPlanner
from tests.browser.modules import Modules, modules
from tests.browser.page_watch import PageWatch
from tests.browser.views import job, plan, step
from tests.planner.live import LivePlanner

from flyball_wire import routes

__all__ = ["modules"]

OPERATORS = "an-operators-token-of-32-or-more"


@pytest.fixture
def planner(start_planner: StartPlanner) -> LivePlanner:
    return start_planner()


@pytest.fixture
def dashboard(browser_page: Page, planner: LivePlanner) -> Dashboard:
    return Dashboard(browser_page, str(planner.http.base_url))


def put_steps(planner: LivePlanner, first: int, end: int, **changes: object) -> None:
    """Both ranks of `job` post these steps, rank 1 with the changes: 0.9 s, 100 J and 200 J."""
    for rank in (0, 1):
        steps = [
            {
                "step": step,
                "plan_version": 1,
                "time_s": 0.9,
                "energy_j": 100.0 * (rank + 1),
                **(changes if rank == 1 else {}),
            }
            for step in range(first, end)
        ]
        path = routes.fill(routes.RANK_MEASUREMENTS, job_id="job", rank=rank)
        planner.http.post(path, json={"steps": steps}).raise_for_status()


def put_running_job(planner: LivePlanner) -> None:
    """Of two ranks that run version 1 from step 2."""
    planner.put_planned_job()
    for rank in (0, 1):
        planner.acknowledge(rank, 1, 0).raise_for_status()


# ------------------------------------------------------------------ the table of jobs


def test_the_table_is_searched_and_sorted_by_keys(
    planner: LivePlanner, dashboard: Dashboard
) -> None:
    for name in ("run-9", "run-10", "other"):
        planner.put_job(name, emulated=name == "other").raise_for_status()
    page = dashboard.open().page
    expect(dashboard.rows).to_have_count(3)
    page.keyboard.press("/")
    page.keyboard.type("run real")
    expect(dashboard.rows).to_have_count(2)
    expect(page.locator(".page-head")).to_contain_text("2 of 3 jobs")
    page.keyboard.press("Escape")
    expect(dashboard.rows).to_have_count(3)
    head = page.get_by_role("button", name="Job", exact=True)
    names = dashboard.rows.get_by_role("link")
    head.focus()
    page.keyboard.press("Enter")
    expect(names).to_have_text(["other", "run-9", "run-10"])
    column = page.get_by_role("columnheader").filter(has=head)
    expect(column).to_have_attribute("aria-sort", "ascending")
    page.keyboard.press("Enter")
    expect(names).to_have_text(["run-10", "run-9", "other"])
    page.keyboard.press("Enter")
    expect(column).not_to_have_attribute("aria-sort", "ascending")
    expect(names).to_have_text(["other", "run-10", "run-9"])  # the newest first
    expect(page.get_by_role("region", name="Emulated GPUs")).to_contain_text("of 1 job")
    expect(page.get_by_role("region", name="Real GPUs")).to_contain_text("of 2 jobs")


def test_a_row_goes_from_predicted_to_measured(planner: LivePlanner, dashboard: Dashboard) -> None:
    put_running_job(planner)
    dashboard.open()
    row = dashboard.row("job")
    expect(row.locator(".figure.predicted")).to_have_count(3)
    put_steps(planner, 2, 40)
    expect(row.locator(".figure.predicted")).to_have_count(1)  # nothing to compare it with yet
    expect(row).to_contain_text("0.900\u202fs")
    expect(row).to_contain_text("300.0\u202fJ")
    expect(row).to_contain_text("no measured baseline")


# ------------------------------------------------------------------ one job


def test_a_job_that_is_forgotten_is_told_to_be_gone(
    planner: LivePlanner, dashboard: Dashboard, page_watch: PageWatch
) -> None:
    # What the page asks of the job in the moment before it hears of it.
    page_watch.allow(r"status of 404 .*/api/v1/jobs/job\b", r"older steps: Job job is not known")
    planner.put_job().raise_for_status()
    page = dashboard.open_job("job").page
    expect(page.get_by_role("heading", level=1)).to_have_text("job")
    planner.http.delete(routes.fill(routes.JOB, job_id="job")).raise_for_status()
    expect(page.get_by_role("alert")).to_contain_text("deleted on this planner")
    expect(dashboard.connection).to_have_text("not live")
    page.get_by_role("link", name="All jobs", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("No job here yet")


def test_charts_are_read_step_by_step_with_keys(planner: LivePlanner, dashboard: Dashboard) -> None:
    put_running_job(planner)
    put_steps(planner, 2, 20)
    put_steps(planner, 20, 21, num_clock_misses=3, num_power_capped=2)
    page = dashboard.open_job("job").page
    readout = page.locator(".readout")
    expect(readout).to_contain_text("Newest step 20: v1; 0.900\u202fs; 300.0\u202fJ; 333.3\u202fW")
    expect(readout).to_contain_text("stage 1 held back 2\u00d7 by power, 1\u00d7 cause unknown")
    expect(page.get_by_role("heading", name="Clocks held back, measured")).to_be_visible()
    charts = page.get_by_role("application", name="Charts of measured steps")
    charts.focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(readout).to_contain_text("Step 19: v1")
    expect(page.locator("#announcer")).to_contain_text("Step 19: v1")
    put_steps(planner, 21, 22, energy_j=None)
    expect(page.locator("#panel-charts .panel-head")).to_contain_text("20 steps here")
    expect(readout).to_contain_text("Step 19: v1")  # where it was left
    page.keyboard.press("Home")
    expect(readout).to_contain_text("Step 2: v1")
    page.keyboard.press("Escape")
    expect(readout).to_contain_text("Newest step 21: v1; 0.900\u202fs; energy not read")
    shown = page.get_by_role("group", name="Newest steps shown").get_by_role("button", name="500")
    expect(shown).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("+")
    expect(shown).to_have_attribute("aria-pressed", "false")
    page.keyboard.press("0")
    expect(shown).to_have_attribute("aria-pressed", "true")


def test_the_newest_steps_can_be_read_as_a_table(
    planner: LivePlanner, dashboard: Dashboard
) -> None:
    put_running_job(planner)
    put_steps(planner, 2, 4)
    page = dashboard.open_job("job").page
    page.get_by_text("The newest 20 steps as a table").click()
    rows = page.get_by_role("group", name="Newest steps", exact=True).locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.first).to_have_text("3v10.900\u202fs300.0\u202fJ333.3\u202fW\u2013")


def test_a_line_that_is_switched_off_stays_off_when_steps_come(
    planner: LivePlanner, dashboard: Dashboard
) -> None:
    put_running_job(planner)
    put_steps(planner, 2, 10)
    page = dashboard.open_job("job").page
    switch = page.locator("#panel-charts").get_by_role("button", name="stage 1", exact=True)
    switch.click()
    expect(switch).to_have_attribute("aria-pressed", "false")
    put_steps(planner, 10, 12)
    expect(page.locator(".readout")).to_contain_text("Newest step 11")
    expect(switch).to_have_attribute("aria-pressed", "false")


def test_the_history_marks_the_version_in_force_and_what_waits(
    planner: LivePlanner, dashboard: Dashboard
) -> None:
    put_running_job(planner)
    page = dashboard.open_job("job").page
    rows = page.locator("#panel-history tbody tr")
    expect(rows).to_have_count(1)
    expect(rows.first).to_have_attribute("aria-current", "true")
    target = routes.fill(routes.TARGET, job_id="job")
    planner.http.put(target, json={"target": "slowdown:0.1"}).raise_for_status()
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("frontier, slowdown 10\u202f%")
    expect(rows.first).to_contain_text("waits for ranks")
    expect(rows.last).to_have_attribute("aria-current", "true")
    expect(dashboard.fact("Plan")).to_contain_text("v2 waits for its ranks")
    expect(dashboard.fact("Target")).to_have_text("slowdown 10\u202f%")


def test_a_slow_gpu_is_told_where_the_charts_are_and_in_its_panel(
    planner: LivePlanner, dashboard: Dashboard
) -> None:
    put_running_job(planner)
    put_steps(planner, 2, 10)
    page = dashboard.open_job("job").page
    expect(page.locator("#panel-stragglers")).to_contain_text("No stragglers.")
    path = routes.fill(routes.STRAGGLERS, job_id="job")
    planner.http.post(path, json={"rank": 1, "slowdown": 1.25}).raise_for_status()
    row = page.locator("#panel-stragglers tbody tr")
    expect(row).to_contain_text("1.25\u00d7 as long; slow, cause unknown")
    expect(row).to_contain_text("announced, since ")
    expect(page.locator("#panel-charts")).to_contain_text("rank 1 takes 1.25\u00d7 as long")


# ------------------------------------------------------------------ charts and plans alone


# The charts of a job on a page; `keys` go to them, `drawn` waits until all is drawn.
CHARTS = """
    const place = document.createElement("section");
    document.body.append(place);
    const panel = new m.LiveCharts(place, { announce() {} });
    const show = (steps) => panel.update({
        overview: job, history, steps, stragglers: [], profiling: null, comparison: null,
    });
    const press = (key) => place.querySelector(".charts").dispatchEvent(
        new KeyboardEvent("keydown", { key }),
    );
    const drawn = async () => {
        for (let frame = 0; frame < 2; frame += 1) {
            await new Promise((resolve) => requestAnimationFrame(resolve));
        }
    };
    const readout = () => place.querySelector(".readout").textContent;
    try {
        return await (async () => { BODY })();
    } finally {
        panel.destroy();
        place.remove();
    }
"""


def test_the_step_that_is_read_stays_when_newer_ones_come_or_the_charts_change(
    modules: Modules,
) -> None:
    body = """
        const found = [];
        const look = async () => { await drawn(); found.push(readout().split(":")[0]); };
        show(steps.slice(0, 15));
        await look();
        for (const key of ["Home", "PageDown", "ArrowLeft"]) press(key);
        await look();
        for (let last = 16; last <= 20; last += 1) { show(steps.slice(0, last)); await look(); }
        place.style.width = "500px"; await look();
        document.dispatchEvent(new CustomEvent("themechange")); await look();
        place.querySelector(".legend button").click(); await look();
        press("Escape"); await look();
        return found;
    """
    steps = [step(number) for number in range(20)]
    found = modules.run(
        "live_charts", CHARTS.replace("BODY", body), job=job("job"), steps=steps, history=[]
    )
    assert found == ["Newest step 14", *["Step 9"] * 9, "Newest step 19"]


HISTORY = """
    const place = document.createElement("section");
    document.body.append(place);
    const panel = m.createHistoryPanel(place, { announce() {} });
    const rows = () => [...place.querySelectorAll("tbody tr")].map((row) => [
        row.querySelector("th").textContent, row.cells[3].textContent, row.ariaCurrent,
    ]);
    const found = [];
    for (const [overview, history] of states) {
        panel.update({ overview, history });
        found.push(rows());
        place.querySelector("button").focus();
    }
    panel.update({ overview: states[0][0], history: states[0][1] });
    found.push(document.activeElement?.ariaLabel);
    place.remove();
    return found;
"""


def test_versions_keep_their_rows_and_say_what_became_of_them(modules: Modules) -> None:
    """The focus is on version 3's button when the others' rows come, go and change."""
    one, two, three = (
        plan(number, first, "2026-01-05T09:30:00Z") for number, first in ((1, 5), (2, None), (3, 9))
    )
    waiting = {**three, "first_step": None}
    states = [
        [job("job"), [one, two, waiting]],
        [job("job", active_version=3), [one, two, three]],
        [job("job", state="ended"), [one, two, waiting]],
    ]
    first, held, over, focus = modules.run("history_panel", HISTORY, states=states)
    assert first == [
        ["v3", "waits for ranks", None],
        ["v2", "waits for ranks", None],
        ["v1active", "5", "true"],
    ]
    assert held == [["v3active", "9", "true"], ["v2", "overtaken", None], ["v1", "5", None]]
    assert [row[1] for row in over] == ["never held", "never held", "5"]
    assert focus == "Show version 3 in the timeline"


# ------------------------------------------------------------------ who may see what


def test_a_token_that_cannot_be_one_is_not_sent_and_none_need_be_given(
    browser_page: Page, page_watch: PageWatch, start_planner: StartPlanner
) -> None:
    page_watch.allow("401")
    page = browser_page
    planner = start_planner(token=OPERATORS)
    dashboard = Dashboard(page, str(planner.http.base_url)).open()
    expect(dashboard.token).to_be_focused()
    for token, problem in (("two words", "no spaces"), ("", "Enter a token.")):
        dashboard.give_token(token)
        expect(page.locator("#token-problem")).to_contain_text(problem)
    page.keyboard.press("Escape")
    expect(page.get_by_role("alert")).to_contain_text("Without one it shows no job.")
    expect(dashboard.connection).to_have_text("not live")
    assert page.evaluate("sessionStorage.length + localStorage.length") == 0
    page.get_by_role("button", name="Enter a token").click()
    dashboard.give_token(f" {OPERATORS} ")  # as it was copied
    expect(page.get_by_role("heading", level=1)).to_have_text("No job here yet")
