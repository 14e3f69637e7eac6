"""Every error as a `wire.Problem`: one line, the fields named, the input never echoed."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, cast

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flyball_profiles.stage_profile import ProfileError
from flyball_server.http.edge_errors import ERROR_STATUS, TooManyWaitingError, status_of
from flyball_server.http.middleware.call_log import (
    REQUEST_ID_HEADER,
    current_request_id,
    request_id_of,
)
from flyball_server.jobs.errors import InvalidFieldError, PlannerFaultError, StoreError
from flyball_wire.messages import Problem

# An answer that is no page loads nothing and stands in no frame.
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
    """ASGI middleware: adds the headers that an answer does not have yet."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the call on, and its answer with the headers."""
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
_METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
# What Starlette and FastAPI raise themselves, in words that say what to do.
_FRAMEWORK_DETAIL = {
    400: "The body cannot be read as JSON",
    404: "There is nothing at this address; /docs lists what there is",
    405: "This address does not take this method; /docs lists what it takes",
}


def add_problem_handlers(app: FastAPI) -> None:
    """Let every error of this app be answered by a Problem."""
    for kind in ERROR_STATUS:
        app.add_exception_handler(kind, _handle_known)
    app.add_exception_handler(RequestValidationError, _handle_validation)
    app.add_exception_handler(HTTPException, _handle_http)
    app.add_exception_handler(Exception, _handle_unknown)


def problem_response(error: Exception) -> JSONResponse:
    """The answer to an error of the error table."""
    headers: Mapping[str, str] = {}
    if isinstance(error, TooManyWaitingError):
        headers = {"Retry-After": str(error.retry_after_s)}
    if isinstance(error, StoreError):
        _LOG.error("%s", error)
    return _answer(status_of(error), problem_of(error), headers)


def validation_problem(errors: Iterable[Mapping[str, Any]]) -> Problem:
    """The problem of pydantic's errors: where, which rule, in words; not what was sent."""
    found = tuple(errors)
    shown = tuple(_entry(error) for error in found[:_MAX_ERRORS])
    first = f"{shown[0]['loc']}: {shown[0]['msg']}" if shown else "the call is not valid"
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return Problem(detail=first + more, errors=shown)


def fault_detail(error: PlannerFaultError) -> str:
    """Return the answer to a failure of the planner: the call's id, which its log names."""
    # The work may have been that of several calls, and its own log line is none of them's.
    _LOG.error("%s: %r", error.message, error.__cause__)
    request_id = current_request_id()
    return error.message if request_id is None else f"{error.message}, at request {request_id}"


def problem_of(error: Exception) -> Problem:
    """The problem that an error of the error table is."""
    if isinstance(error, ProfileError):
        place = "profile" if error.line is None else f"profile:{error.line}"
        entry = {"loc": place, "type": "profile", "msg": error.message}
        return Problem(detail=error.located("profile"), errors=(entry,))
    if isinstance(error, InvalidFieldError):
        entry = {"loc": error.field, "type": "invalid", "msg": error.problem}
        return Problem(detail=error.message, errors=(entry,))
    if isinstance(error, StoreError):
        # Which file it is, is the operator's business: the log names it.
        return Problem(detail="The planner's job store cannot answer now; its log says why")
    if isinstance(error, PlannerFaultError):
        return Problem(detail=fault_detail(error))
    return Problem(detail=str(error))


async def _handle_known(_request: Request, error: Exception) -> JSONResponse:
    return problem_response(error)


async def _handle_validation(_request: Request, error: Exception) -> JSONResponse:
    errors = cast("RequestValidationError", error).errors()
    return _answer(422, validation_problem(errors))


async def _handle_http(request: Request, error: Exception) -> JSONResponse:
    known = cast("HTTPException", error)
    detail = _FRAMEWORK_DETAIL.get(known.status_code, str(known.detail))
    headers = {"Allow": _allowed(request)} if known.status_code == 405 else known.headers
    return _answer(known.status_code, Problem(detail=detail), headers)


def _allowed(request: Request) -> str:
    """The methods of all routes at this address; Starlette names those of the first alone."""
    routes: list[BaseRoute] = request.app.routes
    return ", ".join(
        method
        for method in _METHODS
        if any(
            route.matches({**request.scope, "method": method})[0] is Match.FULL for route in routes
        )
    )


async def _handle_unknown(request: Request, _error: Exception) -> JSONResponse:
    # It goes past all middleware of ours. The server closes the connection after it: said, so that
    # nobody sends the next call into that.
    headers, where = {**API_HEADERS, "Connection": "close"}, ""
    if (request_id := request_id_of(request.scope)) is not None:
        headers[REQUEST_ID_HEADER] = request_id
        where = f", at request {request_id}"
    problem = Problem(detail=f"The planner has failed at this; its log says where{where}")
    return _answer(500, problem, headers)


def _entry(error: Mapping[str, Any]) -> dict[str, str]:
    kind, message = str(error["type"]), str(error["msg"]).removeprefix("Value error, ")
    if kind == "json_invalid":
        # FastAPI puts the position where the field's name would be.
        position = error["loc"][-1]
        where = f" at character {position}" if isinstance(position, int) else ""
        return {"loc": "body", "type": kind, "msg": message + where}
    return {"loc": _place(error["loc"]), "type": kind, "msg": message}


def _place(loc: Iterable[object]) -> str:
    parts = [_one_line(str(part)[:_MAX_LOC_CHARACTERS]) for part in loc]
    # `body.` says nothing to somebody who sees the body's fields by their names.
    return ".".join(parts[1:] if len(parts) > 1 else parts)


def _one_line(name: str) -> str:
    """A name of the caller's, its line ends and control characters written out."""
    return name if name.isprintable() else ascii(name)[1:-1]


def _answer(
    status: int, problem: Problem, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    content = {name: _printable(value) for name, value in asdict(problem).items()}
    return JSONResponse(content, status_code=status, headers=headers)


def _printable(value: Any) -> Any:  # noqa: ANN401 - JSON values of any depth
    """The same with half surrogates replaced, which no UTF-8 body can carry."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {_printable(key): _printable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_printable(item) for item in value]
    return value
