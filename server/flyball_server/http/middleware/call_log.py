"""Request ids, log fields and metrics of calls."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from uuid import uuid4

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flyball_server.log_setup import log_fields, set_log_fields
from flyball_server.prometheus.process_metrics import ProcessMetrics

REQUEST_ID_HEADER = "X-Request-Id"
_SCOPE_KEY = "flyball.request_id"
# Ids appear in log lines: no characters that could forge a field or a line.
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_ABOUT = re.compile(
    r"/api/v1/jobs/(?P<job>[A-Za-z0-9._-]{1,128})"
    r"(?:/(?:ranks|stragglers)/(?P<rank>[0-9]{1,8})|/plans/(?P<version>[0-9]{1,18}))?(?:/|$)"
)


class CallLog:
    """ASGI middleware, the outermost: set the call's id and its log fields.

    A client's `X-Request-Id` is kept if it is 1 to 128 of A-Z a-z 0-9 . _ -, else one is generated.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the call."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _given_id(scope) or uuid4().hex
        scope[_SCOPE_KEY] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = request_id
            await send(message)

        # Not reset at the end: a failure that the server logs belongs to this call, and each call
        # has a task of its own.
        set_log_fields({**_about(scope["path"]), "request_id": request_id})
        await self._app(scope, receive, send_with_id)


def current_request_id() -> str | None:
    """Return the id of the call that this task answers; None: it answers none."""
    found = log_fields().get("request_id")
    return found if isinstance(found, str) else None


def request_id_of(scope: Mapping[str, object]) -> str | None:
    """Return the id of a call; None: it did not pass CallLog."""
    found = scope.get(_SCOPE_KEY)
    return found if isinstance(found, str) else None


def _given_id(scope: Scope) -> str | None:
    wanted = REQUEST_ID_HEADER.lower().encode("ascii")
    given = next((value for name, value in scope["headers"] if name == wanted), b"")
    text = given.decode("latin-1")
    return text if _REQUEST_ID.fullmatch(text) else None


def _about(path: str) -> dict[str, str | int]:
    """Return the job of a path, and its rank or plan version."""
    found = _ABOUT.match(path)
    if found is None:
        return {}
    parts = found.groupdict()
    fields: dict[str, str | int] = {"job": parts["job"]}
    for name in ("rank", "version"):
        if parts[name] is not None:
            fields[name] = int(parts[name])
    return fields


class CallMetrics:
    """ASGI middleware: observe each call when its answer is complete."""

    def __init__(self, app: ASGIApp, *, metrics: ProcessMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the call."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500  # the server's answer if the app sends none

        async def noting_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        started_s = time.perf_counter()
        try:
            await self._app(scope, receive, noting_status)
        finally:
            self._metrics.observe_call(
                # The route's template, set by the router: no names of jobs become labels.
                route=getattr(scope.get("route"), "path", None),
                method=scope["method"],
                status=status,
                seconds=time.perf_counter() - started_s,
            )
