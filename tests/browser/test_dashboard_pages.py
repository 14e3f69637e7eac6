"""The dashboard's pages as a whole: tokens, foreign texts, jobs that come and go, large ones."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect
from tests.browser.dashboard import Dashboard
from tests.browser.fixtures import StartPlanner
from tests.browser.jobs import acknowledge, depart, put_steps
from tests.browser.page_watch import PageWatch
from tests.planner.listening import listening
from tests.planner.live import LivePlanner
from tests.planner.samples import job_record, profile_csv, rank_registration

from flyball_server.http.routes.dashboard import ASSETS
from flyball_wire import routes

OPERATOR = "the-operators-own"
# Shown as text, never interpreted.
MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>"
POLL = "poll_ms: 5_000"


@pytest.fixture
def planner(start_planner: StartPlanner) -> LivePlanner:
    return start_planner()


@pytest.fixture
def guarded(start_planner: StartPlanner) -> LivePlanner:
    """Planner that requires tokens, with jobs `job` and `other`."""
    # A token is checked with each stream.
    live = start_planner(token=OPERATOR, max_wait_s=1.0)
    live.http.headers["Flyball-Token"] = OPERATOR
    for job_id in ("job", "other"):
        live.put_planned_job(job_id)
    return live


def dashboard_of(planner: LivePlanner, page: Page) -> Dashboard:
    return Dashboard(page, str(planner.http.base_url))


# ------------------------------------------------------------------ tokens


def test_a_token_is_requested_refused_and_accepted(
    browser_page: Page, page_watch: PageWatch, guarded: LivePlanner
) -> None:
    page_watch.allow("status of 401")
    page = browser_page
    dashboard = dashboard_of(guarded, page).open()
    expect(dashboard.token).to_be_focused()
    problem = page.locator("#token-problem")
    for token, words in (("two words", "no spaces"), ("", "Enter a token.")):
        dashboard.give_token(token)
        expect(problem).to_contain_text(words)
    page.keyboard.press("Escape")
    expect(page.get_by_role("alert")).to_contain_text("Without one it shows no job.")
    expect(dashboard.connection).to_be_hidden()  # nothing is wrong with the planner
    assert page.evaluate("sessionStorage.length + localStorage.length") == 0
    page.get_by_role("button", name="Enter a token").click()
    dashboard.give_token("not-this-one")
    expect(problem).to_contain_text("does not accept this token")
    assert dashboard.rows.count() == 0
    dashboard.give_token(f" {OPERATOR} ")  # as it was copied
    expect(dashboard.rows).to_have_count(2)
    expect(dashboard.token).to_be_hidden()
    # It is kept for this tab, and sent in a header: never in an address.
    page.reload()
    expect(dashboard.rows).to_have_count(2)
    assert OPERATOR not in page.url
    assert page.evaluate("Object.keys(sessionStorage)") == ["flyball-token /"]
    assert page.evaluate("document.cookie + JSON.stringify(localStorage)") == "{}"
    page.get_by_role("button", name="Forget token").click()
    expect(dashboard.token).to_be_visible()
    expect(dashboard.rows).to_have_count(0)


def test_a_jobs_token_shows_that_job_until_it_is_revoked(
    browser_page: Page, page_watch: PageWatch, guarded: LivePlanner
) -> None:
    page_watch.allow("status of 401", "status of 403")
    created = guarded.http.post(routes.TOKENS, json={"job_id": "job"}).json()
    dashboard = dashboard_of(guarded, browser_page).open()
    dashboard.give_token(created["token"])
    expect(dashboard.rows).to_have_count(1)
    dashboard.open_job("job")
    dashboard.wait_for_pictures()
    dashboard.points.last.click()
    browser_page.get_by_role("button", name="Run this plan").click()
    expect(browser_page.get_by_text("Version 2 is made")).to_be_visible()
    dashboard.open_job("other")
    expect(browser_page.get_by_role("heading", name="does not open this page")).to_be_visible()
    dashboard.open()
    expect(dashboard.rows).to_have_count(1)
    path = routes.fill(routes.TOKEN, token_id=created["token_id"])
    guarded.http.delete(path).raise_for_status()
    expect(browser_page.get_by_text("does not accept this token")).to_be_visible()


def test_a_read_only_token_shows_the_frontier_and_offers_no_change(
    browser_page: Page, page_watch: PageWatch, guarded: LivePlanner
) -> None:
    page_watch.allow("status of 401")
    created = guarded.http.post(routes.TOKENS, json={"read_only": True}).json()
    dashboard = dashboard_of(guarded, browser_page).open()
    dashboard.give_token(created["token"])
    expect(dashboard.rows).to_have_count(2)
    dashboard.open_job("job")
    dashboard.wait_for_pictures()
    panel = browser_page.locator("#panel-frontier")
    expect(panel.get_by_text("This token is read-only")).to_be_visible()
    expect(panel.get_by_text("choose one to run it")).to_be_hidden()
    expect(panel.locator("form")).to_be_hidden()
    expect(dashboard.points.last).to_be_disabled()
    browser_page.get_by_role("button", name="Forget token").click()
    dashboard.give_token(OPERATOR)
    expect(panel.locator("form")).to_be_visible()
    expect(panel.get_by_text("This token is read-only")).to_be_hidden()


# ------------------------------------------------------------------ foreign texts


def test_foreign_names_and_addresses_are_shown_as_text(
    browser_page: Page, page_watch: PageWatch, planner: LivePlanner
) -> None:
    page_watch.allow("status of 404", "status of 422")
    planner.put_planned_job()
    path = routes.fill(routes.RANK, job_id="job", rank=1)
    planner.http.put(path, json=rank_registration(1, client_version=MARKUP)).raise_for_status()
    dashboard = dashboard_of(planner, browser_page).open_job("job")
    # The notes name the versions of Flyball where ranks run several.
    browser_page.locator(".notes summary").click()
    expect(browser_page.get_by_role("list", name="Notes")).to_contain_text(MARKUP)
    for job_id in ("nobody", MARKUP.replace("<", "%3C").replace(">", "%3E"), "%", "a%2Fb"):
        dashboard.open_job(job_id)
        expect(browser_page.locator("main [role=alert]")).to_be_visible()
        assert browser_page.locator("img[src=x], main script").count() == 0


# ------------------------------------------------------------------ jobs come and go


def test_the_first_job_appears_and_a_deleted_one_goes(
    browser_page: Page, page_watch: PageWatch, planner: LivePlanner
) -> None:
    page_watch.allow("status of 404")
    dashboard = dashboard_of(planner, browser_page).open()
    expect(browser_page.get_by_role("heading", name="No job here yet")).to_be_visible()
    planner.put_job().raise_for_status()
    expect(dashboard.row("job")).to_contain_text("awaiting-profile")
    planner.put_profile().raise_for_status()
    expect(dashboard.row("job")).to_contain_text("planned")
    browser_page.get_by_role("link", name="job", exact=True).click()
    # Deleted before its page has read it, it would be a job that never was.
    expect(browser_page.locator("#panel-job")).to_contain_text("planned")
    planner.http.delete(routes.fill(routes.JOB, job_id="job")).raise_for_status()
    expect(browser_page.get_by_text("has been deleted on this planner")).to_be_visible()
    browser_page.get_by_role("link", name="All jobs", exact=True).click()
    expect(browser_page.get_by_role("heading", name="No job here yet")).to_be_visible()


def test_a_job_that_cannot_be_planned_says_why(browser_page: Page, planner: LivePlanner) -> None:
    planner.put_job(target="power:1").raise_for_status()
    planner.put_profile()
    problem = planner.http.get(routes.fill(routes.JOB, job_id="job")).json()["problem"]
    assert problem
    dashboard = dashboard_of(planner, browser_page).open()
    expect(dashboard.row("job")).to_contain_text(problem)
    dashboard.open_job("job")
    expect(browser_page.get_by_role("alert").filter(has_text=problem)).to_be_visible()


def test_a_job_that_ended_while_profiled_has_no_charts(
    browser_page: Page, planner: LivePlanner
) -> None:
    planner.put_job(profiling="online", num_microbatches=8).raise_for_status()
    for rank in range(2):
        registered = rank_registration(rank, sm_clocks_mhz=[1410, 1305, 1200])
        path = routes.fill(routes.RANK, job_id="job", rank=rank)
        planner.http.put(path, json=registered).raise_for_status()
    dashboard = dashboard_of(planner, browser_page).open_job("job")
    for panel in ("frontier", "timeline"):
        expect(browser_page.locator(f"#panel-{panel}")).to_contain_text("is being profiled")
    depart(planner)
    expect(browser_page.locator(".job-title .badges")).to_contain_text("ended")
    dashboard.open_job("job")
    expect(browser_page.locator("#panel-timeline")).to_contain_text("no plan")


def poll_often(route: Route) -> None:
    """Shorten the polling interval of the page."""
    script = route.fetch().text()
    assert POLL in script
    route.fulfill(body=script.replace(POLL, "poll_ms: 100"), content_type="text/javascript")


def test_a_page_without_a_stream_polls_the_planner(
    browser_page: Page, page_watch: PageWatch, start_planner: StartPlanner
) -> None:
    page_watch.allow("status of 503")
    planner = start_planner(max_waiting=1, max_wait_s=600)
    planner.put_planned_job()
    dashboard = dashboard_of(planner, browser_page)
    with listening(planner.http, routes.EVENTS, wait_s=500) as other:
        other.wait_for("overview")
        browser_page.route("**/scripts/event_stream.js", poll_often)
        dashboard.open()
        expect(dashboard.row("job")).to_contain_text("planned")
        browser_page.get_by_role("link", name="job", exact=True).click()
        expect(dashboard.fact("Steps measured")).to_have_text("0")
        put_steps(planner, 0, 1)
        expect(dashboard.fact("Steps measured")).to_have_text("1")
        expect(dashboard.connection).to_have_text("live")
        assert not other.is_over


def test_a_page_takes_few_calls_and_no_files_once_they_are_known(
    browser_page: Page, planner: LivePlanner
) -> None:
    planner.put_planned_job()
    acknowledge(planner, 1)
    put_steps(planner, 0, 300)  # more than the events' window
    dashboard = dashboard_of(planner, browser_page)
    seen = RequestCount(browser_page)
    for number, (job_id, most) in enumerate(((None, 2), ("job", 3), (None, 2), ("job", 3))):
        seen.reset()
        if job_id is None:
            dashboard.open()
            expect(dashboard.row("job")).to_contain_text("planned")
        else:
            dashboard.open_job(job_id)
            dashboard.points.first.wait_for()
            expect(dashboard.fact("Plan")).to_contain_text("v1 from step")
            expect(dashboard.fact("Steps measured")).to_have_text("300")
            browser_page.locator("#panel-charts canvas").first.wait_for()
        are_files_known = number >= 2
        counted = [path for path in seen.paths if are_files_known or ASSETS not in path]
        assert len(counted) <= most, counted
    dashboard.show_timeline()
    assert any("/timeline?" in path for path in seen.paths)


class RequestCount:
    """Requests of a page that reach the planner, by Chromium's own account."""

    def __init__(self, page: Page) -> None:
        self._session = page.context.new_cdp_session(page)
        self._requested: dict[str, str] = {}
        self._session.on("Network.responseReceived", self._note)
        self._session.send("Network.enable")

    def reset(self) -> None:
        """Forget all requests so far."""
        self._requested.clear()

    @property
    def paths(self) -> list[str]:
        """Paths of the requests since."""
        return sorted(self._requested.values())

    def _note(self, event: dict[str, Any]) -> None:
        response = event["response"]
        is_kept = response.get("fromDiskCache") or response.get("fromPrefetchCache")
        if response["url"].startswith("http") and not is_kept:
            self._requested[event["requestId"]] = response["url"]


