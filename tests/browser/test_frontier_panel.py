"""The frontier on a job's page: choosing a plan, naming a target, what is not solved unasked."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect
from tests.browser.dashboard import Dashboard
from tests.browser.fixtures import StartPlanner
from tests.browser.frontier_views import FRONTIER, PREDICTED, state, summary
from tests.browser.modules import Modules, modules
from tests.browser.page_watch import PageWatch
from tests.planner.live import LivePlanner
from tests.planner.patience import wait_until
from tests.planner.samples import CountingPlanner, profile_csv

from flyball_wire import routes

__all__ = ["modules"]

PANEL = "#panel-frontier"


@pytest.fixture
def planner(start_planner: StartPlanner) -> LivePlanner:
    """With a job of two emulated ranks on version 1."""
    planner = start_planner()
    planner.put_planned_job()
    acknowledge(planner, 1)
    return planner


def acknowledge(planner: LivePlanner, version: int) -> None:
    """Both ranks have a version."""
    for rank in range(2):
        planner.acknowledge(rank, version, 10).raise_for_status()


def open_job(page: Page, planner: LivePlanner) -> Dashboard:
    """The job's page."""
    return Dashboard(page, str(planner.http.base_url)).open_job("job")


def target_of(planner: LivePlanner) -> str:
    """As the planner has it."""
    path = routes.fill(routes.JOB, job_id="job")
    return str(planner.http.get(path).json()["registration"]["target"])


def test_a_plan_is_chosen_by_keys_and_followed_until_it_holds(
    browser_page: Page, planner: LivePlanner
) -> None:
    points = open_job(browser_page, planner).points
    points.first.focus()
    browser_page.keyboard.press("ArrowRight")
    expect(points.nth(1)).to_be_focused()
    browser_page.keyboard.press("Enter")
    run = browser_page.get_by_role("button", name="Run this plan")
    expect(run).to_be_focused()
    expect(browser_page.get_by_role("group", name="Confirm the plan")).to_contain_text("predicted")
    browser_page.keyboard.press("Enter")
    progress = browser_page.locator(f"{PANEL} .frontier-progress")
    expect(progress).to_contain_text("Version 2 is made.")
    expect(progress).to_contain_text("It waits until 2 ranks have it.")
    assert target_of(planner).startswith("deadline:")
    expect(points.nth(1)).to_be_focused()
    acknowledge(planner, 2)
    expect(progress).to_contain_text("Version 2 holds from step")


def test_escape_leaves_the_confirmation_and_nothing_is_changed(
    browser_page: Page, planner: LivePlanner
) -> None:
    points = open_job(browser_page, planner).points
    points.nth(2).click()
    strip = browser_page.get_by_role("group", name="Confirm the plan")
    expect(strip).to_be_visible()
    expect(points.nth(2)).to_have_attribute("aria-pressed", "true")
    browser_page.keyboard.press("Escape")
    expect(strip).to_be_hidden()
    expect(points.nth(2)).to_be_focused()
    expect(points.nth(2)).to_have_attribute("aria-pressed", "false")
    assert target_of(planner) == "fastest"


def test_what_stands_under_the_pointer_is_told(browser_page: Page, planner: LivePlanner) -> None:
    points = open_job(browser_page, planner).points
    points.last.hover()
    tip = browser_page.locator(f"{PANEL} .frontier-tip")
    for words in ("saves", "gap", "predicted"):
        expect(tip).to_contain_text(words)
    browser_page.mouse.move(0, 0)
    expect(tip).to_be_hidden()


@pytest.mark.parametrize(
    ("name", "figure", "target"),
    [
        ("slowdown", "5", "slowdown:0.05"),
        ("deadline", "0.95", "deadline:0.95"),
        ("least-energy", "", "least-energy"),
    ],
)
def test_a_target_is_chosen_by_name(
    browser_page: Page, planner: LivePlanner, name: str, figure: str, target: str
) -> None:
    open_job(browser_page, planner)
    form = browser_page.locator(f"{PANEL} form")
    form.get_by_label("Target").select_option(name)
    field = form.locator("input")
    expect(field).to_be_visible(visible=figure != "")
    if figure:
        field.fill(figure)
    form.get_by_role("button", name="Plan for it").click()
    progress = browser_page.locator(f"{PANEL} .frontier-progress")
    expect(progress).to_contain_text("Version 2 is made.")
    assert target_of(planner) == target


