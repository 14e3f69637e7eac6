"""A hook of MkDocs: what the pages link to outside of docs/ is on the site, too.

On GitHub the same links lead to the files themselves, so the pages have one form for both.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
DOCS = "docs/"
HOME = "README.md"
# Found last: they say why, and what was measured, rarely how.
REASONS = ("decisions/", "benchmarks/")
_FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\]\()([^)\s:#]+)([^)\s]*\))")


def site_path(repository_path: str) -> str:
    """Return the path of a repository file on the site; the README at the top is its first page."""
    return repository_path.removeprefix(DOCS)


def repository_path(site: str) -> str:
    """Return where in the repository a page or file of the site comes from."""
    return f"{DOCS}{site}" if (ROOT / DOCS / site).is_file() else site


def linked_path(page: str, link: str) -> str:
    """The file that a relative link leads to, as a path in the repository."""
    return os.path.normpath(PurePosixPath(page).parent / link)


def linked_outside(first: list[str]) -> Iterator[str]:
    """The files outside of docs/ that these pages link to, and that those link to in turn."""
    waiting, seen = list(first), set(first)
    while waiting:
        page = waiting.pop()
        text = _FENCED.sub("", (ROOT / page).read_text(encoding="utf-8"))
        for _, link, _ in _LINK.findall(text):
            path = linked_path(page, link)
            if path in seen or path == HOME or path.startswith(DOCS):
                continue
            seen.add(path)
            if (ROOT / path).is_file():
                yield path
                if path.endswith(".md"):
                    waiting.append(path)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the files outside of docs/ that the pages link to."""
    # Not on top: what only reads the links needs no MkDocs.
    from mkdocs.structure.files import File  # noqa: PLC0415

    pages = [f"{DOCS}{file.src_uri}" for file in files.documentation_pages()]
    for path in linked_outside(pages):
        files.append(File.generated(config, site_path(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page with its links as they have to be on the site."""
    if page.file.src_uri.startswith(REASONS):
        page.meta.setdefault("search", {"boost": 0.3})
    own = repository_path(page.file.src_uri)

    def on_the_site(match: re.Match[str]) -> str:
        opening, link, end = match.groups()
        target = linked_path(own, link)
        if own.startswith(DOCS) and target.startswith(DOCS):
            return match.group()
        if not (ROOT / target).is_file():
            return match.group()  # MkDocs says that it leads nowhere
        here = PurePosixPath(page.file.src_uri).parent
        return f"{opening}{os.path.relpath(site_path(target), here)}{end}"

    parts = re.split(r"(^ *```.*?^ *```)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if _FENCED.match(part) else _LINK.sub(on_the_site, part) for part in parts)
