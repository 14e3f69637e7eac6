"""The panels of a job's page: choosing from the frontier, reading and moving the timeline."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, Route, expect
from tests.browser.dashboard import Dashboard, wait_in
from tests.browser.fixtures import StartPlanner
from tests.browser.jobs import acknowledge, depart, put_running_job, put_steps
from tests.browser.page_watch import PageWatch
from tests.planner.live import LivePlanner
from tests.planner.patience import wait_until
from tests.planner.samples import CountingPlanner, profile_csv

from flyball_wire import routes

# Style of the minimap's frame: the visible part.
SHOWN = re.compile(r"left: ([\d.]+)%; width: ([\d.]+)%")
# Longer than SCROLL_LASTS_MS of timeline_view.js.
SCROLL_LASTS_MS = 300


@pytest.fixture
def planner(start_planner: StartPlanner) -> LivePlanner:
    """Planner with `job` on version 1."""
    planner = start_planner()
    put_running_job(planner)
    return planner


def open_job(page: Page, planner: LivePlanner) -> Dashboard:
    return Dashboard(page, str(planner.http.base_url)).open_job("job")


def test_the_figures_name_the_steps_that_did_not_run_as_planned(
    browser_page: Page, planner: LivePlanner
) -> None:
    put_steps(planner, 2, 12)
    put_steps(planner, 12, 32, time_s=1.8, num_overruns=3)
    open_job(browser_page, planner)
    remarks = browser_page.locator(".deviations li")
    expect(remarks.first).to_contain_text("No step at the highest clocks was measured")
    expect(remarks.nth(1)).to_contain_text("In 20 of 29 counted steps")
    expect(remarks.nth(1)).to_contain_text("9 other steps on the plan had none.")
    expect(remarks.last).to_contain_text("1 step left out: first after a change of version")


def target_of(planner: LivePlanner) -> str:
    """Return the job's own target."""
    path = routes.fill(routes.JOB, job_id="job")
    return str(planner.http.get(path).json()["registration"]["target"])


def plan_for(page: Page, target: str, figure: str = "") -> Locator:
    """Name a target in the form; return the progress."""
    form = page.locator("#panel-frontier form")
    form.get_by_label("Target").select_option(target)
    field = form.locator("input")
    expect(field).to_be_visible(visible=figure != "")
    if figure:
        field.fill(figure)
    form.get_by_role("button", name="Plan for it").click()
    return page.locator("#panel-frontier .frontier-progress")


def test_a_finger_beside_the_points_chooses_one_and_goes_to_its_neighbours(
    browser: Browser, planner: LivePlanner
) -> None:
    context = browser.new_context(
        viewport={"width": 390, "height": 800}, has_touch=True, is_mobile=True
    )
    page = context.new_page()
    dashboard = open_job(page, planner)
    strip = page.get_by_role("group", name="Confirm the plan")
    page.locator("#panel-frontier .fold").click()
    dashboard.points.last.wait_for()
    page.locator("#panel-frontier form").scroll_into_view_if_needed()  # below the points
    box = dashboard.points.last.bounding_box()
    assert box is not None
    page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + 38)
    expect(dashboard.points.last).to_have_attribute("aria-pressed", "true")
    expect(strip.get_by_role("button", name="Slower plan")).to_have_count(0)
    strip.get_by_role("button", name="Faster plan").click()
    expect(dashboard.points.nth(-2)).to_have_attribute("aria-pressed", "true")
    strip.get_by_role("button", name="Slower plan").click()
    expect(dashboard.points.last).to_have_attribute("aria-pressed", "true")
    context.close()


# Events reach the page only while `window.areEventsHeld` is not set.
HOLD_EVENTS = """
const ownFetch = window.fetch;
const untilFree = async () => {
  while (window.areEventsHeld) await new Promise((done) => setTimeout(done, 20));
};
window.fetch = async (...given) => {
  const answer = await ownFetch(...given);
  if (!answer.url.includes("/events")) return answer;
  const reader = answer.body.getReader();
  const pull = async (controller) => {
    const { done, value } = await reader.read();
    await untilFree();
    done ? controller.close() : controller.enqueue(value);
  };
  return new Response(new ReadableStream({ pull }), answer);
};
"""


def test_a_target_is_chosen_by_name(
    browser_page: Page, page_watch: PageWatch, planner: LivePlanner
) -> None:
    browser_page.add_init_script(HOLD_EVENTS)
    open_job(browser_page, planner).points.first.wait_for()
    targets = (("slowdown", "5", "slowdown:5%"), ("deadline", "0.95", "deadline:0.95"))
    for version, (name, figure, target) in enumerate([*targets, ("fastest", "", "fastest")], 2):
        progress = plan_for(browser_page, name, figure)
        expect(progress).to_contain_text(f"Version {version} is made.")
        assert target_of(planner) == target
    expect(plan_for(browser_page, "fastest")).to_contain_text("version 4 stays")
    page_watch.allow("status of 422")
    expect(plan_for(browser_page, "deadline", "0.01")).to_contain_text(
        re.compile("No plan for deadline 0.01\u202fs: target.*The older plan holds.")
    )
    # Asked twice, the second time before the page has seen the version.
    browser_page.evaluate("window.areEventsHeld = true")
    expect(plan_for(browser_page, "slowdown", "5")).to_contain_text("Version 5 is made.")
    expect(plan_for(browser_page, "slowdown", "5")).to_contain_text("version 5 stays")