def test_a_target_that_no_plan_meets_is_refused_in_words(
    browser_page: Page, planner: LivePlanner, page_watch: PageWatch
) -> None:
    page_watch.allow("status of 422")  # what a browser logs of it
    open_job(browser_page, planner)
    form = browser_page.locator(f"{PANEL} form")
    form.get_by_label("Target").select_option("deadline")
    form.locator("input").fill("0.01")
    form.get_by_role("button", name="Plan for it").click()
    progress = browser_page.locator(f"{PANEL} .frontier-progress")
    expect(progress).to_contain_text("No plan for deadline 0.01\u202fs: target")
    expect(progress).to_contain_text("The older plan holds.")


def test_the_target_in_force_again_makes_no_version(
    browser_page: Page, planner: LivePlanner
) -> None:
    open_job(browser_page, planner)
    browser_page.locator(f"{PANEL} form").get_by_role("button", name="Plan for it").click()
    progress = browser_page.locator(f"{PANEL} .frontier-progress")
    expect(progress).to_contain_text("version 1 stays")


def test_where_a_timetable_has_another_target_in_force_that_is_told(
    browser_page: Page, planner: LivePlanner
) -> None:
    now = datetime.now(UTC)
    window = {
        "from_time": (now - timedelta(hours=1)).isoformat(),
        "until_time": (now + timedelta(hours=1)).isoformat(),
        "target": "least-energy",
    }
    path = routes.fill(routes.TIMETABLE, job_id="job")
    planner.http.put(path, json={"windows": [window]}).raise_for_status()
    open_job(browser_page, planner)
    in_force = browser_page.locator(f"{PANEL} form")
    expect(in_force).to_contain_text("target least-energy")
    form = browser_page.locator(f"{PANEL} form")
    form.get_by_label("Target").select_option("slowdown")
    form.locator("input").fill("3")
    form.get_by_role("button", name="Plan for it").click()
    progress = browser_page.locator(f"{PANEL} .frontier-progress")
    expect(progress).to_contain_text("The timetable has least-energy in force")


def test_a_job_without_a_profile_says_what_it_waits_for(
    browser_page: Page, start_planner: StartPlanner
) -> None:
    planner = start_planner()
    planner.put_job().raise_for_status()
    open_job(browser_page, planner)
    panel = browser_page.locator(PANEL)
    expect(panel).to_contain_text("once the job has a profile")
    planner.put_profile().raise_for_status()
    expect(panel.locator(".frontier-point").first).to_be_visible()


def test_another_profile_brings_another_frontier(browser_page: Page, planner: LivePlanner) -> None:
    points = open_job(browser_page, planner).points
    before = points.last.get_attribute("aria-label")
    assert before is not None
    planner.put_profile(profile_csv(forward_energy_j=40.0)).raise_for_status()
    expect(points.last).not_to_have_attribute("aria-label", before)


def test_a_frontier_of_many_instructions_is_solved_when_it_is_asked_for(
    browser_page: Page, page_watch: PageWatch, start_planner: StartPlanner
) -> None:
    """2 stages x 5001 microbatches x 2: above 20000, so that solving may take minutes."""
    page_watch.allow("status of 409")
    asked: list[str] = []
    planner = start_planner(planner=CountingPlanner())
    planner.put_job(num_microbatches=5001).raise_for_status()
    planner.put_profile().raise_for_status()
    planner.put_ranks()

    def refuse(route: Route) -> None:
        asked.append(route.request.url)
        route.fulfill(status=409, json={"detail": "not solved in a test"})

    # It is not solved here: only who asks is of interest.
    browser_page.route("**/frontier?*", refuse)
    open_job(browser_page, planner)
    panel = browser_page.locator(PANEL)
    expect(panel).to_contain_text("may take minutes")
    assert asked == []
    panel.get_by_role("button", name="Compute the frontier").click()
    expect(panel).to_contain_text("not solved in a test")
    assert len(asked) == 1


def test_a_job_that_is_over_takes_no_target(browser_page: Page, planner: LivePlanner) -> None:
    for rank in range(2):
        path = routes.fill(routes.RANK_DEPARTURE, job_id="job", rank=rank)
        planner.http.post(path).raise_for_status()
    overview = routes.fill(routes.JOB_OVERVIEW, job_id="job")
    wait_until(lambda: planner.http.get(overview).json()["state"] == "ended")
    page = open_job(browser_page, planner)
    panel = browser_page.locator(PANEL)
    expect(panel).to_contain_text("The job has ended")
    expect(panel.locator("form")).to_be_hidden()
    panel.get_by_role("button", name="Compute the frontier").click()
    expect(page.points.first).to_be_visible()
    expect(page.points.first).to_be_disabled()
    page.points.first.click(force=True)
    expect(browser_page.get_by_role("group", name="Confirm the plan")).to_be_hidden()


