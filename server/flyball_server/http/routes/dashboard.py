"""The dashboard: the page at `/` and its scripts and styles, as the package holds them.

They hold nothing of jobs, so they need no token; what the page shows it asks the API for.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath
from types import MappingProxyType

from fastapi import APIRouter, HTTPException, Request, Response

PAGE = "/"
# Where the page's files are; its own addresses of them are relative, for proxies with a prefix.
ASSETS = "/dashboard/"
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'"
)

_PAGE_FILE = "index.html"
_TYPES = MappingProxyType(
    {
        ".html": "text/html",
        ".css": "text/css",
        ".js": "text/javascript",
        ".svg": "image/svg+xml",
        "": "text/plain",  # licences
    }
)

ROUTER = APIRouter(include_in_schema=False)


@dataclass(frozen=True, kw_only=True)
class DashboardFile:
    """One file of the page.

    Attributes:
        etag: as the header has it, with its quotation marks; another content has another.
    """

    content: bytes
    media_type: str
    etag: str


@cache
def dashboard_files() -> Mapping[str, DashboardFile]:
    """All files that are served, by the path they have in a call; read once in a process."""
    folder = files("flyball_server") / "dashboard"
    found = {ASSETS + name: _file(name, entry) for name, entry in _entries(folder)}
    found[PAGE] = found.pop(ASSETS + _PAGE_FILE)
    return MappingProxyType(found)


@ROUTER.api_route(PAGE, methods=["GET", "HEAD"])
async def get_page(request: Request) -> Response:
    """The page."""
    response = _answer(PAGE, request)
    response.headers["Content-Security-Policy"] = PAGE_POLICY
    return response


@ROUTER.api_route(ASSETS + "{name:path}", methods=["GET", "HEAD"])
async def get_asset(name: str, request: Request) -> Response:
    """One of its scripts, styles or licences."""
    return _answer(ASSETS + name, request)


def _answer(path: str, request: Request) -> Response:
    file = dashboard_files().get(path)
    if file is None:
        raise HTTPException(404)
    headers = {"ETag": file.etag, "Cache-Control": "no-cache"}
    if _is_known(file.etag, request.headers.getlist("if-none-match")):
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)


def _is_known(etag: str, conditions: list[str]) -> bool:
    """Return whether the caller has this content; a proxy that packs it marks the tag as weak."""
    known = (tag.strip() for condition in conditions for tag in condition.split(","))
    return any(tag == "*" or tag.removeprefix("W/") == etag for tag in known)


def _entries(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _entries(entry, f"{prefix}{entry.name}/")
        elif PurePosixPath(entry.name).suffix in _TYPES and not entry.name.startswith("."):
            yield prefix + entry.name, entry


def _file(name: str, entry: Traversable) -> DashboardFile:
    content = entry.read_bytes()
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()[:18]).decode()
    return DashboardFile(
        content=content, media_type=_TYPES[PurePosixPath(name).suffix], etag=f'"{digest}"'
    )
