"""The dashboard's two views with a planner behind them: the table of jobs, charts and plans."""

from __future__ import annotations

import io
import re
from collections.abc import Callable

import pytest
from PIL import Image
from playwright.sync_api import Locator, Page, expect
from tests.browser.dashboard import Dashboard, assert_fits
from tests.browser.fixtures import StartPlanner
from tests.browser.jobs import acknowledge, depart, put_running_job, put_steps
from tests.planner.live import LivePlanner

from flyball_wire import routes


@pytest.fixture
def planner(start_planner: StartPlanner) -> LivePlanner:
    return start_planner()


@pytest.fixture
def dashboard(browser_page: Page, planner: LivePlanner) -> Dashboard:
    return Dashboard(browser_page, str(planner.http.base_url))


@pytest.fixture
def job_page(planner: LivePlanner, dashboard: Dashboard) -> Page:
    """The page of `job` on version 1 after steps 2 to 9."""
    put_running_job(planner)
    put_steps(planner, 2, 10)
    page = dashboard.open_job("job").page
    expect(page.locator(".readout")).to_contain_text("Newest step 9")
    return page


# ------------------------------------------------------------------ the table of jobs


def test_keys_search_and_sort_the_table(planner: LivePlanner, dashboard: Dashboard) -> None:
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


def test_jobs_are_filtered_by_the_state_that_is_shown(
    planner: LivePlanner, dashboard: Dashboard
) -> None:
    put_running_job(planner)
    planner.put_job("waits").raise_for_status()
    slow = {"rank": 1, "slowdown": 1.2}
    path = routes.fill(routes.STRAGGLERS, job_id="job")
    planner.http.post(path, json=slow).raise_for_status()
    page = dashboard.open().page
    states = page.get_by_role("group", name="Jobs by state").get_by_role("button")
    expect(states).to_have_text(["all2", "slow GPU1", "awaiting-profile1"])
    states.nth(1).click()
    expect(dashboard.rows).to_have_count(1)
    expect(dashboard.row("job")).to_contain_text("slow GPU")
    expect(page.locator(".page-head")).to_contain_text("1 of 2 jobs")
    expect(states.nth(1)).to_be_focused()
    page.get_by_role("searchbox").fill("slow")
    expect(states).to_have_text(["all1", "slow GPU1"])
    expect(dashboard.rows).to_have_count(1)
    legend = page.get_by_role("list", name="Colours of measured savings")
    expect(legend).to_contain_text("saves, takes longer")


# ------------------------------------------------------------------ one job


def test_charts_are_read_step_by_step_with_keys(planner: LivePlanner, job_page: Page) -> None:
    page = job_page
    put_steps(planner, 10, 20)
    put_steps(planner, 20, 21, num_clock_misses=3, num_power_capped=2)
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
    # It stays there with new steps, another size or theme, and without a line.
    page.set_viewport_size({"width": 1000, "height": 900})
    page.emulate_media(color_scheme="dark")
    line = page.locator("#panel-charts .legend").first.get_by_role("button", name="measured")
    line.first.click()
    put_steps(planner, 21, 22, energy_j=None)
    expect(page.locator("#panel-charts .panel-head")).to_contain_text("20 steps here")
    expect(line.first).to_have_attribute("aria-pressed", "false")
    expect(readout).to_contain_text("Step 19: v1")
    charts.focus()
    page.keyboard.press("Home")
    expect(readout).to_contain_text("Step 2: v1")
    page.keyboard.press("Escape")
    expect(readout).to_contain_text("Newest step 21: v1; 0.900\u202fs; energy not read")
    shown = page.get_by_role("group", name="Newest steps shown").get_by_role("button", name="500")
    for key, pressed in (("+", "false"), ("0", "true")):
        page.keyboard.press(key)
        expect(shown).to_have_attribute("aria-pressed", pressed)


def test_sections_have_numbers_and_a_question_mark_shows_the_keys(job_page: Page) -> None:
    page = job_page
    sections = page.get_by_role("navigation", name="Sections")
    expect(sections.get_by_role("button")).to_have_text(
        ["Figures", "Frontier", "Steps", "Timeline", "Plans"]
    )
    for act in (sections.get_by_role("button", name="Timeline").click, press(page, "4")):
        page.evaluate("scrollTo(0, 0)")
        act()
        page.locator("#panel-timeline canvas").first.wait_for()
        expect(page.locator("#panel-timeline")).to_be_in_viewport()
        expect(page.locator("#panel-timeline")).to_be_focused()
        expect(sections.get_by_role("button", name="Timeline")).to_have_attribute(
            "aria-current", "true"
        )
    press(page, "4")()  # the page is there already
    page.mouse.wheel(0, -9000)
    expect(sections.get_by_role("button", name="Figures")).to_have_attribute("aria-current", "true")
    dialog = page.get_by_role("dialog", name="Keys")
    for act in (press(page, "?"), page.get_by_role("button", name="Keys").click):
        act()
        expect(dialog).to_contain_text("arrow keys go from plan to plan")
        page.keyboard.press("Escape")
        expect(dialog).to_be_hidden()
    page.get_by_role("link", name="Jobs", exact=True).click()
    expect(sections).to_be_hidden()
    search = page.get_by_role("searchbox")
    search.fill("")
    search.press("?")
    expect(dialog).to_be_hidden()


