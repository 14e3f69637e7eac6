"""Errors as answers: one line, the fields named, the input never echoed."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, cast

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flyball_profiles.stage_profile import ProfileError
from flyball_server.http.edge_errors import (
    ERROR_STATUS,
    RETRY_AFTER_S,
    TooManyWaitingError,
    status_of,
)
from flyball_server.http.middleware.call_log import (
    REQUEST_ID_HEADER,
    current_request_id,
    request_id_of,
)
from flyball_server.jobs.errors import InvalidFieldError, PlannerFaultError, StoreError
from flyball_wire.messages import Problem

# Answers other than pages load nothing and cannot be framed.
CONTENT_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
API_HEADERS = MappingProxyType(
    {
        "Cache-Control": "no-store",
        "Content-Security-Policy": CONTENT_POLICY,
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
    }
)
# Sent over TLS only; a year.
_STRICT_TRANSPORT = "max-age=31536000"


class ResponseHeaders:
    """ASGI middleware: add the headers that an answer does not have yet."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the call and add headers to its answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in API_HEADERS.items():
                    headers.setdefault(name, value)
                if scope.get("scheme") == "https":
                    headers.setdefault("Strict-Transport-Security", _STRICT_TRANSPORT)
            await send(message)

        await self._app(scope, receive, send_with_headers)


_LOG = logging.getLogger(__name__)
_MAX_ERRORS = 20
_MAX_LOC_CHARACTERS = 64
# A value at the end of a rule; an unknown name.
_QUOTED = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_VALUE = re.compile(rf",? not (?:{_QUOTED}|[-+]?(?:\d|inf\b|nan\b)[^;,()\s]*)(?=[;,()\s]|$)")
_UNKNOWN = re.compile(rf"\b([Uu]nknown(?: \w+)?) {_QUOTED}")
_METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
# Replaces the texts of Starlette and FastAPI.
_FRAMEWORK_DETAIL = {
    400: "The body cannot be read as JSON",
    404: "There is nothing at this address; /docs lists all addresses",
    405: "This address does not take this method; /docs lists its methods",
}


_NO_PAGE = (
    '<!doctype html><html lang="en"><title>Flyball: no such page</title>'
    '<p>There is no page at this address. <a href="{start}">All jobs</a></p></html>'
)


def add_problem_handlers(app: FastAPI) -> None:
    """Answer every error of the app with a Problem."""
    for kind in ERROR_STATUS:
        app.add_exception_handler(kind, _handle_known)
    app.add_exception_handler(RequestValidationError, _handle_validation)
    app.add_exception_handler(HTTPException, _handle_http)
    app.add_exception_handler(Exception, _handle_unknown)


def problem_response(error: Exception) -> Response:
    """Return the answer to an error of the error table."""
    if isinstance(error, StoreError):
        _LOG.error("%s", error)
    is_busy = isinstance(error, TooManyWaitingError)
    headers = {"Retry-After": str(RETRY_AFTER_S)} if is_busy else None
    return _answer(status_of(error), problem_of(error), headers)


def validation_problem(errors: Iterable[Mapping[str, Any]]) -> Problem:
    """Return the problem of pydantic's errors: places, rules and messages without the input."""
    found = tuple(errors)
    shown = tuple(_entry(error) for error in found[:_MAX_ERRORS])
    first = f"{shown[0]['loc']}: {shown[0]['msg']}" if shown else "the call is not valid"
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return Problem(detail=first + more, errors=shown)


def problem_of(error: Exception) -> Problem:
    """Return the problem of an error of the error table."""
    if isinstance(error, ProfileError):
        place = "profile" if error.line is None else f"profile:{error.line}"
        entry = {"loc": place, "type": "profile", "msg": without_values(error.message)}
        return Problem(detail=without_values(error.located("profile")), errors=(entry,))
    if isinstance(error, InvalidFieldError):
        entry = {"loc": error.field, "type": "invalid", "msg": without_values(error.problem)}
        return Problem(detail=without_values(error.message), errors=(entry,))
    if isinstance(error, StoreError):
        # The location of the store is for operators, who have the log.
        return Problem(detail="The planner's job store is not available; see the planner's log")
    if isinstance(error, PlannerFaultError):
        # The fault may have occurred in a batch of several calls, whose log line has no call's id.
        _LOG.error("%s: %r", error.message, error.__cause__)
        return Problem(detail=error.message + _at_request(current_request_id()))
    return Problem(detail=str(error))


