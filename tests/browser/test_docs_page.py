"""The planner's page at /docs in a browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect
from tests.browser.fixtures import StartPlanner
from tests.browser.page_watch import PageWatch


def test_the_description_opens_without_an_error_and_without_the_internet(
    browser_page: Page, start_planner: StartPlanner
) -> None:
    browser_page.goto(f"{start_planner().http.base_url}/docs")
    expect(browser_page.get_by_role("heading", name="Flyball")).to_be_visible()
    expect(browser_page.locator("[id$=put_job]").first).to_be_visible()


@pytest.mark.parametrize(
    ("script", "trouble"),
    [
        ("console.error('no')", "console error: no"),
        ("setTimeout(() => { throw new Error('lost'); })", "uncaught: lost"),
        ("fetch('http://planner.example/x').catch(() => 0)", "request to another host: http"),
        ("fetch('http://127.0.0.1:9/x').catch(() => 0)", "failed: GET http://127.0.0.1:9/x: net"),
    ],
)
def test_what_goes_wrong_in_a_page_is_told(
    browser_page: Page, page_watch: PageWatch, script: str, trouble: str
) -> None:
    browser_page.goto("about:blank")
    browser_page.evaluate(script)
    page_watch.wait_for(trouble, browser_page)
    assert any(trouble in told for told in page_watch.unexpected())
    page_watch.allow(".")
    assert page_watch.unexpected() == []
