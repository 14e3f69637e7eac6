"""Fixtures of tests in a real browser.

    def test_it_opens(browser_page: Page, start_planner: StartPlanner) -> None:
        browser_page.goto(str(start_planner().http.base_url))

Such a test fails at its end if the page logged an error, a request failed, or another host was
requested. Expected troubles are allowed before: `page_watch.allow("401")`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from tests.browser.chromium import PATIENCE_S, chromium_path, private_chromium
from tests.browser.page_watch import PageWatch
from tests.debian_packages import skipped_where_missing
from tests.planner.live import LivePlanner, live_planner

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

SCREEN = {"width": 1440, "height": 900}
StartPlanner = Callable[..., LivePlanner]
"""Function that starts a planner with the arguments of `live_planner`."""


# Per file: while it is open no other event loop can run in this thread.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium for a file of tests; without one, a failure where CI=true, else a skip."""
    # Imported here: a test without a browser needs no Playwright.
    from playwright.sync_api import expect  # noqa: PLC0415

    with skipped_where_missing():
        chromium_path()
    # A busy machine takes its time.
    expect.set_options(timeout=1e3 * PATIENCE_S)
    with private_chromium() as browser:
        yield browser


@pytest.fixture
def browser_context(browser: Browser) -> Iterator[BrowserContext]:
    """A context of a browser without stored data."""
    context = browser.new_context(
        viewport={"width": SCREEN["width"], "height": SCREEN["height"]},
        reduced_motion="reduce",
        color_scheme="light",
        locale="en-GB",
        timezone_id="UTC",
    )
    context.set_default_timeout(1e3 * PATIENCE_S)
    yield context
    context.close()


@pytest.fixture
def page_watch(browser_context: BrowserContext) -> PageWatch:
    """Troubles of the test's pages."""
    return PageWatch(browser_context)


@pytest.fixture
def start_planner() -> Iterator[StartPlanner]:
    """Start planners that outlive the test's page, which would report them as away."""
    with ExitStack() as ending:
        yield lambda **options: ending.enter_context(live_planner(**options))


@pytest.fixture
def browser_page(
    start_planner: StartPlanner, browser_context: BrowserContext, page_watch: PageWatch
) -> Iterator[Page]:
    """An empty light page, 1440 px wide, which must end without troubles."""
    del start_planner  # set up before the page, so it ends after it
    page = browser_context.new_page()
    yield page
    page_watch.settle(page)
    assert not page_watch.unexpected(), page_watch.unexpected()
