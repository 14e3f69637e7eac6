"""The dashboard: the page at `/` with its scripts and styles, from the package's files.

They need no token: they contain nothing about jobs, which the page reads through the API. The page
loads them from a folder whose name is a hash of their content, so that browsers keep them.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath
from types import MappingProxyType

from fastapi import APIRouter, HTTPException, Request, Response

from flyball_wire.command.command import flyball_version

PAGE = "/"
# Folder of the page's files; the page refers to them by relative addresses, for proxies with a
# prefix.
ASSETS = "/dashboard/"
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'"
)

_PAGE_FILE = "index.html"
_VERSION = "{{version}}"
_FOR_EVER = "public, max-age=31536000, immutable"
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
        etag: value of the header, quotation marks included.
        cache_control: value of the header.
    """

    content: bytes
    media_type: str
    etag: str
    cache_control: str = "no-cache"


@cache
def dashboard_files() -> Mapping[str, DashboardFile]:
    """Return all files by the path of their request; read once per process."""
    folder = files("flyball_server") / "dashboard"
    contents = dict(sorted(_entries(folder)))
    page = contents.pop(_PAGE_FILE).decode().replace(_VERSION, flyball_version())
    found = {ASSETS + name: _file(name, content) for name, content in contents.items()}
    lasting = f"{ASSETS}{_hash(*(f'{path}{file.etag}'.encode() for path, file in found.items()))}/"
    found |= {
        path.replace(ASSETS, lasting, 1): replace(file, cache_control=_FOR_EVER)
        for path, file in found.items()
    }
    text = page.replace(f'="{ASSETS[1:]}', f'="{lasting[1:]}')
    return MappingProxyType({**found, PAGE: _file(_PAGE_FILE, text.encode())})


@ROUTER.api_route(PAGE, methods=["GET", "HEAD"])
async def get_page(request: Request) -> Response:
    """Return the page."""
    response = _answer(PAGE, request)
    response.headers["Content-Security-Policy"] = PAGE_POLICY
    return response


@ROUTER.api_route(ASSETS + "{name:path}", methods=["GET", "HEAD"])
async def get_asset(name: str, request: Request) -> Response:
    """Return a script, style or licence of the page."""
    return _answer(ASSETS + name, request)


def _answer(path: str, request: Request) -> Response:
    file = dashboard_files().get(path)
    if file is None:
        raise HTTPException(404)
    headers = {"ETag": file.etag, "Cache-Control": file.cache_control}
    if _is_known(file.etag, request.headers.getlist("if-none-match")):
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)


def _is_known(etag: str, conditions: list[str]) -> bool:
    """Return whether the caller has this content; compressing proxies make the tag weak."""
    known = (tag.strip() for condition in conditions for tag in condition.split(","))
    return any(tag == "*" or tag.removeprefix("W/") == etag for tag in known)


def _entries(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _entries(entry, f"{prefix}{entry.name}/")
        elif PurePosixPath(entry.name).suffix in _TYPES and not entry.name.startswith("."):
            yield prefix + entry.name, entry.read_bytes()


def _file(name: str, content: bytes) -> DashboardFile:
    media_type = _TYPES[PurePosixPath(name).suffix]
    return DashboardFile(content=content, media_type=media_type, etag=f'"{_hash(content)}"')


def _hash(*parts: bytes) -> str:
    """Return 24 characters that name this content."""
    digest = hashlib.sha256(b"".join(parts)).digest()
    return base64.urlsafe_b64encode(digest[:18]).decode()