# ------------------------------------------------------------------ the panel alone

# A panel with a planner that is made up: each question waits in `asked` for its answer.
ALONE = """
    const asked = [];
    const ask = (path, body) => new Promise((resolve, reject) => {
        asked.push({ path, target: body?.target, resolve, reject });
    });
    const api = { get: (path) => ask(path), put: ask };
    const place = document.createElement("section");
    document.body.append(place);
    const context = { api, jobId: "job", announce() {}, guard: (action) => action() };
    const panel = new m.FrontierPanel(place, context);
    const rest = () => new Promise((resolve) => setTimeout(resolve));
    const question = (part) => asked.filter(({ path }) => path.includes(part)).at(-1);
    const points = () => [...place.querySelectorAll(".frontier-point")];
    const text = (selector) => place.querySelector(selector).textContent;
    const strip = place.querySelector(".frontier-confirm");
    // As assistive technology clicks: without a place.
    const choose = (index) => points()[index].dispatchEvent(
        new MouseEvent("click", { bubbles: true }),
    );
    const run = () => strip.querySelector(".primary").click();
    panel.update(state);
    question("frontier?").resolve(frontier);
    await rest();
    try {
        return await (async () => { BODY })();
    } finally {
        panel.destroy();
        place.remove();
    }
"""


def on_panel(modules: Modules, body: str, **values: object) -> Any:  # noqa: ANN401 - JSON
    """Return what a function body returns that has a panel with the frontier before it."""
    values = {"state": state(), "frontier": FRONTIER, **values}
    found = modules.run("frontier_panel", ALONE.replace("BODY", body), **values)
    return json.loads(json.dumps(found).replace("\\u202f", " "))


def test_a_target_that_was_put_is_no_failure_where_the_timetable_cannot_be_asked(
    modules: Modules,
) -> None:
    body = """
        choose(1);
        run();
        question("target").resolve({ newest_version: 4 });
        await rest();
        question("timetable").reject(new Error("away"));
        await rest();
        const progress = place.querySelector(".frontier-progress");
        return [progress.textContent, progress.className.includes("problem"), strip.hidden];
    """
    words = "Version 4 is made. It waits until 2 ranks have it."
    assert on_panel(modules, body) == [words, False, True]


def test_a_plan_that_is_chosen_while_another_is_planned_can_be_run_after_it(
    modules: Modules,
) -> None:
    body = """
        const found = [];
        const look = () => found.push([
            strip.hidden,
            strip.querySelector(".primary").disabled,
            document.activeElement.textContent,
        ]);
        choose(0);
        run();
        choose(1);
        look();
        run();
        question("target").resolve({ newest_version: 4 });
        await rest();
        question("timetable").resolve({ timetable: null, current_target: "deadline:2" });
        await rest();
        look();
        run();
        return [found, asked.map(({ target }) => target).filter(Boolean)];
    """
    found, targets = on_panel(modules, body)
    assert found == [[False, True, "Cancel"], [False, False, "Cancel"]]
    assert targets == ["deadline:2", "deadline:2.2"]


def test_a_frontier_of_before_a_change_says_so_and_gives_no_plan(modules: Modules) -> None:
    body = """
        const found = [];
        const look = () => found.push([
            text(".frontier-message"), points()[0].ariaDisabled, strip.hidden,
        ]);
        const note = place.querySelector("form").hidden;
        choose(0);
        look();
        panel.update(changed);
        look();
        choose(1);
        look();
        question("frontier?").reject(new Error("away"));
        await rest();
        look();
        panel.update(changed);
        question("frontier?").resolve(frontier);
        await rest();
        choose(1);
        look();
        return [found, note];
    """
    other = state([summary(4, predicted={**PREDICTED, "baseline_energy_j": 1001.0})])
    found, is_form_hidden = on_panel(modules, body, changed=other)
    lead = "The job has changed since this frontier was computed. "
    assert found == [
        ["", None, False],
        [f"{lead}Computing the frontier\u2026", "true", True],
        [f"{lead}Computing the frontier\u2026", "true", True],
        [f"{lead}The frontier could not be computed: The planner does not respond", "true", True],
        ["", None, False],
    ]
    assert not is_form_hidden