def test_the_theme_is_chosen_and_kept(browser_page: Page, planner: LivePlanner) -> None:
    page = browser_page
    button = page.get_by_role("button", name="Theme")

    def ground(theme: str = "") -> object:
        while theme not in (button.text_content() or ""):
            button.click()
        return page.evaluate("getComputedStyle(document.documentElement).backgroundColor")

    dashboard_of(planner, page).open()
    light = ground()
    dark = ground("dark")
    assert dark != light
    page.reload()
    expect(button).to_have_text("Theme: dark")
    assert ground() == dark
    page.emulate_media(color_scheme="dark")
    assert ground("system") == dark
    page.emulate_media(color_scheme="light")
    assert ground() == light


# ------------------------------------------------------------------ large jobs


def test_a_large_timeline_opens(browser_page: Page, planner: LivePlanner) -> None:
    # EnvPipe's envelope: planned in seconds. So large a frontier is computed on request only.
    size = {"num_stages": 64, "num_microbatches": 160}
    planner.put_job("large", policy="envelope", **size).raise_for_status()
    planner.put_profile(profile_csv(64), "large").raise_for_status()
    dashboard_of(planner, browser_page).open_job("large").show_timeline()
    panel = browser_page.locator("#panel-timeline")
    canvas = panel.locator("canvas").first
    expect(panel).to_contain_text("64 stages, 160 microbatches")
    panel.get_by_role("application").focus()
    whole = canvas.screenshot()
    for _ in range(6):
        browser_page.keyboard.press("+")
    browser_page.keyboard.press("Enter")
    expect(panel).to_contain_text(re.compile(r"stage \d+: (forward|backward) of microbatch"))
    assert canvas.screenshot() != whole


