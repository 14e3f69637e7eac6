"""The page at /: what is served, with which headers, to whom; all it loads is there and ours."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest
from docs.scripts.write_wire_types import WIRE_TYPES, wire_types
from tests.fuzz.raw_call import answers, call, send
from tests.planner.live import LivePlanner, live_planner
from tests.planner.stores import TemporaryJobStore

from flyball_server.app import create_app
from flyball_server.http.problem_handlers import API_HEADERS
from flyball_server.http.routes.dashboard import ASSETS, PAGE, PAGE_POLICY, dashboard_files
from flyball_server.settings import Settings
from flyball_wire.command.command import flyball_version
from flyball_wire.messages import TOKEN_HEADER

FOLDER = Path(__file__).parents[2] / "server/flyball_server/dashboard"
TOKEN = "an-operators-token-of-32-or-more"  # noqa: S105 - a test's
SCRIPTS = sorted(FOLDER.glob("scripts/*.js"))


class Page(HTMLParser):
    """Addresses that a page loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in {"script", "img", "link"}:
            self.loaded += [value or "" for name, value in attrs if name in {"src", "href"}]


@pytest.fixture(scope="module")
def planner() -> Iterator[LivePlanner]:
    with live_planner(token=TOKEN) as live:
        yield live


@pytest.fixture(scope="module")
def page(planner: LivePlanner) -> Page:
    return Page(planner.http.get(PAGE).text)


# ------------------------------------------------------------------ what is served


def test_the_page_is_served_without_a_token_and_the_api_is_not(planner: LivePlanner) -> None:
    """Under a policy by which it may load from the planner alone, and run nothing inline."""
    answer = planner.http.get(PAGE)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert f"Flyball {flyball_version()}" in answer.text
    assert planner.http.get("/api/v1/overview").status_code == 401
    assert answer.headers["content-security-policy"] == PAGE_POLICY
    policy = dict(directive.strip().split(" ", 1) for directive in PAGE_POLICY.split(";"))
    assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
    assert "unsafe" not in PAGE_POLICY
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_every_file_of_the_folder_is_served_as_what_it_is(planner: LivePlanner) -> None:
    kinds = {
        ".js": "text/javascript; charset=utf-8",
        ".css": "text/css; charset=utf-8",
        ".svg": "image/svg+xml",
        "": "text/plain; charset=utf-8",
    }
    # The first is served at /, the others are for `make check-dashboard`.
    others = {"index.html", "wire_types.d.ts", "uPlot.esm.d.ts"}
    files = [file for file in FOLDER.rglob("*") if file.is_file() and file.name not in others]
    assert len(files) > 20
    for file in files:
        answer = planner.http.get(ASSETS + file.relative_to(FOLDER).as_posix())
        assert answer.status_code == 200, file
        assert answer.headers["content-type"] == kinds[file.suffix], file
        assert answer.content == file.read_bytes(), file


def test_a_browser_asks_again_each_time_and_gets_only_what_has_changed(
    planner: LivePlanner,
) -> None:
    for path in (PAGE, f"{ASSETS}scripts/main.js"):
        answer = planner.http.get(path)
        assert answer.headers["cache-control"] == "no-cache"
        etag = answer.headers["etag"]
        # A proxy that packs the answer marks the tag as weak.
        for known in (etag, f'"other", {etag}', f"W/{etag}", "*"):
            again = planner.http.get(path, headers={"If-None-Match": known})
            assert (again.status_code, again.content) == (304, b""), known
            assert again.headers["etag"] == etag
        head = planner.http.head(path)
        assert (head.status_code, head.content) == (200, b"")
        for name in ("etag", "content-type", "content-length", "cache-control"):
            assert head.headers[name] == answer.headers[name], name
        other = planner.http.get(path, headers={"If-None-Match": '"other"'})
        assert (other.status_code, other.content) == (200, answer.content)
    by_tag: dict[str, bytes] = {}
    for file in dashboard_files().values():
        assert by_tag.setdefault(file.etag, file.content) == file.content


def test_what_the_page_loads_is_kept_by_browsers_until_it_changes(
    planner: LivePlanner, page: Page
) -> None:
    folders = {address.split("/")[1] for address in page.loaded}
    assert len(folders) == 1
    for address in page.loaded:
        answer = planner.http.get(PAGE + address)
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert answer.content == (FOLDER / address.split("/", 2)[2]).read_bytes()


def test_nothing_else_is_served(planner: LivePlanner) -> None:
    url = planner.http.base_url
    for path in (
        "/dashboard",
        "/dashboard/scripts/none.js",
        "/dashboard/../app.py",
        "/dashboard/..%2Fapp.py",
        "/dashboard/%2Fetc%2Fpasswd",
        "/dashboard/scripts/main.js/",
        "/dashboard/scripts/main.js%00.css",
        "//dashboard/scripts/main.js",
    ):
        for headers, status in (((), 401), ((f"{TOKEN_HEADER}: {TOKEN}",), 404)):
            sent = call("GET", path, None, *headers)
            (answer,) = answers(send((url.host, url.port or 0), sent))
            assert answer.status == status
            policy = "Content-Security-Policy"
            assert answer.headers[policy.lower()] == API_HEADERS[policy]
            assert answer.body.startswith(b'{"detail":')


def test_behind_a_proxy_the_page_is_where_the_proxy_puts_it() -> None:
    settings = Settings(database="sqlite:///unused.sqlite", token=TOKEN)
    app = create_app(settings, TemporaryJobStore())

    async def get_all() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app, root_path="/planner")
        async with httpx.AsyncClient(transport=transport, base_url="http://proxy") as http:
            first = await http.get("/planner/")
            addresses = [f"/planner/{address}" for address in Page(first.text).loaded]
            return [first, *[await http.get(address) for address in addresses]]

    found = asyncio.run(get_all())
    assert [answer.status_code for answer in found] == [200] * (1 + len(Page(found[0].text).loaded))


# ------------------------------------------------------------------ what it loads


def test_every_script_and_every_style_is_loaded_by_the_page(page: Page) -> None:
    loaded = {FOLDER / address.split("/", 2)[2] for address in page.loaded}
    unread = [file for file in loaded if file.suffix == ".js"]
    while unread:
        module = unread.pop()
        imported = re.findall(r'^import [^"]* from "(\.[^"]+)";$', module.read_text(), re.MULTILINE)
        found = {(module.parent / address).resolve() for address in imported} - loaded
        loaded |= found
        unread += found
    assert {*SCRIPTS, *FOLDER.glob("styles/*.css")} <= loaded


def test_the_types_of_the_answers_are_written_from_the_api_description() -> None:
    again = "write them again: python -m docs.scripts.write_wire_types"
    assert WIRE_TYPES.read_text(encoding="utf-8") == wire_types(), again


def test_no_script_makes_markup_or_code_out_of_text() -> None:
    # Names of jobs, host names and error messages are input of others.
    markup = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc"
    for script in SCRIPTS:
        assert re.findall(markup, script.read_text()) == [], script
