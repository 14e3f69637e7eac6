"""The dashboard as somebody uses it: what tests and pictures look for on its pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page


class Dashboard:
    """The page of one planner in one tab.

    Args:
        page: the tab.
        address: of the planner.
    """

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self._address = address.rstrip("/")

    def open(self) -> Dashboard:
        """The table of jobs, loaded anew."""
        self.page.goto("about:blank")  # an address that differs behind the # only loads nothing
        self.page.goto(f"{self._address}/")
        return self

    def open_job(self, job_id: str) -> Dashboard:
        """The page of a job, loaded anew."""
        self.page.goto("about:blank")
        self.page.goto(f"{self._address}/#/jobs/{job_id}")
        return self

    @property
    def rows(self) -> Locator:
        """Of the table of jobs."""
        return self.page.locator(".job-rows tr")

    def row(self, job_id: str) -> Locator:
        """Of one job."""
        return self.rows.filter(has=self.page.get_by_role("link", name=job_id, exact=True))

    def fact(self, name: str) -> Locator:
        """Return what the head of a job's page says under this name."""
        entry = self.page.locator("#panel-job dl > div").filter(
            has=self.page.get_by_text(name, exact=True)
        )
        return entry.locator("dd")

    def num_steps(self) -> int:
        """Measured steps, as the head of a job's page counts them."""
        text = self.fact("Steps measured").text_content() or ""
        return int("".join(filter(str.isdigit, text)))

    @property
    def points(self) -> Locator:
        """Of the frontier, from the fastest."""
        return self.page.locator("#panel-frontier .frontier-point")

    @property
    def connection(self) -> Locator:
        """The sign that says whether the figures are live."""
        return self.page.locator("#connection")

    @property
    def banner(self) -> Locator:
        """Return what is told when the planner is away."""
        return self.page.locator("#banner")

    @property
    def token(self) -> Locator:
        """The field for a token."""
        return self.page.get_by_label("Token", exact=True)

    def give_token(self, token: str) -> None:
        """Put a token in and send it."""
        self.token.fill(token)
        self.page.get_by_role("button", name="Use this token").click()

    def wait_for_pictures(self) -> None:
        """Until a job's frontier and timeline are drawn, and its charts where it has steps."""
        self.points.first.wait_for()
        self.page.locator("#panel-timeline canvas").first.wait_for()
        charts = self.page.locator("#panel-charts").locator("canvas, p.note")
        charts.locator("visible=true").first.wait_for()

    def overflow_px(self) -> int:
        """By how much the page is wider than the window."""
        return int(
            self.page.evaluate(
                "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
        )
