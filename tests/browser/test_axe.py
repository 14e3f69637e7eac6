"""The pages by axe-core's rules: contrast, names, roles, order of headings; and their width.

`make test` installs it (AXE_VERSION in the Makefile); without it the tests are skipped, or fail
where CI=true.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.browser.dashboard import Dashboard, assert_fits
from tests.browser.jobs import acknowledge, put_running_job, put_steps
from tests.planner.live import LivePlanner, live_planner
from tests.planner.patience import wait_until

from flyball_wire import routes

ROOT = Path(__file__).parents[2]
_RUN = """async () => (await axe.run(document, { resultTypes: ["violations"] })).violations.flatMap(
  ({ id, nodes }) => nodes.map(({ target, failureSummary }) => `${id} ${target}: ${failureSummary}`)
)"""

OPERATOR = "the-operators-own"


@pytest.fixture(scope="module")
def axe() -> str:
    """Script of axe-core in the version that the Makefile pins."""
    [version] = re.findall(r"^AXE_VERSION := (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    script = ROOT / f".venv/axe-core-{version}/node_modules/axe-core/axe.min.js"
    if not script.is_file() and os.environ.get("CI") != "true":
        pytest.skip("axe-core is not installed: `make test` does that")
    return script.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def planner() -> Iterator[LivePlanner]:
    """Planner with `job`, whose stage 1 has become slow, and `other`, without a profile."""
    with live_planner(price_per_kwh=0.3, co2_g_per_kwh=380.0) as made:
        _put_jobs(made)
        yield made


def _put_jobs(planner: LivePlanner) -> None:
    put_running_job(planner)
    put_steps(planner, 0, 20, plan_version=None, energy_j=300.0, num_power_capped=1)
    put_steps(planner, 20, 60, sm_clock_mhz=1300.0)
    planner.put_job("other").raise_for_status()
    target = routes.fill(routes.TARGET, job_id="job")
    planner.http.put(target, json={"target": "deadline:0.91"}).raise_for_status()
    straggler = {"rank": 1, "slowdown": 1.15}
    planner.http.post(routes.fill(routes.STRAGGLERS, job_id="job"), json=straggler)
    path = routes.fill(routes.JOB, job_id="job")
    wait_until(lambda: planner.http.get(path).json()["missed"] is not None)
    acknowledge(planner, planner.http.get(path).json()["newest_version"])


@pytest.fixture(params=[(1440, "light"), (390, "dark")])
def page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page of a width and a theme."""
    width, theme = request.param
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=theme, reduced_motion="reduce"
    )
    yield context.new_page()
    context.close()


def violations(page: Page, axe: str) -> list[str]:
    page.evaluate(axe)
    found: list[str] = page.evaluate(_RUN)
    headless = page.locator("table:visible:not(:has(th))").count()
    return [*found, *["a table without heads"] * headless]


@pytest.mark.parametrize("page", [(390, "dark")], indirect=True)
def test_a_control_without_a_name_is_found(page: Page, axe: str) -> None:
    page.set_content("<title>t</title><main><h1>t</h1><button></button></main>")
    [found] = [each for each in violations(page, axe) if each.startswith("button-name")]
    assert "button" in found


def test_no_page_violates_a_rule(page: Page, axe: str, planner: LivePlanner) -> None:
    dashboard = Dashboard(page, str(planner.http.base_url)).open()
    expect(dashboard.row("job")).to_contain_text("nearest to")
    assert violations(page, axe) == []
    assert_fits(page, 390, 360, 320)
    dashboard.open_job("job").unfold().wait_for_pictures()
    expect(dashboard.fact("Target")).to_contain_text("nearest to")
    assert_fits(page, 390, 360, 320)
    page.locator("details").evaluate_all("(all) => all.forEach((each) => { each.open = true; })")
    assert violations(page, axe) == []
    assert_fits(page, 390, 360, 320)
    dashboard.points.first.click()
    assert violations(page, axe) == []
    page.get_by_role("button", name="Keys").click()
    assert violations(page, axe) == []
    page.keyboard.press("Escape")
    page.locator("#panel-history").get_by_role("link", name="Compare two").click()
    expect(page.get_by_role("row").filter(has_text="Pipeline")).to_contain_text("2 stages")
    assert violations(page, axe) == []
    assert_fits(page, 390, 360, 320)


def test_no_page_without_a_job_violates_a_rule(page: Page, axe: str) -> None:
    with live_planner(token=OPERATOR, max_wait_s=1.0) as planner:
        dashboard = Dashboard(page, str(planner.http.base_url)).open()
        expect(dashboard.token).to_be_focused()
        assert violations(page, axe) == []
        dashboard.give_token(OPERATOR)
        expect(page.get_by_role("heading", name="No job here yet")).to_be_visible()
        assert violations(page, axe) == []
        dashboard.open_job("nobody")
        expect(page.locator("main [role=alert]")).to_be_visible()
        assert violations(page, axe) == []
        page.goto("about:blank")
