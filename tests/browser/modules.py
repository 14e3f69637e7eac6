"""The dashboard's modules, called in a real browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from tests.browser.chromium import PATIENCE_S
from tests.browser.page_watch import PageWatch
from tests.planner.live import live_planner

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


class Modules:
    """Caller of functions of modules.

    Args:
        page: tab with the planner's page, whose policy allows imports of its own modules.
    """

    def __init__(self, page: Page) -> None:
        self._page = page

    def run(self, module: str, code: str, **values: object) -> Any:  # noqa: ANN401 - JSON
        """Return the value of an expression, or of a function body, with the module as `m`.

        Narrow spaces, which stand between figures and units, become ordinary ones.
        """
        body = code if "return " in code else f"return {code};"
        script = (
            f"async ({{{', '.join(values)}}}) => {{ const m = await"
            f" import('/dashboard/scripts/{module}.js'); {body} }}"
        )
        found = self._page.evaluate(script, values)
        return json.loads(json.dumps(found).replace("\\u202f", " "))


@pytest.fixture(scope="module")
def modules(browser: Browser) -> Iterator[Modules]:
    """The modules in one tab for a file of tests, which must have no troubles."""
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
