"""The dashboard's pages as a whole: tokens, strangers' texts, jobs that come and go, large ones."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect
from tests.browser.accessibility import assert_accessible, faint_texts, nameless_loop_states
from tests.browser.dashboard import Dashboard
from tests.browser.fixtures import StartPlanner
from tests.browser.page_watch import PageWatch
from tests.deploy.proxy import CADDY, needs_caddy
from tests.planner.listening import listening
from tests.planner.live import LivePlanner
from tests.planner.patience import PATIENCE_S, wait_until
from tests.planner.ports import free_port
from tests.planner.samples import profile_csv, rank_registration

from flyball_wire import routes

OPERATOR = "the-operators-own"
# Neither may ever be more than text.
MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>"
LARGE = (64, 256)
# Lets an open page ask more often where it is held no more; a new one as ever.
OFTEN = "import('/dashboard/scripts/event_stream.js').then((m) => { m.TIMES.poll_ms = 100; })"


@pytest.fixture
def planner(start_planner: StartPlanner) -> LivePlanner:
    return start_planner()


@pytest.fixture
def guarded(start_planner: StartPlanner) -> LivePlanner:
    """A planner that asks for tokens, with jobs `job` and `other`."""
    live = start_planner(token=OPERATOR)
    live.http.headers["Flyball-Token"] = OPERATOR
    for job_id in ("job", "other"):
        live.put_planned_job(job_id)
    return live


def dashboard_of(planner: LivePlanner, page: Page) -> Dashboard:
    return Dashboard(page, str(planner.http.base_url))


def job_token(planner: LivePlanner, job_id: str) -> tuple[str, str]:
    """A new token of a job, and the id by which it is revoked."""
    answer = planner.http.post(routes.TOKENS, json={"job_id": job_id})
    answer.raise_for_status()
    return answer.json()["token"], answer.json()["token_id"]


# ------------------------------------------------------------------ tokens


def test_a_token_is_asked_for_refused_and_taken(
    browser_page: Page, page_watch: PageWatch, guarded: LivePlanner
) -> None:
    page_watch.allow("status of 401")
    dashboard = dashboard_of(guarded, browser_page).open()
    expect(dashboard.token).to_be_focused()
    assert nameless_loop_states(browser_page) == []
    assert faint_texts(browser_page) == []
    dashboard.give_token("not-this-one")
    expect(browser_page.get_by_text("does not accept this token")).to_be_visible()
    assert dashboard.rows.count() == 0
    dashboard.give_token(OPERATOR)
    expect(dashboard.rows).to_have_count(2)
    expect(dashboard.token).to_be_hidden()
    # It is kept for this tab, and sent in a header: never in an address.
    browser_page.reload()
    expect(dashboard.rows).to_have_count(2)
    assert OPERATOR not in browser_page.url
    assert browser_page.evaluate("Object.keys(sessionStorage)") == ["flyball-token /"]
    assert browser_page.evaluate("document.cookie") == ""
    assert browser_page.evaluate("JSON.stringify(localStorage)") == "{}"


def test_a_forgotten_token_is_asked_for_again(
    browser_page: Page, page_watch: PageWatch, guarded: LivePlanner
) -> None:
    page_watch.allow("status of 401")
    dashboard = dashboard_of(guarded, browser_page).open()
    dashboard.give_token(OPERATOR)
    expect(dashboard.rows).to_have_count(2)
    browser_page.get_by_role("button", name="Forget token").click()
    expect(dashboard.token).to_be_visible()
    expect(dashboard.rows).to_have_count(0)
    browser_page.keyboard.press("Escape")
    expect(browser_page.get_by_role("heading", name="asks for a token")).to_be_visible()
    browser_page.get_by_role("button", name="Enter a token").click()
    dashboard.give_token(OPERATOR)
    expect(dashboard.rows).to_have_count(2)


def test_a_jobs_token_shows_that_job_alone_and_may_set_its_target(
    browser_page: Page, page_watch: PageWatch, guarded: LivePlanner
) -> None:
    page_watch.allow("status of 401", "status of 403")
    token, _ = job_token(guarded, "job")
    dashboard = dashboard_of(guarded, browser_page).open()
    dashboard.give_token(token)
    expect(dashboard.rows).to_have_count(1)
    dashboard.open_job("job")
    dashboard.wait_for_pictures()
    dashboard.points.last.click()
    browser_page.get_by_role("button", name="Run this plan").click()
    expect(browser_page.get_by_text("Version 2 is made")).to_be_visible()
    dashboard.open_job("other")
    expect(browser_page.get_by_role("heading", name="does not open this page")).to_be_visible()


def test_a_token_that_is_revoked_shows_nothing_more(
    browser_page: Page, page_watch: PageWatch, start_planner: StartPlanner
) -> None:
    page_watch.allow("status of 401")
    # Streams end soon, and with them what a token opened.
    guarded = start_planner(token=OPERATOR, max_wait_s=1.0)
    guarded.http.headers["Flyball-Token"] = OPERATOR
    guarded.put_planned_job()
    token, token_id = job_token(guarded, "job")
    dashboard = dashboard_of(guarded, browser_page).open()
    dashboard.give_token(token)
    expect(dashboard.rows).to_have_count(1)
    path = routes.fill(routes.TOKEN, token_id=token_id)
    guarded.http.delete(path).raise_for_status()
    expect(browser_page.get_by_text("does not accept this token")).to_be_visible()


# ------------------------------------------------------------------ strangers' texts


def test_what_ranks_call_themselves_is_shown_as_text(
    browser_page: Page, planner: LivePlanner
) -> None:
    planner.put_planned_job()
    path = routes.fill(routes.RANK, job_id="job", rank=1)
    planner.http.put(path, json=rank_registration(1, client_version=MARKUP)).raise_for_status()
    dashboard_of(planner, browser_page).open_job("job")
    # The notes name the versions of Flyball where ranks run several.
    expect(browser_page.get_by_role("list", name="Notes")).to_contain_text(MARKUP)
    assert browser_page.locator("img[src=x], main script").count() == 0


def test_an_address_that_names_no_job_says_so_with_its_text(
    browser_page: Page, page_watch: PageWatch, planner: LivePlanner
) -> None:
    page_watch.allow("status of 404", "status of 422")
    dashboard = dashboard_of(planner, browser_page)
    for job_id in ("nobody", MARKUP.replace("<", "%3C").replace(">", "%3E"), "%", "a%2Fb"):
        dashboard.open_job(job_id)
        expect(browser_page.locator("main [role=alert]")).to_be_visible()
        assert_accessible(browser_page)
    assert browser_page.locator("img[src=x], main script").count() == 0


# ------------------------------------------------------------------ jobs come and go


def test_the_first_job_appears_on_the_empty_page_and_a_deleted_one_goes(
    browser_page: Page, page_watch: PageWatch, planner: LivePlanner
) -> None:
    page_watch.allow("status of 404", "older steps: Job job is not known")
    dashboard = dashboard_of(planner, browser_page).open()
    expect(browser_page.get_by_role("heading", name="No job here yet")).to_be_visible()
    assert_accessible(browser_page)
    planner.put_job().raise_for_status()
    expect(dashboard.row("job")).to_contain_text("awaiting-profile")
    planner.put_profile().raise_for_status()
    expect(dashboard.row("job")).to_contain_text("planned")
    browser_page.get_by_role("link", name="job", exact=True).click()
    expect(browser_page.get_by_role("heading", level=1, name="job")).to_be_visible()
    expect(dashboard.connection).to_have_text("live")
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
    expect(dashboard.row("job")).to_contain_text("planning-failed")
    expect(dashboard.row("job")).to_contain_text(problem)
    dashboard.open_job("job")
    expect(browser_page.get_by_role("alert").filter(has_text=problem)).to_be_visible()


def test_a_job_that_ended_while_it_was_profiled_has_nothing_to_draw(
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
    for rank in range(2):
        path = routes.fill(routes.RANK_DEPARTURE, job_id="job", rank=rank)
        planner.http.post(path).raise_for_status()
    badges = browser_page.locator(".job-title .badges")
    expect(badges).to_contain_text("ended")
    dashboard.open_job("job")
    expect(badges).to_contain_text("ended")
    expect(browser_page.locator("#panel-timeline")).to_contain_text("no plan")


def test_a_page_that_the_planner_does_not_hold_shows_what_there_is(
    browser_page: Page, page_watch: PageWatch, start_planner: StartPlanner
) -> None:
    page_watch.allow("status of 503")
    planner = start_planner(max_waiting=1, max_wait_s=600)
    planner.put_planned_job()
    dashboard = dashboard_of(planner, browser_page)
    with listening(planner.http, routes.EVENTS, wait_s=500) as other:
        other.wait_for("overview")
        dashboard.open()
        expect(dashboard.row("job")).to_contain_text("planned")
        browser_page.evaluate(OFTEN)
        browser_page.get_by_role("link", name="job", exact=True).click()
        expect(dashboard.fact("Steps measured")).to_have_text("0")
        for rank in (0, 1):
            path = routes.fill(routes.RANK_MEASUREMENTS, job_id="job", rank=rank)
            measured = {"step": 0, "plan_version": None, "time_s": 0.9, "energy_j": 100.0}
            planner.http.post(path, json={"steps": [measured]}).raise_for_status()
        expect(dashboard.fact("Steps measured")).to_have_text("1")
        expect(dashboard.connection).to_have_text("live")
        assert not other.is_over


def test_the_theme_is_chosen_and_kept(browser_page: Page, planner: LivePlanner) -> None:
    def ground() -> object:
        return browser_page.evaluate("getComputedStyle(document.documentElement).backgroundColor")

    planner.put_planned_job()
    dashboard = dashboard_of(planner, browser_page).open()
    expect(dashboard.rows).to_have_count(1)
    light = ground()
    button = browser_page.get_by_role("button", name="Theme")
    while "dark" not in (button.text_content() or ""):
        button.click()
    dark = ground()
    assert dark != light
    browser_page.reload()
    expect(dashboard.rows).to_have_count(1)
    assert ground() == dark
    browser_page.emulate_media(color_scheme="dark")
    while "system" not in (button.text_content() or ""):
        button.click()
    assert ground() == dark
    browser_page.emulate_media(color_scheme="light")
    assert ground() == light


# ------------------------------------------------------------------ large ones


def test_a_timeline_of_64_stages_and_256_microbatches_opens(
    browser_page: Page, planner: LivePlanner
) -> None:
    num_stages, num_microbatches = LARGE
    # EnvPipe's envelope: planned in seconds.
    changes = {"num_stages": num_stages, "num_microbatches": num_microbatches}
    planner.put_job("large", policy="envelope", **changes).raise_for_status()
    planner.put_profile(profile_csv(num_stages), "large").raise_for_status()
    dashboard_of(planner, browser_page).open_job("large")
    panel = browser_page.locator("#panel-timeline")
    canvas = panel.locator("canvas").first
    canvas.wait_for()
    expect(panel).to_contain_text("64 stages, 256 microbatches")
    # A frontier of 32 768 instructions is not found uninvited.
    expect(browser_page.locator("#panel-frontier")).to_contain_text("may take minutes")
    surface = panel.get_by_role("application")
    surface.focus()
    whole = canvas.screenshot()
    for _ in range(6):
        browser_page.keyboard.press("+")
    browser_page.keyboard.press("Enter")
    expect(panel).to_contain_text(re.compile(r"stage \d+: (forward|backward) of microbatch"))
    assert canvas.screenshot() != whole


def test_a_table_of_many_jobs_shows_the_first_and_finds_the_others(
    browser_page: Page, planner: LivePlanner
) -> None:
    for number in range(230):
        planner.put_job(f"job-{number:03}").raise_for_status()
    dashboard = dashboard_of(planner, browser_page).open()
    expect(dashboard.rows).to_have_count(200)
    browser_page.get_by_role("button", name="Show 30 more").click()
    expect(dashboard.rows).to_have_count(230)
    browser_page.keyboard.press("/")
    browser_page.keyboard.type("job-11")
    expect(dashboard.rows).to_have_count(10)
    expect(browser_page.get_by_text("10 of 230 jobs")).to_be_visible()


# ------------------------------------------------------------------ behind a proxy


@contextmanager
def proxied(planner: LivePlanner, folder: Path) -> Iterator[str]:
    """A real reverse proxy that has the planner below `/planner/`: the address there."""
    address = f"http://127.0.0.1:{free_port()}"
    upstream = str(planner.http.base_url).removeprefix("http://")
    configuration = folder / "Caddyfile"
    configuration.write_text(
        "{\n\tadmin off\n\tpersist_config off\n}\n"
        f"{address} {{\n\thandle_path /planner/* {{\n\t\treverse_proxy {upstream}\n\t}}\n}}\n"
    )
    assert CADDY is not None
    command = (CADDY, "run", "--adapter", "caddyfile", "--config", str(configuration))
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stderr=log, env={"HOME": str(folder)})
    try:

        def is_answered() -> bool:
            assert process.poll() is None, (folder / "log").read_text()
            try:
                return httpx.get(f"{address}/planner{routes.HEALTH}", timeout=PATIENCE_S).is_success
            except httpx.TransportError:
                return False

        wait_until(is_answered)
        yield f"{address}/planner"
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


@needs_caddy
def test_below_a_proxys_path_the_page_is_as_live(
    browser_page: Page, planner: LivePlanner, tmp_path: Path
) -> None:
    planner.put_planned_job()
    with proxied(planner, tmp_path) as address:
        dashboard = Dashboard(browser_page, address).open_job("job")
        dashboard.wait_for_pictures()
        # In a stream that the proxy passes on as it comes.
        expect(dashboard.fact("Plan")).to_contain_text("v1 waits")
        for rank in range(2):
            planner.acknowledge(rank, 1, 10).raise_for_status()
        expect(dashboard.fact("Plan")).to_contain_text("v1 from step")
        browser_page.goto("about:blank")  # it asks no more while the proxy goes
