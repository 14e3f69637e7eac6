"""The frontier on a job's page: choosing a plan, naming a target, what is not solved unasked."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Page, expect
from tests.browser.dashboard import PATIENCE_MS, Dashboard
from tests.browser.page_watch import PageWatch
from tests.planner.live import LivePlanner, live_planner, wait_until
from tests.planner.samples import CountingPlanner, profile_csv

from flyball_client import routes

PANEL = "#panel-frontier"


@pytest.fixture(autouse=True)
def patience() -> Iterator[None]:
    """What is expected may take its time on a busy machine."""
    expect.set_options(timeout=PATIENCE_MS)
    yield
    expect.set_options(timeout=None)


@pytest.fixture
def planner() -> Iterator[LivePlanner]:
    """With a job of two emulated ranks on version 1."""
    with live_planner() as planner:
        planner.put_planned_job()
        acknowledge(planner, 1)
        yield planner


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
    expect(progress).to_contain_text("No plan for deadline:0.01: target")
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


def test_a_job_without_a_profile_says_what_it_waits_for(browser_page: Page) -> None:
    with live_planner() as planner:
        planner.put_job().raise_for_status()
        open_job(browser_page, planner)
        panel = browser_page.locator(PANEL)
        expect(panel).to_contain_text("as soon as the job has a profile")
        planner.put_profile().raise_for_status()
        expect(panel.locator(".frontier-point").first).to_be_visible()


def test_another_profile_brings_another_frontier(browser_page: Page, planner: LivePlanner) -> None:
    points = open_job(browser_page, planner).points
    before = points.last.get_attribute("aria-label")
    assert before is not None
    planner.put_profile(profile_csv(forward_energy_j=40.0)).raise_for_status()
    expect(points.last).not_to_have_attribute("aria-label", before)


def test_a_frontier_of_many_instructions_is_solved_when_it_is_asked_for(
    browser_page: Page,
) -> None:
    """2 stages x 5001 microbatches x 2: above 20000, so that solving may take minutes."""
    asked: list[str] = []
    with live_planner(planner=CountingPlanner()) as planner:
        planner.put_job(num_microbatches=5001).raise_for_status()
        planner.put_profile().raise_for_status()
        planner.put_ranks()
        browser_page.on("request", lambda request: asked.append(request.url))
        # It is not solved here: only who asks is of interest.
        browser_page.route("**/frontier?*", lambda route: route.abort())
        page = open_job(browser_page, planner)
        panel = page.page.locator(PANEL)
        expect(panel).to_contain_text("may take minutes")
        assert not any("/frontier?" in url for url in asked)


def test_a_job_that_is_over_takes_no_target(browser_page: Page, planner: LivePlanner) -> None:
    for rank in range(2):
        path = routes.fill(routes.RANK_DEPARTURE, job_id="job", rank=rank)
        planner.http.post(path).raise_for_status()
    overview = routes.fill(routes.JOB_OVERVIEW, job_id="job")
    wait_until(lambda: planner.http.get(overview).json()["state"] == "ended")
    page = open_job(browser_page, planner)
    panel = browser_page.locator(PANEL)
    expect(panel).to_contain_text("The job is over")
    expect(panel.locator("form")).to_be_hidden()
    panel.get_by_role("button", name="Find the frontier").click()
    expect(page.points.first).to_be_visible()
    expect(page.points.first).to_be_disabled()
    page.points.first.click(force=True)
    expect(browser_page.get_by_role("group", name="Confirm the plan")).to_be_hidden()
