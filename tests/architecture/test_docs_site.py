"""The documentation as a site: built whole, without a warning; it loads nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# Attributes by which a page loads something by itself; a link is followed by a reader only.
_LOADING = {
    **dict.fromkeys(("script", "img", "iframe", "source", "audio", "video"), "src"),
    "link": "href",
}
_NAV_PAGE = re.compile(r"^\s+- (?:[^:#]+: )?([\w/.-]+\.md)$", re.MULTILINE)


class _Loaded(HTMLParser):
    """Files that a page loads, and the addresses that it links to."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "a" and (link := values.get("href")):
            self.links.append(link)
        # Where a page stands, or goes on, is said and not loaded.
        if values.get("rel") in {"canonical", "next", "prev"}:
            return
        if value := values.get(_LOADING.get(tag, "")):
            self.loaded.append(value)


def read(page: Path) -> _Loaded:
    """A page of the site."""
    parser = _Loaded()
    parser.feed(page.read_text(encoding="utf-8"))
    return parser


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` makes it."""
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return folder


def test_every_page_has_its_place_in_the_navigation_once() -> None:
    named = _NAV_PAGE.findall((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    ours = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert sorted(set(named)) == sorted(named)
    assert ours <= set(named)
    assert all((ROOT / page).is_file() for page in set(named) - ours)


def test_the_first_page_has_its_picture(site: Path) -> None:
    page = read(site / "index.html")
    assert "images/plan.svg" in page.loaded
    assert (site / "images" / "plan.svg").is_file()


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        for address in read(page).loaded:
            parts = urlsplit(address)
            assert not parts.scheme and not parts.netloc, f"{page.name}: {address}"
            if page.name != "404.html":  # its addresses are those of a site at the root
                assert (page.parent / unquote(parts.path)).is_file(), f"{page.name}: {address}"
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:@import|url\()\s*[\"']?https?:", style.read_text()), style.name


def test_links_to_files_outside_of_the_documentation_lead_to_them(site: Path) -> None:
    guide, examples = read(site / "frameworks.html"), read(site / "examples" / "index.html")
    assert "examples/hand_written_loop.py" in guide.links
    example = site / "examples" / "hand_written_loop.py"
    assert example.read_text() == (ROOT / "examples" / "hand_written_loop.py").read_text()
    assert any(link.startswith("../frameworks.html") for link in examples.links)
