"""The dashboard's modules, called in a real browser.

from tests.browser.modules import Modules, modules

__all__ = ["modules"]  # the fixture: one tab for a file of tests
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from tests.browser.chromium import PATIENCE_S
from tests.browser.page_watch import PageWatch
from tests.planner.live import live_planner

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


class Modules:
    """Runs functions of modules.

    Args:
        page: a tab with the planner's page, whose policy lets its own modules be imported.
    """

    def __init__(self, page: Page) -> None:
        self._page = page

    def run(self, module: str, body: str, **values: object) -> Any:  # noqa: ANN401 - JSON
        """What a function body returns that sees the module as `m`, and the values by name."""
        names = ", ".join(values)
        script = (
            f"async ({{{names}}}) => {{ const m = await"
            f" import('/dashboard/scripts/{module}.js'); {body} }}"
        )
        return self._page.evaluate(script, values)


@pytest.fixture(scope="module")
def modules(browser: Browser) -> Iterator[Modules]:
    """The modules as a planner without jobs serves them; no trouble in the tab may be left."""
    with live_planner() as planner:
        context = browser.new_context()
        context.set_default_timeout(1e3 * PATIENCE_S)
        watch = PageWatch(context)
        page = context.new_page()
        page.goto(str(planner.http.base_url))
        yield Modules(page)
        watch.settle(page)
        context.close()
    assert not watch.unexpected(), watch.unexpected()
