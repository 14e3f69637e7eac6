"""The dashboard's pages, for tests and pictures."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.planner.patience import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page


class Dashboard:
    """Pages of one planner in one tab.

    Args:
        page: the tab.
        address: address of the planner.
    """

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self._address = address.rstrip("/")

    def open(self) -> Dashboard:
        """Load the table of jobs."""
        self.page.goto("about:blank")  # another fragment alone loads nothing
        self.page.goto(f"{self._address}/")
        return self

    def open_job(self, job_id: str) -> Dashboard:
        """Load the page of a job."""
        self.page.goto("about:blank")
        self.page.goto(f"{self._address}/#/jobs/{job_id}")
        return self

    def unfold(self) -> Dashboard:
        """Unfold the sections of a job, which are folded where the page is narrow."""
        self.page.locator("#panel-frontier").wait_for()
        folded = self.page.locator(".folded > .fold")
        while folded.count():
            folded.first.click()
        return self

    @property
    def rows(self) -> Locator:
        """Rows of the table of jobs."""
        return self.page.locator(".job-rows tr")

    def row(self, job_id: str) -> Locator:
        """Row of one job."""
        return self.rows.filter(has=self.page.get_by_role("link", name=job_id, exact=True))

    def fact(self, name: str) -> Locator:
        """Fact of this name in the head of a job's page."""
        entry = self.page.locator("#panel-job dl > div").filter(
            has=self.page.get_by_text(name, exact=True)
        )
        return entry.locator("dd")

    def num_steps(self) -> int:
        """Return the number of measured steps in the head of a job's page."""
        text = self.fact("Steps measured").text_content() or ""
        return int("".join(filter(str.isdigit, text)))

    @property
    def points(self) -> Locator:
        """Points of the frontier, from the fastest."""
        return self.page.locator("#panel-frontier .frontier-point")

    @property
    def connection(self) -> Locator:
        """Sign of live figures."""
        return self.page.locator("#connection")

    @property
    def banner(self) -> Locator:
        """Banner of a planner that is away."""
        return self.page.locator("#banner")

    @property
    def token(self) -> Locator:
        """Field for a token."""
        return self.page.get_by_label("Token", exact=True)

    def give_token(self, token: str) -> None:
        """Enter a token and send it."""
        self.token.fill(token)
        self.page.get_by_role("button", name="Use this token").click()

    def show_timeline(self) -> None:
        """Scroll to a job's timeline, which is loaded then."""
        panel = self.page.locator("#panel-timeline")
        panel.scroll_into_view_if_needed()
        panel.locator("canvas").first.wait_for()

    def wait_for_pictures(self) -> None:
        """Wait for a job's frontier and timeline, and for its charts if it has steps."""
        self.points.first.wait_for()
        self.show_timeline()
        self.page.evaluate("window.scrollTo(0, 0)")
        charts = self.page.locator("#panel-charts").locator("canvas, p.note")
        charts.locator("visible=true").first.wait_for()


def wait_in(page: Page, is_so: Callable[[], bool]) -> None:
    """Wait for a condition while events of the page are processed."""

    def look() -> bool:
        page.wait_for_timeout(20)
        return is_so()

    wait_until(look)


def assert_fits(page: Page, *widths_px: int) -> None:
    """Check that the page is no wider than its window, nor than those of small phones."""
    size = page.viewport_size
    assert size is not None
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    for width_px in (*widths_px, size["width"]):
        page.set_viewport_size({"width": width_px, "height": size["height"]})
        wait_in(page, lambda: bool(page.evaluate(overflow) == 0))