def press(page: Page, key: str) -> Callable[[], None]:
    return lambda: page.keyboard.press(key)


def test_figures_are_explained_where_they_stand(job_page: Page) -> None:
    power = chart(job_page, "Mean power by stage, W, measured")
    plot = power.locator(".u-over")
    box = plot.bounding_box()
    assert box is not None
    readout = job_page.locator(".readout")
    for stage, power_w, share in ((0, 111.1, 0.25), (1, 222.2, 0.75)):
        plot.hover(position={"x": box["width"] / 2, "y": share * box["height"]})
        expect(readout).to_contain_text(re.compile(f"Step [56].*stage {stage}: {power_w}\u202fW"))
    expect(power.locator(".scale-key")).to_have_text("111.1\u202fW222.2\u202fW")
    job_page.mouse.move(0, 0)
    more = job_page.locator("#panel-figures details")
    expect(more.locator("table")).to_be_hidden()
    more.get_by_text("plan near-optimal").click()
    expect(more).to_contain_text("more energy than any plan as fast")
    expect(more.locator("table")).to_be_visible()
    job_page.get_by_text("The newest 20 steps as a table").click()
    rows = job_page.get_by_role("group", name="Newest steps", exact=True).locator("tbody tr")
    expect(rows).to_have_count(8)
    expect(rows.first).to_have_text("9v10.900\u202fs300.0\u202fJ333.3\u202fW\u2013")
    Dashboard(job_page, "").wait_for_pictures()
    assert_fits(job_page, 390, 360, 320)


# A chart's title, and how the first and the second line of its CSV begin.
SAVED = (
    ("Iteration time", "step,measured,", "2,0.9,"),
    ("Mean power by stage, W, measured", 'step,"stage 0, W","stage 1, W"', "2,111.1"),
    ("Frontier", "deadline_s,iteration_time_s,energy_j,lower_bound_j,gap_percent", "0.89999"),
    ("Timeline", "iteration,dp_rank,stage,kind,microbatch,", "plan,0,0,forward,0,0,1"),
)


def test_a_chart_is_saved_as_csv_and_png(job_page: Page) -> None:
    Dashboard(job_page, "").wait_for_pictures()
    for title, head, row in SAVED:
        files = {}
        for kind in ("CSV", "PNG"):
            with job_page.expect_download() as saved:
                job_page.get_by_role("button", name=f"{title}: save as {kind}").click()
            slug = re.sub(r"\W+", "-", title.lower())
            assert saved.value.suggested_filename == f"job-{slug}.{kind.lower()}"
            files[kind] = saved.value.path().read_bytes()
        first, second, *_ = files["CSV"].decode().splitlines()
        assert first.startswith(head)
        assert second.startswith(row)
        picture = Image.open(io.BytesIO(files["PNG"])).convert("L")
        assert picture.width > 300
        colors = picture.getcolors(1 << 16)
        assert colors is not None
        assert len(colors) > 20, "more than a ground and a title"
        if title == "Frontier":
            drawn = job_page.get_by_role(
                "group", name="Iteration time against energy"
            ).bounding_box()
            assert drawn is not None
            assert picture.height >= drawn["height"] + 48, "a title and the names of the curves"


def test_a_straggler_is_a_state_and_has_a_panel(planner: LivePlanner, job_page: Page) -> None:
    expect(job_page.locator("#panel-stragglers")).to_be_hidden()
    path = routes.fill(routes.STRAGGLERS, job_id="job")
    planner.http.post(path, json={"rank": 1, "slowdown": 1.25}).raise_for_status()
    row = job_page.locator("#panel-stragglers tbody tr")
    expect(row).to_contain_text("1.25\u00d7 as long; slow, cause unknown")
    expect(row).to_contain_text("announced, since ")
    expect(job_page.locator("#panel-job .badges")).to_contain_text("slow GPU")


# ------------------------------------------------------------------ comparisons


