"""Fixtures of tests in a real browser.

    def test_it_opens(browser_page: Page, planner: LivePlanner) -> None:
        browser_page.goto(str(planner.http.base_url))

Such a test fails at its end where the page logged an error, a request of it failed, or it asked
another host for something; what a test brings about itself it allows before:
`page_watch.allow("401")`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tests.browser.chromium import PATIENCE_S, MissingBrowserError, private_chromium
from tests.browser.page_watch import PageWatch

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

SCREEN = {"width": 1440, "height": 900}


# Of a file, not of the session: while it is open no other event loop can run in this thread.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium for a file of tests; without one, a failure where CI=true, else a skip."""
    try:
        with private_chromium() as browser:
            yield browser
    except MissingBrowserError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))


@pytest.fixture
def browser_context(browser: Browser) -> Iterator[BrowserContext]:
    """As a browser that was just installed: nothing stored, nothing open."""
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
    """The troubles of the test's pages."""
    return PageWatch(browser_context)


@pytest.fixture
def browser_page(browser_context: BrowserContext, page_watch: PageWatch) -> Iterator[Page]:
    """An empty page 1440 wide, light; no trouble in it may be left at the end."""
    yield browser_context.new_page()
    assert not page_watch.unexpected(), page_watch.unexpected()
