"""The dashboard in a real browser, with a real planner and ranks that train on emulated GPUs.

A plan of the frontier is chosen on the page and run by the ranks; the page shows their measurements
live, before and after an outage of the planner.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect
from tests.acceptance.killed_planners import (
    JOB,
    NUM_RANKS,
    Planner,
    planner_on,
    training_ranks,
)
from tests.browser.dashboard import Dashboard, assert_fits, wait_in
from tests.browser.page_watch import PageWatch
from tests.planner.emulated_ranks import BackgroundTraining
from tests.planner.patience import wait_until

# A page needs no more steps than some in a second, and each costs processor time.
PAUSE_S = 0.4
PLANNER_AWAY = ("net::ERR_", "older steps: The planner does not respond")


@pytest.fixture(scope="module")
def planner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planner]:
    """Planner of a job with a profile; tests change its target and restart the planner."""
    database = tmp_path_factory.mktemp("dashboard") / "planner.sqlite"
    with planner_on(f"sqlite:///{database}") as made:
        made.start()
        made.put_job()
        yield made


@pytest.fixture(scope="module")
def training(planner: Planner) -> Iterator[BackgroundTraining]:
    """Ranks that train on its plan."""
    with training_ranks([planner.url], pause_s=PAUSE_S) as ranks:
        ranks.await_version(1)
        yield ranks


@pytest.fixture
def ranks(planner: Planner, training: BackgroundTraining) -> BackgroundTraining:
    """The ranks, once they run the newest plan."""
    wait_until(lambda: training.versions() == {planner.job().newest_version})
    return training


@pytest.fixture
def dashboard(browser_page: Page, planner: Planner) -> Dashboard:
    return Dashboard(browser_page, planner.url)


def newest_version(planner: Planner) -> int:
    version = planner.job().newest_version
    assert version is not None
    return version


def target_of(planner: Planner, version: int) -> str:
    target: str = planner.client.get_plan(JOB, version).plan["target"]
    return target


def assert_runs_what_was_chosen(
    planner: Planner, ranks: BackgroundTraining, page: Page, before: int
) -> int:
    """Check the first version with another target than the one before, and return it.

    It has the chosen slowdown and is at every rank, and the page says so. Where the machine is
    busy the job may have planned with a new reserve or tail in between.
    """
    former = target_of(planner, before)
    wait_until(lambda: target_of(planner, newest_version(planner)) != former)
    version = next(
        version
        for version in range(before + 1, newest_version(planner) + 1)
        if target_of(planner, version) != former
    )
    ranks.await_version(version)
    plan = planner.client.get_plan(JOB, version)
    assert plan.plan["policy"] == "frontier"
    percent = target_of(planner, version).removeprefix("slowdown:").removesuffix("%")
    baseline_s = plan.plan["baseline"]["iteration_time_s"]
    assert plan.plan["iteration_time_s"] <= baseline_s * (1 + float(percent) / 100) * (1 + 1e-9)
    assert {rank.acknowledged_version for rank in planner.job().ranks} == {version}
    # The page names the same step as the planner.
    assert plan.first_step is not None
    expect(
        page.get_by_text(f"Version {version} holds from step {plan.first_step}.")
    ).to_be_visible()
    return version


def test_the_ranks_run_a_plan_that_is_clicked(
    planner: Planner, ranks: BackgroundTraining, dashboard: Dashboard
) -> None:
    before = newest_version(planner)
    page = dashboard.open().page
    row = dashboard.row(JOB)
    expect(row).to_contain_text("emulated")
    expect(row).to_contain_text(f"{NUM_RANKS} of {NUM_RANKS}")
    page.get_by_role("link", name=JOB).click()
    expect(page.get_by_role("heading", level=1, name=JOB)).to_be_visible()
    expect(dashboard.fact("Plan")).to_contain_text(f"v{before} from step")
    dashboard.wait_for_pictures()
    dashboard.points.last.click()
    page.get_by_role("button", name="Run this plan").click()
    version = assert_runs_what_was_chosen(planner, ranks, page, before)
    expect(dashboard.fact("Plan")).to_contain_text(f"v{version} from step")
    expect(page.locator("#panel-history tbody tr").first).to_contain_text(f"v{version}")
    # New steps appear by themselves.
    newest = page.locator("#panel-charts .readout")
    num_before, told = dashboard.num_steps(), newest.text_content()
    assert told is not None
    ranks.go_on(3)
    expect(newest).not_to_have_text(told)
    wait_in(page, lambda: dashboard.num_steps() > num_before)


def test_a_plan_is_chosen_with_keys_only(
    planner: Planner, ranks: BackgroundTraining, dashboard: Dashboard
) -> None:
    before = newest_version(planner)
    page = dashboard.open().page
    expect(page.get_by_role("link", name=JOB)).to_be_visible()
    press_until(page, "Tab", "document.activeElement.textContent === 'trained'")
    page.keyboard.press("Enter")
    dashboard.wait_for_pictures()
    assert_fits(page, 390, 360, 320)
    press_until(page, "Tab", "document.activeElement.classList.contains('frontier-point')")
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    fifth = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert fifth.startswith("Plan 6 of ")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Run this plan")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Run this plan")).to_be_hidden()
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == fifth
    assert newest_version(planner) == before
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    assert_runs_what_was_chosen(planner, ranks, page, before)


def test_figures_are_marked_as_stale_while_the_planner_is_away(
    planner: Planner, ranks: BackgroundTraining, dashboard: Dashboard, page_watch: PageWatch
) -> None:
    page = dashboard.open_job(JOB).page
    dashboard.wait_for_pictures()
    expect(dashboard.connection).to_have_text("live")
    page_watch.allow(*PLANNER_AWAY)
    planner.kill()
    try:
        expect(dashboard.banner).to_contain_text("Planner away")
        expect(dashboard.banner).to_contain_text("Figures of ")
        expect(dashboard.connection).to_have_text("not live")
        before = dashboard.num_steps()
        ranks.go_on(3)
    finally:
        planner.start()  # other tests need it
    expect(dashboard.banner).to_be_hidden()
    expect(dashboard.connection).to_have_text("live")
    # The steps of the meantime are there.
    wait_in(page, lambda: dashboard.num_steps() >= before + 3)


def press_until(page: Page, key: str, condition: str) -> None:
    """Press a key until a condition holds, at most as often as a page has places to go to."""
    for _ in range(100):
        page.keyboard.press(key)
        if page.evaluate(condition):
            return
    raise AssertionError(f"{key} never came to {condition}")
