"""Description of the API in OpenAPI: bodies, answers, errors, and the page at /docs.

The page's script and style come from the planner itself: where it runs there may be no internet.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import asdict
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Any

from fastapi import APIRouter, Body, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.openapi.models import Example
from fastapi.responses import HTMLResponse

from flyball_server.http.dependencies import JSON
from flyball_server.http.edge_errors import STATUS_MEANING
from flyball_server.http.middleware.token_access import DOCS, DOCS_SCRIPT, DOCS_STYLE, OPENAPI
from flyball_server.http.openapi.examples import PROBLEMS
from flyball_wire.messages import Problem

ROUTER = APIRouter(include_in_schema=False)
Responses = dict[int | str, dict[str, Any]]

READ_ERRORS = (401, 403, 422, 503)
JSON_BODY_ERRORS = (400, 401, 403, 408, 413, 415, 422, 503)


def json_body(example: object) -> Any:  # noqa: ANN401 - FastAPI's own type for parameters
    """A JSON body, with an instance of its wire type as the example."""
    return Body(openapi_examples={"example": Example(value=plain(example))})


def answers(
    example: object,
    *errors: int,
    status: int = 200,
    meaning: str = "Done.",
    model: type[object] | None = None,
) -> Responses:
    """The successful answer with its example, and the errors that may come instead.

    Args:
        example: an instance of the answer's wire type, or a list of them.
        errors: HTTP statuses.
        status: of the success.
        meaning: of the success, one sentence.
        model: the wire type, for a status beside the route's own (whose type FastAPI knows).
    """
    success: dict[str, Any] = {
        "description": meaning,
        "content": {JSON: {"example": plain(example)}},
    }
    if model is not None:
        success["model"] = model
    return {status: success, **{error: _problem(error) for error in sorted(errors)}}


def problems(*errors: int) -> Responses:
    """The errors that may come, of a call whose success has no body."""
    return {error: _problem(error) for error in sorted(errors)}


def plain(example: object) -> Any:  # noqa: ANN401 - JSON values of any depth
    """Wire types, alone or in a list, as JSON-ready data."""
    if isinstance(example, list):
        return [plain(item) for item in example]
    return _lists(asdict(example))  # type: ignore[call-overload]  # a wire type's instance


@ROUTER.get(DOCS)
def get_docs(request: Request) -> HTMLResponse:
    """The API for people, as Swagger UI shows it; no other host is asked for anything."""
    root = request.scope.get("root_path", "").rstrip("/")  # behind a proxy, what it cuts off
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
    """Swagger UI's script."""
    return Response(_swagger_file(DOCS_SCRIPT), media_type="text/javascript")


@ROUTER.get(DOCS_STYLE)
def get_docs_style() -> Response:
    """Swagger UI's style sheet."""
    return Response(_swagger_file(DOCS_STYLE), media_type="text/css")


def _page_policy(page: str) -> str:
    """Return the page's content policy: the planner, and exactly the scripts that it has."""
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    hashes = "".join(f" 'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src 'self'{hashes}; style-src 'self' 'unsafe-inline';"
        " img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none';"
        " frame-ancestors 'none'"
    )


def _swagger_file(path: str) -> bytes:
    """A file of Swagger UI's distribution, which the package fastapi-offline ships."""
    return (files("fastapi_offline") / "static" / PurePosixPath(path).name).read_bytes()


def _lists(value: Any) -> Any:  # noqa: ANN401 - JSON values of any depth
    if isinstance(value, dict):
        return {key: _lists(item) for key, item in value.items()}
    return [_lists(item) for item in value] if isinstance(value, list | tuple) else value


def _problem(status: int) -> dict[str, Any]:
    return {
        "model": Problem,
        "description": STATUS_MEANING[status],
        "content": {JSON: {"example": plain(PROBLEMS[status])}},
    }