def without_values(text: str) -> str:
    """Return an error's text without the values that commands show: `, not 7`, `unknown 'x'`."""
    return _UNKNOWN.sub(r"\1", _VALUE.sub("", text))


async def _handle_known(_request: Request, error: Exception) -> Response:
    return problem_response(error)


async def _handle_validation(_request: Request, error: Exception) -> Response:
    errors = cast("RequestValidationError", error).errors()
    return _answer(422, validation_problem(errors))


async def _handle_http(request: Request, error: Exception) -> Response:
    known = cast("HTTPException", error)
    if known.status_code == 404 and is_from_browser(request):
        return no_page(request, 404)
    detail = _FRAMEWORK_DETAIL.get(known.status_code, str(known.detail))
    headers = {"Allow": _allowed(request)} if known.status_code == 405 else known.headers
    return _answer(known.status_code, Problem(detail=detail), headers)


def no_page(request: Request, status: int) -> Response:
    """Return the answer to a browser at an address that is no page: a link to the jobs."""
    page = _NO_PAGE.format(start=f"{request.scope.get('root_path', '')}/")
    return HTMLResponse(page, status, API_HEADERS)


def is_from_browser(request: Request) -> bool:
    """Return whether someone looks for a page: a browser names HTML, and clients JSON or all."""
    return request.method == "GET" and "text/html" in request.headers.get("accept", "")


def _allowed(request: Request) -> str:
    """Return the methods of all routes at this address; Starlette names the first route's only."""
    routes: list[BaseRoute] = request.app.routes
    return ", ".join(
        method
        for method in _METHODS
        if any(
            route.matches({**request.scope, "method": method})[0] is Match.FULL for route in routes
        )
    )


async def _handle_unknown(request: Request, _error: Exception) -> Response:
    # This answer bypasses the middleware. The server closes the connection after it; the header
    # keeps clients from reusing it.
    headers = {**API_HEADERS, "Connection": "close"}
    request_id = request_id_of(request.scope)
    if request_id is not None:
        headers[REQUEST_ID_HEADER] = request_id
    detail = "The planner failed to answer this call; see its log"
    return _answer(500, Problem(detail=detail + _at_request(request_id)), headers)


def _at_request(request_id: str | None) -> str:
    return "" if request_id is None else f", at request {request_id}"


def _entry(error: Mapping[str, Any]) -> dict[str, str]:
    kind, message = str(error["type"]), without_values(str(error["msg"]))
    message = message.removeprefix("Value error, ")
    if kind == "json_invalid":
        # FastAPI puts the position where the field's name would be.
        position = error["loc"][-1]
        where = f" at character {position}" if isinstance(position, int) else ""
        return {"loc": "body", "type": kind, "msg": message + where}
    return {"loc": _place(error["loc"]), "type": kind, "msg": message}


def _place(loc: Iterable[object]) -> str:
    parts = [_one_line(str(part)[:_MAX_LOC_CHARACTERS]) for part in loc]
    return ".".join(parts[1:] if len(parts) > 1 else parts)  # without the prefix `body.`


def _one_line(name: str) -> str:
    """Return a caller's name with line ends and control characters escaped."""
    return name if name.isprintable() else ascii(name)[1:-1]


def _answer(status: int, problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    # Half surrogates have no UTF-8 form.
    text = json.dumps(asdict(problem), ensure_ascii=False, separators=(",", ":"))
    body = text.encode("utf-8", "replace")
    return Response(body, status, headers, media_type="application/json")