def test_a_table_of_many_jobs_shows_some_and_finds_all(
    browser_page: Page, planner: LivePlanner
) -> None:
    for number in range(203):
        with planner.state.services.store.writing(f"job-{number:03}") as writer:
            writer.save_job(job_record(f"job-{number:03}"))
    dashboard = dashboard_of(planner, browser_page).open()
    expect(dashboard.rows).to_have_count(200)
    browser_page.get_by_role("button", name="Show 3 more").click()
    expect(dashboard.rows).to_have_count(203)
    browser_page.keyboard.press("/")
    browser_page.keyboard.type("job-11")
    expect(dashboard.rows).to_have_count(10)
    expect(browser_page.get_by_text("10 of 203 jobs")).to_be_visible()


# ------------------------------------------------------------------ addresses, colours


def test_the_page_is_live_below_a_proxys_path(browser_page: Page, planner: LivePlanner) -> None:
    planner.put_planned_job()

    def forward(route: Route) -> None:
        route.continue_(url=route.request.url.replace("/planner/", "/"))

    # As a proxy that cuts its path off.
    browser_page.route("**/planner/**", forward)
    dashboard = Dashboard(browser_page, f"{planner.http.base_url}/planner").open_job("job")
    dashboard.wait_for_pictures()
    expect(dashboard.fact("Plan")).to_contain_text("v1 waits")
    acknowledge(planner, 1, 10)
    expect(dashboard.fact("Plan")).to_contain_text("v1 from step")