def test_two_versions_and_two_jobs_are_compared(planner: LivePlanner, job_page: Page) -> None:
    page = job_page
    path = routes.fill(routes.TARGET, job_id="job")
    planner.http.put(path, json={"target": "deadline:0.95"}).raise_for_status()
    planner.put_planned_job("other")
    page.locator("#panel-history").get_by_role("link", name="Compare two").click()
    row = {name: page.get_by_role("row").filter(has_text=name) for name in ROWS}
    expect(row["Policy, target"].get_by_role("cell")).to_have_text(
        ["frontier, fastest", "frontier, deadline 0.95\u202fs", ""]
    )
    expect(row["Iteration time, measured"].get_by_role("cell")).to_have_text(
        ["0.900\u202fs", "\u2013", "\u2013"]
    )
    expect(row["Iteration time, predicted"].get_by_role("cell").last).to_have_text("+5.6\u202f%")
    expect(page.locator(".caveat")).to_be_hidden()
    # Steps of both are laid over each other.
    for title in ("Iteration time", "Energy per iteration"):
        overlay = page.locator(".chart").filter(has_text=f"{title}, measured")
        expect(overlay.locator(".legend").get_by_role("button")).to_have_text(["A", "B"])
    # On a narrow screen neither a figure nor its heading is broken.
    page.set_viewport_size({"width": 390, "height": 844})
    for cell in page.locator(".comparison :is(td, th):last-child").all():
        assert cell.evaluate(NUM_LINES) <= 1, cell.text_content()
    page.get_by_label("Job B").select_option("other")
    expect(row["Iteration time, predicted"].get_by_role("cell").last).to_have_text("0.0\u202f%")
    assert page.url.endswith("#/compare/job/1/other/-")
    planner.put_job("third", emulated=False).raise_for_status()

    def go(address: str) -> None:
        page.evaluate(f"location.hash = '{address}'")

    go("#/")
    expect(page.get_by_role("link", name="third")).to_be_visible()
    go("#/compare/job/1/third/-")
    expect(page.locator(".caveat")).to_contain_text("real and emulated GPUs")
    go("#/compare/job/7/gone/-")
    expect(page.locator(".caveat")).to_contain_text(
        "Job job has no version 7 with a prediction; version 2 is shown instead."
        " There is no job gone; "
    )
    go("#/compare/%E0%A4%A/1/job/1")  # malformed: shows a job
    expect(page.get_by_label("Job B")).to_have_value("job")
    expect(page.get_by_role("row").filter(has_text="Pipeline")).to_contain_text("2 stages")
    go("#/")
    expect(page.get_by_role("link", name="third")).to_be_visible()
    # Of two versions of one job its report is asked for once.
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
    go("#/compare/job/1/job/2")
    expect(page.get_by_role("row").filter(has_text="Pipeline")).to_contain_text("2 stages")
    assert asked.count("report") == 1


NUM_LINES = """(cell) => {
    const range = document.createRange();
    range.selectNodeContents(cell);
    return range.getClientRects().length;
}"""
ROWS = ("Policy, target", "Iteration time, measured", "Iteration time, predicted")


# ------------------------------------------------------------------ clocks that were read back


def chart(page: Page, title: str) -> Locator:
    """Return the chart of this title."""
    return page.locator(".job-page .chart").filter(has=page.get_by_text(title))


def test_clocks_that_were_read_back_have_charts(planner: LivePlanner, job_page: Page) -> None:
    clocks = chart(job_page, "SM clock of a stage, MHz, measured and planned")
    expect(clocks).to_be_hidden()
    put_steps(planner, 10, 17, sm_clock_mhz=1300.0)
    expect(clocks).to_be_visible()
    expect(clocks.locator(".legend").get_by_role("button")).to_have_text(
        ["measured, mean of what was read back", "planned, mean of its instructions"]
    )
    dashes = clocks.locator(".legend-entry line")
    assert [dash.get_attribute("stroke-dasharray") for dash in dashes.all()] == ["", "3 3"]
    # A number or a click chooses the stage.
    page = job_page
    choice = page.get_by_role("spinbutton", name="Stage whose clock is shown as a line")
    plotted = page.locator(".job-page .chart").filter(has=choice).locator(".u-over")
    readout = page.locator(".readout")
    expect(choice).to_have_value("0")
    for place, (number, shown) in enumerate([("0", "0"), ("1", "1"), ("7", "1")]):  # none is 7
        choice.fill(number)
        plotted.hover(position={"x": 1000 + 40 * place, "y": 40})
        expect(readout).to_contain_text(f"; stage {shown}: ")
    expect(readout).to_contain_text("measured 1300\u202fMHz")
    strip = chart(page, "Clock by stage, MHz, planned").locator(".u-over")
    box = strip.bounding_box()
    assert box is not None
    for stage, share in (("0", 0.25), ("1", 0.75)):
        strip.click(position={"x": box["width"] / 2, "y": share * box["height"]})
        expect(choice).to_have_value(stage)


def test_versions_keep_their_rows_and_show_their_fate(planner: LivePlanner, job_page: Page) -> None:
    rows = job_page.locator("#panel-history tbody tr")

    def plan_for(target: str) -> None:
        path = routes.fill(routes.TARGET, job_id="job")
        planner.http.put(path, json={"target": target}).raise_for_status()

    expect(rows).to_contain_text(["v1active"])
    plan_for("slowdown:0.1")
    expect(rows).to_contain_text(["frontier, slowdown 10\u202f%waits for ranks", "v1active"])
    show = job_page.get_by_role("button", name="Show version 2 in the timeline")
    show.focus()
    plan_for("least-energy")
    acknowledge(planner, 3, 20)
    expect(rows).to_contain_text(["v3active", "overtaken", "v1plan"])
    expect(rows.first).to_have_attribute("aria-current", "true")
    expect(show).to_be_focused()
    plan_for("slowdown:0.2")
    depart(planner)
    expect(rows.first).to_contain_text("never held")
