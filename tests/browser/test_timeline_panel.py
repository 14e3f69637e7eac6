"""The timeline on a job's page: versions, boxes read by keys and pointer, zoom, small screens."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import BrowserContext, Locator, Page, expect
from tests.browser.dashboard import Dashboard
from tests.browser.fixtures import StartPlanner
from tests.planner.live import LivePlanner
from tests.planner.patience import wait_until
from tests.planner.samples import profile_csv

from flyball_wire import routes

PANEL = "#panel-timeline"
# A frame of the map: what of the iteration is shown.
SHOWN = re.compile(r"left: ([\d.]+)%; width: ([\d.]+)%")
# Longer than timeline_view.js takes the page to go on scrolling.
SCROLL_LASTS_MS = 300


@pytest.fixture
def planner(start_planner: StartPlanner) -> LivePlanner:
    """With a job of two emulated ranks on version 1."""
    planner = start_planner()
    planner.put_planned_job()
    for rank in range(2):
        planner.acknowledge(rank, 1, 10).raise_for_status()
    return planner


@pytest.fixture
def surface(browser_page: Page, planner: LivePlanner) -> Locator:
    """The timeline of the job's page, drawn."""
    Dashboard(browser_page, str(planner.http.base_url)).open_job("job").wait_for_pictures()
    surface = browser_page.get_by_role("application")
    expect(surface).to_be_visible()
    return surface


def shown(page: Page) -> tuple[float, float]:
    """Return where the shown part begins and how long it is, in per cent of all."""
    found = SHOWN.search(page.locator(".timeline-map-frame").get_attribute("style") or "")
    assert found
    return float(found[1]), float(found[2])


def shown_once(page: Page, is_so: Callable[[float, float], bool]) -> tuple[float, float]:
    """As `shown`, once it is so: a change is drawn with the browser's next frame."""

    def look() -> bool:
        page.wait_for_timeout(20)
        return is_so(*shown(page))

    wait_until(look)
    return shown(page)


def middle_of(surface: Locator) -> tuple[float, float]:
    """Of the plan's rows, on the screen."""
    surface.scroll_into_view_if_needed()
    box = surface.locator("canvas").first.bounding_box()
    assert box
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def test_plan_and_baseline_are_told_in_words_and_as_predicted(
    browser_page: Page, surface: Locator
) -> None:
    expect(surface).to_have_attribute("aria-label", re.compile("^Plan, version 1: .*predicted"))
    panel = browser_page.locator(PANEL)
    expect(panel).to_contain_text("version 1 (active), 1f1b, 2 stages, 2 microbatches; predicted")
    expect(panel).to_contain_text("emulated GPUs")
    expect(panel.locator(".timeline-words")).to_contain_text("as long as at the highest clocks")


def test_boxes_are_read_by_keys_from_the_plan_into_the_baseline(
    browser_page: Page, surface: Locator
) -> None:
    tip = browser_page.locator(f"{PANEL} .timeline-tip")
    announced = browser_page.locator("#announcer")
    surface.focus()
    browser_page.keyboard.press("Enter")
    expect(tip).to_contain_text("stage 0: forward of microbatch 0")
    expect(announced).to_contain_text("stage 0: forward of microbatch 0")
    browser_page.keyboard.press("End")
    expect(tip).to_contain_text("stage 0: backward of microbatch 1")
    browser_page.keyboard.press("Home")
    browser_page.keyboard.press("ArrowRight")
    expect(tip).to_contain_text("stage 0: forward of microbatch 1")
    browser_page.keyboard.press("ArrowDown")
    expect(tip).to_contain_text("stage 1: ")
    browser_page.keyboard.press("ArrowDown")
    expect(tip).to_contain_text("stage 0: ")
    expect(tip).to_contain_text("1410\u202fMHz")
    browser_page.keyboard.press("Escape")
    expect(tip).to_be_hidden()


def test_keys_zoom_pan_and_show_all(browser_page: Page, surface: Locator) -> None:
    surface.focus()
    frame = browser_page.locator(".timeline-map-frame")
    expect(frame).to_be_hidden()
    browser_page.keyboard.press("+")
    browser_page.keyboard.press("+")
    expect(frame).to_be_visible()
    zoomed = pytest.approx(100 / 1.5**2, abs=0.1)
    start, width = shown_once(browser_page, lambda _, width: width == zoomed)
    browser_page.keyboard.press("ArrowRight")
    panned = pytest.approx(start + 0.15 * width, abs=0.1)
    shown_once(browser_page, lambda start, _: start == panned)
    browser_page.keyboard.press("0")
    expect(frame).to_be_hidden()


def test_the_wheel_zooms_at_the_pointer_and_dragging_pans(
    browser_page: Page, surface: Locator
) -> None:
    frame = browser_page.locator(".timeline-map-frame")

    def is_zoomed() -> bool:
        browser_page.mouse.move(*middle_of(surface))
        # While the page is being scrolled the wheel is the page's: then it is turned once more.
        browser_page.wait_for_timeout(SCROLL_LASTS_MS)
        browser_page.mouse.wheel(0, -600)
        browser_page.wait_for_timeout(50)
        return frame.is_visible()

    wait_until(is_zoomed)
    start, _ = shown(browser_page)
    across, down = middle_of(surface)
    browser_page.mouse.down()
    browser_page.mouse.move(across - 200, down, steps=4)
    browser_page.mouse.up()
    shown_once(browser_page, lambda now, _: now > start)