def test_a_target_of_the_timetable_in_force_is_named(
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
    wait_until(lambda: acknowledge_newest(planner) == 2)
    open_job(browser_page, planner)
    expect(browser_page.locator("#panel-frontier form")).to_contain_text("target least-energy")
    progress = plan_for(browser_page, "slowdown", "3")
    expect(progress).to_contain_text("The timetable has least-energy in force")


def acknowledge_newest(planner: LivePlanner) -> int:
    """All ranks acknowledge the newest version; return it."""
    path = routes.fill(routes.JOB, job_id="job")
    version = int(planner.http.get(path).json()["newest_version"])
    acknowledge(planner, version)
    return version


def test_a_target_that_a_straggler_makes_unreachable_is_named(
    browser_page: Page, planner: LivePlanner
) -> None:
    path = routes.fill(routes.TARGET, job_id="job")
    planner.http.put(path, json={"target": "deadline:0.91"}).raise_for_status()
    acknowledge(planner, 2)
    dashboard = open_job(browser_page, planner)
    expect(dashboard.fact("Target")).to_have_text("deadline 0.91\u202fs")
    straggler = {"rank": 1, "slowdown": 1.15}
    planner.http.post(routes.fill(routes.STRAGGLERS, job_id="job"), json=straggler)
    wait_until(lambda: acknowledge_newest(planner) > 2)
    nearest = "deadline 0.99\u202fs, nearest to deadline 0.91\u202fs"
    expect(dashboard.fact("Target")).to_have_text(nearest)
    expect(browser_page.locator("#panel-frontier form")).to_contain_text(nearest)
    browser_page.locator(".notes summary").click()
    notes = browser_page.get_by_role("list", name="Notes")
    expect(notes).to_contain_text("target deadline:0.91 cannot be met")
    expect(dashboard.open().row("job")).to_contain_text(nearest)


def test_the_frontier_and_timeline_appear_with_the_profile(
    browser_page: Page, start_planner: StartPlanner
) -> None:
    planner = start_planner()
    planner.put_job().raise_for_status()
    points = open_job(browser_page, planner).points
    expect(browser_page.locator("#panel-frontier")).to_contain_text("once the job has a profile")
    timeline = browser_page.locator("#panel-timeline")
    expect(timeline).to_contain_text("There is no plan yet")
    planner.put_profile().raise_for_status()
    expect(points.first).to_be_visible()
    timeline.scroll_into_view_if_needed()
    expect(timeline.get_by_role("application")).to_be_visible()
    before = points.last.get_attribute("aria-label")
    assert before is not None
    planner.put_profile(profile_csv(forward_energy_j=40.0)).raise_for_status()
    expect(points.last).not_to_have_attribute("aria-label", before)


def test_a_frontier_of_many_instructions_is_computed_on_request(
    browser_page: Page, page_watch: PageWatch, start_planner: StartPlanner
) -> None:
    """2 stages x 251 microbatches x 2: more than 1000."""
    page_watch.allow("status of 409")
    asked: list[str] = []
    planner = start_planner(planner=CountingPlanner())
    planner.put_job(num_microbatches=251).raise_for_status()
    planner.put_profile().raise_for_status()
    planner.put_ranks()

    def refuse(route: Route) -> None:
        asked.append(route.request.url)
        route.fulfill(status=409, json={"detail": "not solved in a test"})

    browser_page.route("**/frontier?*", refuse)
    open_job(browser_page, planner)
    panel = browser_page.locator("#panel-frontier")
    expect(panel).to_contain_text("may take minutes")
    assert asked == []
    panel.get_by_role("button", name="Compute the frontier").click()
    expect(panel).to_contain_text("not solved in a test")
    assert len(asked) == 1


def test_a_job_that_is_over_takes_no_target(browser_page: Page, planner: LivePlanner) -> None:
    depart(planner)
    overview = routes.fill(routes.JOB_OVERVIEW, job_id="job")
    wait_until(lambda: planner.http.get(overview).json()["state"] == "ended")
    page = open_job(browser_page, planner)
    panel = browser_page.locator("#panel-frontier")
    expect(panel).to_contain_text("The job has ended")
    expect(panel.locator("form")).to_be_hidden()
    panel.get_by_role("button", name="Compute the frontier").click()
    expect(page.points.first).to_be_disabled()
    page.points.first.click(force=True)
    expect(browser_page.get_by_role("group", name="Confirm the plan")).to_be_hidden()


# ------------------------------------------------------------------ timeline


@pytest.fixture
def surface(browser_page: Page, planner: LivePlanner) -> Locator:
    """The timeline of the job's page, drawn."""
    Dashboard(browser_page, str(planner.http.base_url)).open_job("job").wait_for_pictures()
    surface = browser_page.get_by_role("application")
    expect(surface).to_be_visible()
    return surface


def shown(page: Page) -> tuple[float, float]:
    """Return begin and length of the visible part in per cent of all."""
    found = SHOWN.search(page.locator(".timeline-map-frame").get_attribute("style") or "")
    assert found
    return float(found[1]), float(found[2])


def shown_once(page: Page, is_so: Callable[[float, float], bool]) -> tuple[float, float]:
    """Return `shown` once it is so: a change is drawn with the next frame."""
    wait_in(page, lambda: is_so(*shown(page)))
    return shown(page)


def middle_of(surface: Locator) -> tuple[float, float]:
    """Return the middle of the plan's rows on the screen."""
    surface.scroll_into_view_if_needed()
    box = surface.locator("canvas").first.bounding_box()
    assert box
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def test_the_timeline_is_read_in_words_by_keys_and_by_pointer(
    browser_page: Page, surface: Locator
) -> None:
    expect(surface).to_have_attribute("aria-label", re.compile("^Plan, version 1: .*predicted"))
    panel = browser_page.locator("#panel-timeline")
    expect(panel).to_contain_text("version 1 (active), 1f1b, 2 stages, 2 microbatches; predicted")
    expect(panel).to_contain_text("emulated GPUs")
    expect(panel.locator(".timeline-words")).to_contain_text("as long as at the highest clocks")
    tip = panel.locator(".timeline-tip")
    announced = browser_page.locator("#announcer")
    surface.focus()
    for keys, words in (
        (["Enter"], "stage 0: forward of microbatch 0"),
        (["End"], "stage 0: backward of microbatch 1"),
        (["Home", "ArrowRight"], "stage 0: forward of microbatch 1"),
        (["ArrowDown"], "stage 1: "),
        (["ArrowDown"], "stage 0: "),
    ):
        for key in keys:
            browser_page.keyboard.press(key)
        expect(tip).to_contain_text(words)
        expect(announced).to_contain_text(words)
    expect(tip).to_contain_text("1410\u202fMHz")
    browser_page.keyboard.press("Escape")
    expect(tip).to_be_hidden()
    surface.scroll_into_view_if_needed()
    box = surface.locator("canvas").first.bounding_box()
    assert box
    # The first row's first box begins right of the row names.
    browser_page.mouse.move(box["x"] + 100, box["y"] + 16 + 22)
    expect(tip).to_contain_text("microbatch 0")
    expect(panel.locator(".timeline-frame")).to_be_visible()
    browser_page.mouse.move(0, 0)
    expect(tip).to_be_hidden()
    panel.locator("summary").click()
    rows = panel.locator("details tbody tr")
    expect(rows).to_have_count(2)
    # 2 x (0.1 s + 0.2 s) at the highest clocks.
    expect(rows.first).to_contain_text("600.0\u202fms")
    expect(rows.first).to_contain_text("1410\u202fMHz")
    browser_page.locator("#panel-frontier .frontier-point").last.hover()
    for words in ("saves", "gap", "predicted"):
        expect(browser_page.locator("#panel-frontier .frontier-tip")).to_contain_text(words)
    browser_page.mouse.move(0, 0)
    expect(browser_page.locator("#panel-frontier .frontier-tip")).to_be_hidden()


def test_keys_and_the_wheel_zoom_and_dragging_pans(browser_page: Page, surface: Locator) -> None:
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

    def is_zoomed() -> bool:
        browser_page.mouse.move(*middle_of(surface))
        # While the page is scrolled the wheel goes on scrolling it: then it is turned once more.
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


def test_another_version_can_be_shown(
    browser_page: Page, planner: LivePlanner, surface: Locator
) -> None:
    path = routes.fill(routes.TARGET, job_id="job")
    planner.http.put(path, json={"target": "least-energy"}).raise_for_status()
    panel = browser_page.locator("#panel-timeline")
    browser_page.get_by_role("button", name="Show version 2 in the timeline").click()
    expect(panel).to_contain_text("version 2 (newest)")
    panel.get_by_role("button", name="Follow the active version").click()
    expect(panel).to_contain_text("version 1 (active)")
    acknowledge(planner, 2, 20)
    expect(panel).to_contain_text("version 2 (active)")
    expect(surface).to_have_attribute("aria-label", re.compile("^Plan, version 2"))
    planner.put_profile(profile_csv(forward_energy_j=40.0)).raise_for_status()
    expect(panel.locator(".timeline-warning")).to_contain_text("The profile has changed")


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