def test_the_description_of_the_api_opens(browser_page: Page, planner: LivePlanner) -> None:
    browser_page.goto(f"{planner.http.base_url}/docs")
    expect(browser_page.get_by_role("heading", name="Flyball")).to_be_visible()
    expect(browser_page.locator("[id$=put_job]").first).to_be_visible()


TOKENS = (files("flyball_server") / "dashboard/styles/tokens.css").read_text(encoding="utf-8")
GROUNDS = ("--bg", "--surface", "--surface-2")
TEXTS = ("--text", "--text-muted", "--accent", "--good", "--warn", "--bad", "--critical")
# Lines, borders of controls, focus rings: seen but not read.
MARKS = ("--focus", "--control-border", *(f"--series-{number}" for number in range(1, 9)))


def contrast(one: list[int], other: list[int]) -> float:
    """From 1, the same, to 21, black on white; WCAG 2.2, "contrast ratio"."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: list[int]) -> float:
    """From 0, black, to 1, white; WCAG 2.2, "relative luminance"."""
    shares = (channel / 255 for channel in colour)
    red, green, blue = (s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_texts_and_marks_contrast_with_their_grounds(browser_page: Page) -> None:
    browser_page.goto("about:blank")
    browser_page.add_style_tag(content=TOKENS)
    read = """([theme, names]) => {
        document.documentElement.dataset.theme = theme;
        return Object.fromEntries(names.map((name) => {
            document.body.style.color = `var(${name})`;
            return [name, getComputedStyle(document.body).color.match(/\\d+/g).map(Number)];
        }));
    }"""
    names = re.findall(r"(--[\w-]+): light-dark", TOKENS)
    pairs = [(text, ground, 4.5) for text in TEXTS for ground in GROUNDS]
    pairs += [(mark, ground, 3.0) for mark in MARKS for ground in ("--bg", "--surface")]
    pairs += [("--accent-contrast", "--accent", 4.5)]
    for theme in ("light", "dark"):
        found = browser_page.evaluate(read, [theme, names])
        faint = [pair for pair in pairs if contrast(found[pair[0]], found[pair[1]]) < pair[2]]
        assert faint == [], theme