def test_the_box_under_the_pointer_is_framed_and_told(browser_page: Page, surface: Locator) -> None:
    surface.scroll_into_view_if_needed()
    box = surface.locator("canvas").first.bounding_box()
    assert box
    # The first row's first box begins right of the row names.
    browser_page.mouse.move(box["x"] + 100, box["y"] + 16 + 22)
    expect(browser_page.locator(f"{PANEL} .timeline-tip")).to_contain_text("microbatch 0")
    expect(browser_page.locator(f"{PANEL} .timeline-frame")).to_be_visible()
    browser_page.mouse.move(0, 0)
    expect(browser_page.locator(f"{PANEL} .timeline-tip")).to_be_hidden()


def test_a_version_of_the_history_is_shown_and_left_again(
    browser_page: Page, planner: LivePlanner, surface: Locator
) -> None:
    path = routes.fill(routes.TARGET, job_id="job")
    planner.http.put(path, json={"target": "least-energy"}).raise_for_status()
    panel = browser_page.locator(PANEL)
    browser_page.get_by_role("button", name="Show version 2 in the timeline").click()
    expect(panel).to_contain_text("version 2 (newest)")
    panel.get_by_role("button", name="Follow the active version").click()
    expect(panel).to_contain_text("version 1 (active)")
    for rank in range(2):
        planner.acknowledge(rank, 2, 20).raise_for_status()
    expect(panel).to_contain_text("version 2 (active)")
    expect(surface).to_have_attribute("aria-label", re.compile("^Plan, version 2"))


def test_where_the_profile_has_changed_since_the_plan_that_is_said(
    browser_page: Page, planner: LivePlanner, surface: Locator
) -> None:
    expect(surface).to_be_visible()
    planner.put_profile(profile_csv(forward_energy_j=40.0)).raise_for_status()
    panel = browser_page.locator(PANEL)
    expect(panel.locator(".timeline-warning")).to_contain_text("The profile has changed")


def test_a_job_without_a_plan_says_what_it_waits_for(
    browser_page: Page, start_planner: StartPlanner
) -> None:
    planner = start_planner()
    planner.put_job().raise_for_status()
    Dashboard(browser_page, str(planner.http.base_url)).open_job("job")
    panel = browser_page.locator(PANEL)
    expect(panel).to_contain_text("There is no plan yet")
    planner.put_profile().raise_for_status()
    expect(panel.get_by_role("application")).to_be_visible()


def test_the_figures_of_each_stage_are_a_table_too(browser_page: Page, surface: Locator) -> None:
    expect(surface).to_be_visible()
    table = browser_page.locator(f"{PANEL} details")
    table.locator("summary").click()
    rows = table.locator("tbody tr")
    expect(rows).to_have_count(2)
    # 2 x (0.1 s + 0.2 s) at the highest clocks.
    expect(rows.first).to_contain_text("600.0\u202fms")
    expect(rows.first).to_contain_text("1410\u202fMHz")


def test_on_a_narrow_screen_nothing_makes_the_page_wider(
    browser_page: Page, planner: LivePlanner
) -> None:
    browser_page.set_viewport_size({"width": 360, "height": 740})
    page = Dashboard(browser_page, str(planner.http.base_url)).open_job("job")
    page.wait_for_pictures()
    for panel in (PANEL, "#panel-frontier"):
        browser_page.locator(f"{panel} summary").click()
    assert page.overflow_px() == 0


def test_two_fingers_zoom_and_a_tap_reads_a_box(
    browser_page: Page, surface: Locator, browser_context: BrowserContext
) -> None:
    surface.scroll_into_view_if_needed()
    box = surface.locator("canvas").first.bounding_box()
    assert box
    x, y = box["x"] + 400, box["y"] + 16 + 22
    touch = browser_context.new_cdp_session(browser_page)

    def send(kind: str, *places_x: float) -> None:
        points = [{"x": at, "y": y, "id": index} for index, at in enumerate(places_x)]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    send("touchStart", box["x"] + 100)
    send("touchEnd")
    expect(browser_page.locator("#announcer")).to_contain_text("stage 0: forward of microbatch 0")
    send("touchStart", x - 20, x + 20)
    for apart in (30, 40, 50):
        send("touchMove", x - apart, x + apart)
    send("touchEnd")
    expect(browser_page.locator(".timeline-map-frame")).to_be_visible()
    # From 40 px apart to 100 px.
    apart_twice_and_a_half = pytest.approx(100 * 40 / 100, abs=1)
    shown_once(browser_page, lambda _, width: width == apart_twice_and_a_half)


def test_nothing_of_an_earlier_run_stays_when_a_job_begins_anew(
    browser_page: Page, planner: LivePlanner, surface: Locator
) -> None:
    expect(surface).to_be_visible()
    for rank in range(2):
        path = routes.fill(routes.RANK_DEPARTURE, job_id="job", rank=rank)
        planner.http.post(path).raise_for_status()
    planner.put_job(num_stages=3, num_ranks=3).raise_for_status()
    expect(browser_page.locator(PANEL)).to_contain_text("There is no plan yet")
    expect(surface).to_be_hidden()
    frontier = browser_page.locator("#panel-frontier")
    expect(frontier).to_contain_text("once the job has a profile")
    expect(frontier.locator(".frontier-chart")).to_be_hidden()
