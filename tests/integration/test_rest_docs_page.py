"""The page at /docs: all that it loads comes from the planner, for clusters without internet."""

from __future__ import annotations

import asyncio
import re

import httpx
from tests.planner.live import LivePlanner
from tests.planner.stores import TemporaryJobStore

from flyball_server.app import create_app
from flyball_server.settings import Settings


def loaded_by(page: str) -> list[str]:
    """Return the addresses that the page loads, without those of data in the page itself."""
    found = re.findall(r"""\b(?:src|href|action)=["']([^"']*)""", page)
    return [address for address in found if not address.startswith("data:")]


def test_the_page_may_load_from_the_planner_alone_and_run_only_its_own_scripts(
    planner: LivePlanner,
) -> None:
    """A browser that opens it under this policy is in tests/browser/test_dashboard_pages.py."""
    answer = planner.http.get("/docs")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert '"validatorUrl": null' in answer.text  # Swagger UI would ask a validator of its makers
    directives = answer.headers["content-security-policy"].split(";")
    policy = dict(directive.strip().split(" ", 1) for directive in directives)
    assert re.fullmatch(r"'self' 'sha256-[\w+/]{43}='", policy["script-src"])
    assert policy["connect-src"] == "'self'"  # the description, and the calls made from the page
    assert policy["default-src"] == policy["frame-ancestors"] == "'none'"


def test_behind_a_proxy_the_page_asks_under_the_proxys_path() -> None:
    app = create_app(Settings(database="sqlite:///unused.sqlite"), TemporaryJobStore())

    async def get_page() -> str:
        transport = httpx.ASGITransport(app, root_path="/planner")
        async with httpx.AsyncClient(transport=transport, base_url="http://proxy") as http:
            return (await http.get("/planner/docs")).text

    page = asyncio.run(get_page())
    assert len(loaded_by(page)) == 2
    for address in loaded_by(page):
        assert address.startswith("/planner/docs/")
    assert "url: '/planner/openapi.json'" in page
