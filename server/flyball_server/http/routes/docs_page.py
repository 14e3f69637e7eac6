"""The API for people at /docs; its script and style come from the planner, not from a CDN."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files
from pathlib import PurePosixPath

from fastapi import APIRouter, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse

from flyball_server.http.middleware.token_access import DOCS, DOCS_SCRIPT, DOCS_STYLE, OPENAPI

ROUTER = APIRouter(include_in_schema=False)


@ROUTER.get(DOCS)
def get_docs(request: Request) -> HTMLResponse:
    """Return the API's page, Swagger UI without any file of another host."""
    root = request.scope.get("root_path", "").rstrip("/")  # the prefix that a proxy strips
    page = get_swagger_ui_html(
        openapi_url=root + OPENAPI,
        title=request.app.title,
        swagger_js_url=root + DOCS_SCRIPT,
        swagger_css_url=root + DOCS_STYLE,
        swagger_favicon_url="data:,",
        swagger_ui_parameters={"validatorUrl": None},
    )
    page.headers["Content-Security-Policy"] = _page_policy(bytes(page.body).decode())
    return page


@ROUTER.get(DOCS_SCRIPT)
def get_docs_script() -> Response:
    """Return Swagger UI's script."""
    return Response(_swagger_file(DOCS_SCRIPT), media_type="text/javascript")


@ROUTER.get(DOCS_STYLE)
def get_docs_style() -> Response:
    """Return Swagger UI's style sheet."""
    return Response(_swagger_file(DOCS_STYLE), media_type="text/css")


def _page_policy(page: str) -> str:
    """Return a content policy that permits the planner and the page's own scripts."""
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    hashes = "".join(f" 'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src 'self'{hashes}; style-src 'self' 'unsafe-inline';"
        " img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none';"
        " frame-ancestors 'none'"
    )


def _swagger_file(path: str) -> bytes:
    """Read a file of Swagger UI's distribution, which the package fastapi-offline ships."""
    return (files("fastapi_offline") / "static" / PurePosixPath(path).name).read_bytes()
