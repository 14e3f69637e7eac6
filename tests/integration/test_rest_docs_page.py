"""The page at /docs: all that it loads comes from the planner, for clusters without internet."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from urllib.parse import urlsplit

import httpx
from tests.planner.live import LivePlanner
from tests.planner.stores import TemporaryJobStore

from flyball_server.app import create_app
from flyball_server.settings import Settings


def loaded_by(page: str) -> list[str]:
    """Return the addresses that the page loads, without those of data in the page itself."""
    found = re.findall(r"""\b(?:src|href|action)=["']([^"']*)""", page)
    return [address for address in found if not address.startswith("data:")]


def test_the_page_loads_from_the_planner_alone_and_runs_only_its_own_scripts(
    planner: LivePlanner,
) -> None:
    answer = planner.http.get("/docs")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    page, kinds = answer.text, {}
    assert re.findall(r"""https?:|["'(]//""", page) == []
    assert '"validatorUrl": null' in page  # Swagger UI would ask a validator of its makers
    for address in loaded_by(page):
        parts = urlsplit(address)
        assert (parts.scheme, parts.netloc) == ("", ""), address
        loaded = planner.http.get(address).raise_for_status()
        kinds[address.rpartition(".")[2]] = loaded.headers["content-type"].partition(";")[0]
    assert kinds == {"js": "text/javascript", "css": "text/css"}
    described = re.search(r"url: '([^']+)'", page)
    assert described is not None
    assert planner.http.get(described.group(1)).json()["openapi"].startswith("3.1")
    directives = answer.headers["content-security-policy"].split(";")
    policy = dict(directive.strip().split(" ", 1) for directive in directives)
    in_the_page = re.findall(r"<script>(.+?)</script>", page, re.DOTALL)
    assert len(in_the_page) == page.count("<script") - page.count("<script src=") == 1
    digest = hashlib.sha256(in_the_page[0].encode()).digest()
    assert policy["script-src"] == f"'self' 'sha256-{base64.b64encode(digest).decode()}'"
    assert policy["connect-src"] == "'self'"  # the description, and the calls made from the page
    assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
    assert not re.search(r"\son\w+=", page)  # scripts in attributes would not run


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
